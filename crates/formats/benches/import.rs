//! Measures the time to import PyTorch snapshots and, for comparison, the time that Python takes to
//! load them: `cargo bench -p vramscope-formats`. The tests run each benchmark but the last once,
//! without `big`.
//!
//! These use one processor; the command encodes on a second one: `time vramscope import
//! big.pickle.zst -o big.vram`.
//!
//! The snapshots are read from `../shared/snapshots` beside the checkout.

use std::borrow::Cow;
use std::path::PathBuf;
use std::process::Command;

use divan::Bencher;
use vramscope_formats::{Importer, Limits, ignore_progress, import, unpack};
use vramscope_trace::{Encoder, NullSink};

fn main() {
    divan::main();
}

/// Returns true in `cargo bench`, and false in tests.
fn is_measuring() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

/// Returns a packed snapshot; `None` for one that is missing, or too large for a test.
fn packed(name: &str) -> Option<Vec<u8>> {
    if name == "big" && !is_measuring() {
        return None;
    }
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/snapshots");
    let bytes = std::fs::read(folder.join(format!("{name}.pickle.zst"))).ok();
    if bytes.is_none() {
        println!("SKIPPED: {name} is not in ../shared/snapshots");
    }
    bytes
}

fn pickle(name: &str) -> Option<Vec<u8>> {
    packed(name).map(|packed| unpack(&packed, &Limits::default()).map(Cow::into_owned).expect("the snapshot unpacks"))
}

#[divan::bench(args = ["gpt_varlen", "big"], sample_count = 3, sample_size = 1)]
fn import_without_encoding(bencher: Bencher, name: &str) {
    let Some(bytes) = pickle(name) else { return };
    bencher.bench(|| {
        import(&bytes, name, &Limits::default(), &mut ignore_progress, |_| NullSink).expect("the snapshot is valid")
    });
}

#[divan::bench(args = ["gpt_varlen", "big"], sample_count = 3, sample_size = 1)]
fn import_into_a_recording(bencher: Bencher, name: &str) {
    let Some(bytes) = pickle(name) else { return };
    bencher.bench(|| {
        let (mut encoder, _) = import(&bytes, name, &Limits::default(), &mut ignore_progress, Encoder::new)
            .expect("the snapshot is valid");
        encoder.flush();
        encoder.take_output()
    });
}

/// As the page imports a file: unpacked and read in pieces, encoded chunks passed on. The peak of
/// memory is that of this benchmark alone: `/usr/bin/time -v`.
#[divan::bench(args = ["gpt_varlen", "big"], sample_count = 3, sample_size = 1)]
fn import_packed_pieces(bencher: Bencher, name: &str) {
    let Some(bytes) = packed(name) else { return };
    bencher.bench(|| {
        let mut importer = Importer::new(&Limits::default(), Some(bytes.len() as u64));
        bytes.chunks(1 << 18).for_each(|piece| importer.push(piece).expect("the snapshot is valid"));
        let file = importer.finish().expect("the snapshot is valid");
        let (mut encoder, _) = file.write(name, &mut ignore_progress, Encoder::new).expect("the snapshot is valid");
        encoder.flush();
        encoder.take_output()
    });
}

#[divan::bench(args = ["gpt_varlen", "big"], sample_count = 3, sample_size = 1)]
fn unpack_snapshot(bencher: Bencher, name: &str) {
    let Some(bytes) = packed(name) else { return };
    bencher.bench(|| unpack(&bytes, &Limits::default()).map(|unpacked| unpacked.len()));
}

/// A generated log, because RMM's logs may have any length: a million lines, 500 live blocks.
#[divan::bench(sample_count = 3, sample_size = 1)]
fn rmm_log_of_a_million_lines(bencher: Bencher) {
    let mut log = b"Thread,Time,Action,Pointer,Size,Stream\n".to_vec();
    for number in 0..1_000_000u64 {
        let (slot, us) = (number / 2 % 500 * 7919 % 500, number % 1_000_000);
        let action = if number % 1000 < 500 { "allocate" } else { "free" };
        let line = format!("77,12:00:00.{us:06},{action},{:#x},{},0x0\n", 0x7f00_0000_0000 + (slot << 20), 1000 + slot);
        log.extend_from_slice(line.as_bytes());
    }
    bencher.bench(|| {
        import(&log, "log.csv", &Limits::default(), &mut ignore_progress, |_| NullSink).expect("the snapshot is valid")
    });
}

/// `pickle.load` of the same unpacked snapshot, which creates Python objects only.
#[divan::bench(args = ["gpt_varlen", "big"], sample_count = 1, sample_size = 1)]
fn pickle_load_in_python(bencher: Bencher, name: &str) {
    const LOAD: &str = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))";
    if !is_measuring() {
        return;
    }
    let Some(bytes) = pickle(name) else { return };
    let path = std::env::temp_dir().join(format!("vramscope-{}-{name}.pickle", std::process::id()));
    std::fs::write(&path, bytes).expect("the snapshot can be written to the temporary folder");
    if Command::new("python3").arg("--version").output().is_err() {
        println!("SKIPPED: python3 is not installed");
    } else {
        bencher.bench(|| {
            let loaded = Command::new("python3").args(["-c", LOAD]).arg(&path).status();
            assert!(loaded.is_ok_and(|status| status.success()), "python3 loads {name}");
        });
    }
    std::fs::remove_file(&path).expect("the temporary file can be removed");
}
