//! The recording of a process: to a file, to viewers, to a shared server, or to all of them.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use vramscope_trace::{ByteSize, Count, DeviceId, RecordingInfo};

use super::Log;
use super::options::RecordingOptions;
use crate::file::RecordingFile;
use crate::hub::Hub;
use crate::observer;
use crate::process::Rank;
use crate::push::Push;
use crate::recorder::{Outputs, Recorder, RecorderHandle};

/// The running recording of all devices of this process: its recorder, its file, and the push to a
/// shared server.
pub struct ProcessRecording {
    file_name: Option<String>,
    /// True if the options name a file that could not be created.
    lacks_file: bool,
    log: Log,
    /// `None` once the recording has ended.
    recorder: Mutex<Option<Recorder>>,
    /// `None` without a server to push to, and once the recording has ended.
    push: Mutex<Option<Push>>,
    /// The handle that is cloned for each pool and records marks.
    handle: Mutex<RecorderHandle>,
}

impl ProcessRecording {
    /// Starts the recording. Its header has the fields of `info`, and this program as its source.
    /// Returns `None` if the recording has neither a file nor a hub, or the recorder cannot start;
    /// a file that cannot be created is logged.
    pub fn start(options: &RecordingOptions, hub: Option<&Hub>, info: RecordingInfo, log: &Log) -> Option<Self> {
        let file = options.record.as_ref().and_then(|path| {
            RecordingFile::create(path, options.keep).map_err(|error| log(&format!("{error}; no file is written"))).ok()
        });
        if file.is_none() && hub.is_none() {
            return None;
        }
        let lacks_file = options.record.is_some() && file.is_none();
        let file_name = file.as_ref().map(|file| file.name().to_owned());
        let overflow = options.overflow(file.is_some());
        let redact = options.redact;
        let mut outputs = Outputs { file, hub: hub.cloned(), overflow, redact, ..Outputs::default() };
        let error_log = Arc::clone(log);
        outputs.on_file_error = Some(Box::new(move |error| error_log(&format!("{error}; the file ends here"))));
        let program = program_name(env::args_os());
        let info = RecordingInfo { source: program.clone(), ..info };
        let (recorder, handle) =
            Recorder::start(info, outputs).map_err(|error| log(&format!("cannot start the recorder: {error}"))).ok()?;
        let push = options.push.as_ref().zip(hub).and_then(|(address, hub)| {
            let rank = Rank::from_env();
            let rank = if rank == options.parent_rank { Rank::default() } else { rank };
            let push = Push::start(address.clone(), &program, rank, hub);
            push.map_err(|error| log(&format!("cannot start to push: {error}"))).ok()
        });
        let (recorder, push, handle) = (Mutex::new(Some(recorder)), Mutex::new(push), Mutex::new(handle));
        Some(Self { file_name, lacks_file, log: Arc::clone(log), recorder, push, handle })
    }

    /// Returns a new handle, through which one pool sends its events to the recorder.
    pub fn handle(&self) -> RecorderHandle {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records the mark `name` (a named moment) on each of the devices.
    pub fn mark(&self, name: &str, devices: impl Iterator<Item = DeviceId>) {
        let mut handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        devices.for_each(|device| handle.mark(device, name));
    }

    /// Writes everything that `hub` holds to a new or truncated file at `path`, up to the events
    /// that were recorded before the call. Returns the file's size in bytes. The hub must be that
    /// of the recording; it keeps the newest part of a long one.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, hub: &Hub, path: &Path) -> io::Result<u64> {
        self.handle().flush();
        observer::write(hub, path)
    }

    /// Ends the connection to the shared server. The recording goes on.
    pub fn end_push(&self) {
        drop(self.push.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Ends the recording, completes its file and sends the rest to the shared server. Returns
    /// false if the file is incomplete or could not be created, true otherwise and if the recording
    /// ended before.
    pub fn stop(&self) -> bool {
        let recorder = self.recorder.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(summary) = recorder.map(Recorder::stop) else { return true };
        // Dropping the push sends the rest of the recording, for at most two seconds.
        self.end_push();
        if let (Some(name), None) = (&self.file_name, &summary.file_error) {
            let events = Count(summary.events).of("event", "events");
            (self.log)(&format!("{name}: {events}, {}", ByteSize(summary.bytes)));
        }
        summary.file_error.is_none() && !self.lacks_file
    }
}

/// Name of the Python module of vramscope, which runs and records another script or module.
const OWN_MODULE: &str = "vramscope";

/// Returns the name of the program from its command line: of the script or module if Python runs
/// one. The other arguments are left out, because they may contain secrets.
fn program_name(mut arguments: impl Iterator<Item = OsString>) -> String {
    let name = |path: OsString| Path::new(&path).file_name().map(|name| name.to_string_lossy().into_owned());
    let first = arguments.next().and_then(name).unwrap_or_default();
    if !first.starts_with("python") {
        return first;
    }
    // Launchers pass options before the script: torchrun runs `python -u train.py`.
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy();
        let Some(options) = text.strip_prefix('-') else { return name(argument).unwrap_or(first) };
        if options.starts_with(['W', 'X']) {
            if options.len() == 1 {
                arguments.next();
            }
        } else if options.ends_with('m') {
            let module = arguments.next().and_then(name).unwrap_or(first);
            let script = if module == OWN_MODULE { watched_script(arguments).and_then(name) } else { None };
            return script.unwrap_or(module);
        } else if options.is_empty() || options.ends_with('c') {
            // The program is an argument or comes from stdin.
            return first;
        }
    }
    first
}

/// Returns the script or module that `python -m vramscope` runs; `arguments` follow the module.
fn watched_script(mut arguments: impl Iterator<Item = OsString>) -> Option<OsString> {
    loop {
        let argument = arguments.next()?;
        let text = argument.to_string_lossy();
        if !text.starts_with('-') {
            return Some(argument);
        }
        // Each long option has a value.
        if text.starts_with("--") && text.len() > 2 && !text.contains('=') {
            arguments.next();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_name_is_the_script_without_its_arguments() {
        let check = |arguments: &[&str], expected: &str| {
            assert_eq!(program_name(arguments.iter().map(Into::into)), expected);
        };
        check(&["/usr/bin/python3.12", "runs/train.py", "--key", "secret"], "train.py");
        check(&["python3", "-u", "-X", "dev", "-Xpm", "runs/train.py", "secret"], "train.py");
        check(&["python3", "-um", "runs.train", "secret"], "runs.train");
        check(&["python3", "-um", "vramscope", "--listen", "[::1]:0", "--stacks=all", "runs/train.py"], "train.py");
        check(&["python3", "-m", "vramscope", "--", "runs/train.py", "secret"], "train.py");
        check(&["python3", "-m", "vramscope", "-m", "runs.train", "secret"], "runs.train");
        check(&["python3", "-m", "vramscope"], "vramscope");
        for unnamed in
            [&["python3", "-c", "secret"][..], &["python3", "-", "secret"], &["python3", "-u"], &["python3", "-m"]]
        {
            check(unnamed, "python3");
        }
        check(&["/opt/bin/trainer", "secret"], "trainer");
        check(&[], "");
    }
}
