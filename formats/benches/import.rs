//! How long a PyTorch snapshot takes to become events. `cargo bench -p vramscope-formats`; each runs once inside the tests.
//!
//! The snapshots are looked for beside the checkout, in `../shared/snapshots`.

use std::borrow::Cow;
use std::path::PathBuf;

use divan::Bencher;
use vramscope_formats::{Limits, import, unpack};
use vramscope_trace::{Encoder, Null};

fn main() {
    divan::main();
}

fn packed(name: &str) -> Option<Vec<u8>> {
    let place = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/snapshots");
    let bytes = std::fs::read(place.join(format!("{name}.pickle.zst"))).ok();
    if bytes.is_none() {
        println!("SKIPPED: {name} is not in ../shared/snapshots");
    }
    bytes
}

fn pickle(name: &str) -> Option<Vec<u8>> {
    packed(name).map(|packed| unpack(&packed, &Limits::default()).map(Cow::into_owned).expect("it unpacks"))
}

#[divan::bench(args = ["gpt_varlen", "big"], sample_count = 3, sample_size = 1)]
fn into_nothing(bencher: Bencher, name: &str) {
    let Some(bytes) = pickle(name) else { return };
    bencher.bench(|| import(&bytes, name, &Limits::default(), &mut |_, _| {}, |_| Null).expect("it imports"));
}

#[divan::bench(args = ["gpt_varlen", "big"], sample_count = 3, sample_size = 1)]
fn into_a_recording(bencher: Bencher, name: &str) {
    let Some(bytes) = pickle(name) else { return };
    bencher.bench(|| {
        let (mut encoder, _) =
            import(&bytes, name, &Limits::default(), &mut |_, _| {}, Encoder::new).expect("it imports");
        encoder.flush();
        encoder.take_output()
    });
}

#[divan::bench(args = ["gpt_varlen", "big"], sample_count = 3, sample_size = 1)]
fn unpacking(bencher: Bencher, name: &str) {
    let Some(bytes) = packed(name) else { return };
    bencher.bench(|| unpack(&bytes, &Limits::default()).map(|unpacked| unpacked.len()));
}
