//! The page in a browser; run by `wasm-pack test --headless --chrome viewer`.
#![cfg(target_arch = "wasm32")]

mod live;
mod page;
mod recordings;
#[path = "../samples/mod.rs"]
mod samples;

wasm_bindgen_test::wasm_bindgen_test_configure!(run_in_browser);
