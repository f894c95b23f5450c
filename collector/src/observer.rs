//! An out-of-memory observer that writes the recording to a file.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use vramscope_pool::OutOfMemory;

use crate::file::{Keep, RecordingFile};
use crate::hub::Hub;
use crate::recorder::RecorderHandle;

/// Returns an [observer](crate::DevicePool::attach_out_of_memory_observer) that writes the
/// recording to a file at the first out-of-memory; later ones are ignored.
///
/// The file at `path` contains everything that `hub` holds, up to and including the failed request.
/// `recorder` is a handle of the recorder that publishes to the hub. `on_written` receives the
/// path, or the error.
pub fn recording_at_out_of_memory(
    hub: Hub,
    recorder: RecorderHandle,
    path: impl Into<PathBuf>,
    on_written: impl Fn(io::Result<&Path>) + Send + Sync + 'static,
) -> impl Fn(&OutOfMemory) + Send + Sync + 'static {
    let (path, written) = (path.into(), AtomicBool::new(false));
    move |_| {
        if !written.swap(true, Ordering::Relaxed) {
            recorder.flush();
            on_written(write(&hub, &path).map(|_| path.as_path()));
        }
    }
}

/// Writes everything that `hub` holds to a new or truncated file at `path` and returns its size in
/// bytes.
pub(crate) fn write(hub: &Hub, path: &Path) -> io::Result<u64> {
    let file = RecordingFile::create(path, Keep::default()).map_err(|error| error.error)?;
    hub.everything().into_iter().for_each(|chunk| file.append(chunk));
    file.finish().map_err(|error| error.error)
}
