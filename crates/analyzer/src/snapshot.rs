//! Writes a recording as a PyTorch snapshot.

use std::cell::RefCell;
use std::io::{self, Write};

use vramscope_formats::export::{self, ExportError};
use vramscope_trace::Recording;

use crate::error::AnalysisError;
use crate::request::Observer;

/// Size in bytes from which the parts of the snapshot are passed on.
const PART_BYTES: usize = 1 << 20;

/// Passes written bytes on to an observer.
struct ObserverWriter<'a, O> {
    observer: &'a RefCell<&'a mut O>,
    buffer: Vec<u8>,
}

impl<O: Observer> Write for ObserverWriter<'_, O> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= PART_BYTES {
            self.observer.borrow_mut().part(std::mem::take(&mut self.buffer));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Passes the recording as a pickled snapshot to `observer`.
///
/// # Errors
/// If the recording is damaged, or a device has a number that PyTorch does not support.
pub(crate) fn write_snapshot(recording: &Recording, observer: &mut impl Observer) -> Result<(), AnalysisError> {
    let observer = RefCell::new(observer);
    let mut writer = ObserverWriter { observer: &observer, buffer: Vec::new() };
    let mut progress = |done: u64, total: u64| {
        observer.borrow_mut().progress(done as f64 / total.max(1) as f64, "Saving");
    };
    export::memory_viz_pickle(recording, &mut writer, &mut progress).map_err(|error| match error {
        ExportError::Recording(error) => AnalysisError::Format(error),
        error => AnalysisError::Snapshot(error.to_string()),
    })?;
    observer.borrow_mut().part(writer.buffer);
    Ok(())
}
