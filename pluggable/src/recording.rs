//! The one recording of a process: a file, the viewers, or both.

use std::env;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use vramscope_collector::{Hub, Outputs, Recorder, RecorderHandle};
use vramscope_trace::{DeviceId, DeviceInfo, Event, EventKind, Info, Interner, Sink, Stage};

use crate::console::Tell;

/// A recording that has begun.
pub(crate) struct Recording {
    path: Option<PathBuf>,
    tell: Tell,
    /// `None` once it has been ended.
    recorder: Mutex<Option<Recorder>>,
    /// A handle to clone, and to put marks through.
    marks: Mutex<(RecorderHandle, Interner)>,
}

impl Recording {
    /// Begins one. The file is written anew; where it cannot be, or there is nobody to record for, `None` or a recording without it.
    pub(crate) fn begin(
        path: Option<&Path>,
        hub: Option<&Hub>,
        alloc_conf: String,
        devices: Vec<DeviceInfo>,
        tell: &Tell,
    ) -> Option<Self> {
        let file = path.and_then(|path| {
            create(path).map_err(|error| tell(&format!("{}: {error}; nothing is written", path.display()))).ok()
        });
        if file.is_none() && hub.is_none() {
            return None;
        }
        let path = path.filter(|_| file.is_some()).map(Path::to_owned);
        let mut outputs = Outputs { hub: hub.cloned(), ..Outputs::default() };
        if let (Some(file), Some(path)) = (file, path.clone()) {
            let file: Box<dyn Write + Send> = Box::new(file);
            let tell = Arc::clone(tell);
            outputs.file = Some(file);
            outputs.on_file_error = Some(Box::new(move |error| {
                tell(&format!("{}: {error}; the recording ends here", path.display()));
            }));
        }
        let writer = concat!("vramscope-pluggable ", env!("CARGO_PKG_VERSION")).to_owned();
        let info = Info { source: program(env::args_os()), writer, alloc_conf, devices, ..Info::default() };
        let (recorder, handle) =
            Recorder::start(info, outputs).map_err(|error| tell(&format!("the recorder: {error}"))).ok()?;
        let marks = Mutex::new((handle, Interner::default()));
        Some(Self { path, tell: Arc::clone(tell), recorder: Mutex::new(Some(recorder)), marks })
    }

    /// A handle for a pool to put events through.
    pub(crate) fn handle(&self) -> RecorderHandle {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Records a named moment on each of the devices.
    pub(crate) fn mark(&self, name: &str, devices: impl Iterator<Item = DeviceId>) {
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        let (handle, names) = &mut *marks;
        let name = names.string(name);
        for definition in names.take_fresh() {
            handle.define(&definition);
        }
        for device in devices {
            let time_ns = handle.now_ns();
            handle.event(&Event { device, time_ns, kind: EventKind::Mark { stage: Stage::Instant, name } });
        }
    }

    /// Ends it, if it has not been ended; says whether the file, where there is one, is whole.
    pub(crate) fn end(&self) -> bool {
        let recorder = self.recorder.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(summary) = recorder.map(Recorder::stop) else { return true };
        if let (Some(path), None) = (&self.path, &summary.file_error) {
            (self.tell)(&format!("{}: {} events, {} bytes", path.display(), summary.events, summary.bytes));
        }
        summary.file_error.is_none()
    }
}

/// Makes the file empty, unless another process is writing it, as when several were started with the same variable.
fn create(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    // Only a file can be locked and made empty; a pipe need not be.
    if file.metadata()?.is_file() {
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Err(io::Error::other("another process is recording to it; give each its own"));
        }
        file.set_len(0)?;
    }
    Ok(file)
}

/// The name of the program: of the script, where an interpreter runs one. Arguments are nobody else's business.
fn program(mut arguments: impl Iterator<Item = std::ffi::OsString>) -> String {
    let name = |path: std::ffi::OsString| {
        Path::new(&path).file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    };
    let first = arguments.next().map(name).unwrap_or_default();
    if first.starts_with("python") {
        let script = arguments.next().map(name).filter(|script| !script.is_empty() && !script.starts_with('-'));
        return script.unwrap_or(first);
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_the_script_and_says_nothing_of_its_arguments() {
        let check = |arguments: &[&str], expected: &str| {
            assert_eq!(program(arguments.iter().map(Into::into)), expected);
        };
        check(&["/usr/bin/python3.12", "runs/train.py", "--key", "secret"], "train.py");
        check(&["python3", "-m", "train"], "python3");
        check(&["/opt/bin/trainer", "secret"], "trainer");
        check(&[], "");
    }

    #[test]
    fn a_file_that_is_being_written_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.vram");
        let mut file = create(&path).expect("a new file");
        file.write_all(b"begun").expect("room");
        let refused = create(&path).expect_err("it is locked");
        assert!(refused.to_string().contains("another process"), "{refused}");
        assert_eq!(std::fs::read(&path).expect("it is there"), b"begun");
        drop(file);
        drop(create(&path).expect("nobody writes it any more"));
        assert_eq!(std::fs::read(&path).expect("it is there"), b"");
    }
}
