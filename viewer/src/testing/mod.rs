//! What tests of the page share: files of every format, read as the page reads them, contents of
//! panes, rows, and golden pictures.
//!
//! The tests of this crate and those in `tests/it` use these modules, each a part of them.
#![allow(dead_code, reason = "each test program uses a part")]

pub(crate) mod golden_file;
pub(crate) mod page;
pub(crate) mod program;
pub(crate) mod rows;
#[path = "../../tests/samples/mod.rs"]
pub(crate) mod samples;
pub(crate) mod still;
pub(crate) mod view_pictures;

use std::path::PathBuf;

use vramscope_formats::ignore_progress;
use vramscope_importer::ImportJob;
use vramscope_trace::{
    AnnotationStage, Chunk, DeviceId, Encoder, Event, EventKind, PoolKey, PoolKind, Recording, RecordingInfo, Replay,
    Sink, SiteId, StreamId, StringId,
};
use vramscope_viewer::app::Session;
use vramscope_viewer::command::Command;
use vramscope_viewer::open::{LoadedFile, RecordingLoader, is_recording};
use vramscope_viewer::protocol::Action;

use samples::Sample;

/// The device of the recordings that tests write, and the first one of most others.
pub(crate) const DEVICE: DeviceId = DeviceId(0);

/// Reads a file; converts one of another format first, as a worker of the page does.
pub(crate) fn load(name: &str, bytes: &[u8]) -> LoadedFile {
    let mut loader = RecordingLoader::default();
    if is_recording(bytes) {
        loader.push(bytes);
    } else {
        let mut job = ImportJob::new(name, None);
        job.push(bytes).expect("a valid file");
        job.finish(&mut ignore_progress, &mut |part| loader.push(&part)).expect("a valid file");
    }
    loader.finish().expect("a valid recording")
}

/// Reads a file of `tests/data`.
pub(crate) fn load_fixture(name: &str) -> LoadedFile {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/data").join(name);
    load(name, &std::fs::read(path).expect("the repository contains the file"))
}

/// Shows a file in a session, and reads all of it.
fn show(name: &str, file: LoadedFile) -> Session {
    let mut session = Session::default();
    session.model.show(name, file).expect("a readable recording");
    while session.work(100_000).expect("a readable recording") {}
    session
}

/// Opens a file in a session, and reads all of it.
pub(crate) fn open_bytes(name: &str, bytes: &[u8]) -> Session {
    show(name, load(name, bytes))
}

/// Opens a file of `tests/data` in a session, and reads all of it.
pub(crate) fn open(name: &str) -> Session {
    show(name, load_fixture(name))
}

/// Opens a sample in a session, and reads all of it.
pub(crate) fn sample_session(sample: Sample) -> Session {
    open_bytes("drawn.vram", &samples::bytes(sample))
}

/// Reads the recording of a sample.
pub(crate) fn sample_recording(sample: Sample) -> Recording {
    let mut recording = Recording::new();
    recording.push(&samples::bytes(sample)).expect("a valid recording");
    recording
}

/// Returns the allocated, active and requested bytes and the number of live blocks at a moment.
pub(crate) fn counters_at(recording: &Recording, event: u64) -> (u64, u64, u64, u64) {
    let mut replay = Replay::new();
    let state = replay.seek(recording, event).expect("a readable recording");
    let device = state.device(DEVICE).expect("the device has events");
    let counters = device.counters();
    (counters.allocated, counters.active, counters.requested, device.blocks().len() as u64)
}

/// Returns the action of the command with this text.
pub(crate) fn command(text: impl AsRef<str>) -> Action {
    let text = text.as_ref();
    Action::Command(Command::parse(text).unwrap_or_else(|error| panic!("{text}: {error}")))
}

/// Returns the chunks of a program that repeatedly allocates and frees 32 blocks, flushed every
/// thousand events.
pub(crate) fn chunks(events: u64) -> Vec<Chunk> {
    let epoch_unix_ns = 1_700_000_000_000_000_000;
    let mut encoder =
        Encoder::new(&RecordingInfo { source: "grown".to_owned(), epoch_unix_ns, ..RecordingInfo::default() });
    encoder.define(&vramscope_trace::Definition::String("step".to_owned()));
    let (stream, pool, site) = (StreamId(0), PoolKey::default_of(PoolKind::Large), SiteId(0));
    for number in 0..events {
        let (round, at) = (number / 64, number % 64);
        let address = 0x7000_0000_0000 + (at.min(63 - at)) * (1 << 20);
        let size = (1 << 20) - (round * 512) % (1 << 19);
        let kind = match number {
            0 => EventKind::SegmentAllocated { address, size: 64 << 20, stream, pool, site },
            _ if number % 1000 == 0 => {
                EventKind::Mark { stage: AnnotationStage::Instant, name: StringId(1), address: 0, site }
            }
            _ if at < 32 => EventKind::BlockAllocated { address, size, requested: size, stream, pool, site },
            _ => EventKind::FreeCompleted { address, site },
        };
        encoder.event(&Event { device: DeviceId(0), time_ns: number * 1000, kind });
        if number % 1000 == 999 {
            encoder.flush();
        }
    }
    encoder.flush();
    encoder.take_output()
}
