//! Files of every format, read as the page reads them.

use std::path::PathBuf;

use vramscope_formats::ignore_progress;
use vramscope_importer::ImportJob;
use vramscope_viewer::app::Session;
use vramscope_viewer::command::Command;
use vramscope_viewer::open::{LoadedFile, RecordingLoader, is_recording};
use vramscope_viewer::protocol::Action;

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

/// Returns the action of the command with this text.
pub(crate) fn command(text: impl AsRef<str>) -> Action {
    let text = text.as_ref();
    Action::Command(Command::parse(text).unwrap_or_else(|error| panic!("{text}: {error}")))
}
