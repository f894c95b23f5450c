//! The fuzz target `kineto`: see `vramscope_fuzz::TARGETS`.
#![forbid(unsafe_code)]
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vramscope_fuzz::kineto(data));
