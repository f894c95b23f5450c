//! The fuzz target `live_recording`: see `vramscope_fuzz::TARGETS`.
#![forbid(unsafe_code)]
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| vramscope_fuzz::live_recording(data));
