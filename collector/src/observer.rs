//! A ready-made observer of out-of-memory: it writes down the recording so far.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use vramscope_pool::OutOfMemory;

use crate::file::{Keep, RecordingFile};
use crate::hub::Hub;
use crate::recorder::RecorderHandle;

/// An [observer](crate::DevicePool::attach_out_of_memory_observer) that writes everything that `hub` holds to a file, at the first
/// request that there is no room for. `recorder` is a handle of the recorder that publishes to the hub; what has happened up to then is
/// in the file, whole chunks alone, so that it opens like any other recording. `tell` is told how it went.
pub fn recording_at_out_of_memory(
    hub: Hub,
    recorder: RecorderHandle,
    path: impl Into<PathBuf>,
    tell: impl Fn(io::Result<&Path>) + Send + Sync + 'static,
) -> impl Fn(&OutOfMemory) + Send + Sync + 'static {
    let (path, written) = (path.into(), AtomicBool::new(false));
    move |_| {
        if !written.swap(true, Ordering::Relaxed) {
            recorder.flush();
            tell(write(&hub, &path).map(|_| path.as_path()));
        }
    }
}

/// Writes everything that `hub` holds; returns how many bytes that are.
pub(crate) fn write(hub: &Hub, path: &Path) -> io::Result<u64> {
    let file = RecordingFile::create(path, Keep::default()).map_err(|error| error.error)?;
    hub.everything().into_iter().for_each(|chunk| file.append(chunk));
    file.finish().map_err(|error| error.error)
}
