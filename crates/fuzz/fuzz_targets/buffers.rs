//! The fuzz target `buffers`: see `vramscope_fuzz::TARGETS`.
#![forbid(unsafe_code)]
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vramscope_fuzz::buffers(data));
