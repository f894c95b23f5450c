//! The one recording of a process: a file, the viewers, a hub elsewhere, or all of them.

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use vramscope_collector::{Hub, Outputs, Push, Recorder, RecorderHandle, RecordingFile};
use vramscope_trace::{DeviceId, DeviceInfo, Info};

use crate::console::Tell;
use crate::environment::Wanted;

/// A recording that has begun.
pub(crate) struct Recording {
    /// What the file is called, where there is one.
    name: Option<String>,
    tell: Tell,
    /// `None` once it has been ended.
    recorder: Mutex<Option<Recorder>>,
    /// What sends it to the hub that was named, likewise.
    push: Mutex<Option<Push>>,
    /// A handle to clone, and to put marks through.
    marks: Mutex<RecorderHandle>,
}

impl Recording {
    /// Begins one. The file is written anew; where it cannot be, or there is nobody to record for, `None` or a recording without it.
    pub(crate) fn begin(
        wanted: &Wanted,
        hub: Option<&Hub>,
        alloc_conf: String,
        devices: Vec<DeviceInfo>,
        tell: &Tell,
    ) -> Option<Self> {
        let file = wanted.record.as_ref().and_then(|path| {
            RecordingFile::create(path, wanted.keep).map_err(|error| tell(&format!("{error}; nothing is written"))).ok()
        });
        if file.is_none() && hub.is_none() {
            return None;
        }
        let name = file.as_ref().map(|file| file.name().to_owned());
        let overflow = wanted.overflow(file.is_some());
        let mut outputs = Outputs { file, hub: hub.cloned(), overflow, ..Outputs::default() };
        let theirs = Arc::clone(tell);
        outputs.on_file_error = Some(Box::new(move |error| theirs(&format!("{error}; the recording ends here"))));
        let writer = concat!("vramscope-pluggable ", env!("CARGO_PKG_VERSION")).to_owned();
        let program = program(env::args_os());
        let info = Info { source: program.clone(), writer, alloc_conf, devices, ..Info::default() };
        let (recorder, handle) =
            Recorder::start(info, outputs).map_err(|error| tell(&format!("the recorder: {error}"))).ok()?;
        let push = wanted.push.as_ref().zip(hub).and_then(|(address, hub)| {
            let theirs = Arc::clone(tell);
            let push = Push::start(address.clone(), &program, hub, move |what| theirs(what));
            push.map_err(|error| tell(&format!("push: {error}"))).ok()
        });
        let (recorder, push, marks) = (Mutex::new(Some(recorder)), Mutex::new(push), Mutex::new(handle));
        Some(Self { name, tell: Arc::clone(tell), recorder, push, marks })
    }

    /// A handle for a pool to put events through.
    pub(crate) fn handle(&self) -> RecorderHandle {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records a named moment on each of the devices.
    pub(crate) fn mark(&self, name: &str, devices: impl Iterator<Item = DeviceId>) {
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        devices.for_each(|device| marks.mark(device, name));
    }

    /// Ends it, if it has not been ended; says whether the file, where there is one, is whole.
    pub(crate) fn end(&self) -> bool {
        let recorder = self.recorder.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(summary) = recorder.map(Recorder::stop) else { return true };
        // What is left of it is sent, in so far as there is time.
        drop(self.push.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let (Some(name), None) = (&self.name, &summary.file_error) {
            (self.tell)(&format!("{name}: {} events, {} bytes", summary.events, summary.bytes));
        }
        summary.file_error.is_none()
    }
}

/// The name of the program: of the script or module, where an interpreter runs one. Arguments are nobody else's business.
fn program(mut arguments: impl Iterator<Item = OsString>) -> String {
    let name = |path: OsString| Path::new(&path).file_name().map(|name| name.to_string_lossy().into_owned());
    let first = arguments.next().and_then(name).unwrap_or_default();
    if !first.starts_with("python") {
        return first;
    }
    // Launchers put options before the script: `python -u train.py` is what torchrun runs.
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy();
        let Some(options) = text.strip_prefix('-') else { return name(argument).unwrap_or(first) };
        if options.starts_with(['W', 'X']) {
            if options.len() == 1 {
                arguments.next();
            }
        } else if options.ends_with('m') {
            return arguments.next().and_then(name).unwrap_or(first);
        } else if options.is_empty() || options.ends_with('c') {
            // What follows is the program itself, or it comes through a pipe.
            return first;
        }
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
        check(&["python3", "-u", "-X", "dev", "-Xpm", "runs/train.py", "secret"], "train.py");
        check(&["python3", "-um", "runs.train", "secret"], "runs.train");
        for unnamed in
            [&["python3", "-c", "secret"][..], &["python3", "-", "secret"], &["python3", "-u"], &["python3", "-m"]]
        {
            check(unnamed, "python3");
        }
        check(&["/opt/bin/trainer", "secret"], "trainer");
        check(&[], "");
    }
}
