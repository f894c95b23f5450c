//! The fuzz target `page_link`: see `vramscope_fuzz::TARGETS`.
#![forbid(unsafe_code)]
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vramscope_fuzz::page_link(data));
