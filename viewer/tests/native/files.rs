//! Files of every format, read as the page reads them.

use vramscope_formats::ignore_progress;
use vramscope_importer::ImportJob;
use vramscope_viewer::open::{LoadedFile, RecordingLoader, is_recording};

/// Reads a file; converts one of another format first, as a worker of the page does.
pub(crate) fn load(name: &str, bytes: &[u8]) -> LoadedFile {
    let mut loader = RecordingLoader::default();
    let mut notes = Vec::new();
    if is_recording(bytes) {
        loader.push(bytes);
    } else {
        let mut job = ImportJob::new(name, None);
        job.push(bytes).expect("a valid file");
        let summary = job.finish(&mut ignore_progress, &mut |part| loader.push(&part)).expect("a valid file");
        notes.extend(summary.into_iter().flat_map(|summary| summary.notes));
    }
    LoadedFile { notes, ..loader.finish().expect("a valid recording") }
}
