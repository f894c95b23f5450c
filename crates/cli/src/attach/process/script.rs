//! The temporary folder through which a program gets into a process and its result comes back.

use std::fs;
use std::io;
use std::os::unix::fs::chown;
use std::path::Path;

use tempfile::TempDir;

use super::target::TargetProcess;
use crate::attach::literal::python_literal;
use crate::error::{CommandError, Result};

/// The program around the one to run, without its last line's arguments.
const RUN: &str = include_str!("run.py");
/// The most bytes of a result that are read.
const MAX_RESULT_BYTES: u64 = 1 << 20;

/// A temporary folder that only the user of a process can read, with a program for the process.
/// Dropping it deletes the folder; a program that has not started by then does not run.
pub(super) struct ScriptFolder {
    folder: TempDir,
    starter: String,
    starter_path: String,
}

impl ScriptFolder {
    /// Creates the folder with the program `code` for the process.
    pub(super) fn create(process: &TargetProcess, code: &str) -> Result<Self> {
        let failed = |error: io::Error| {
            CommandError::new(format_args!("cannot create a temporary folder for process {}: {error}", process.pid()))
        };
        let folder = tempfile::Builder::new().prefix("vramscope-").tempdir().map_err(failed)?;
        let folder_path = fs::canonicalize(folder.path()).map_err(failed)?;
        let Some(path) = folder_path.to_str() else {
            return Err(failed(io::Error::other(format!("{} is not valid Unicode", folder_path.display()))));
        };
        let script_path = format!("{path}/run.py");
        let starter = starter(&script_path);
        let starter_path = format!("{path}/start.py");
        let attacher = std::process::id();
        let (path, code) = (python_literal(path), python_literal(code));
        let script = RUN.replace("(FOLDER, ATTACHER, PROGRAM)", &format!("({path}, {attacher}, {code})"));
        for (file, text) in [(&script_path, &script), (&starter_path, &starter)] {
            fs::write(file, text).map_err(failed)?;
            give_to(process, file.as_ref()).map_err(failed)?;
        }
        give_to(process, &folder_path).map_err(failed)?;
        Ok(Self { folder, starter, starter_path })
    }

    /// Returns the program that starts a thread with the script: short, and without an effect on
    /// the program in whose middle it runs.
    pub(super) fn starter(&self) -> &str {
        &self.starter
    }

    /// Returns the path of a file with [`starter`](Self::starter).
    pub(super) fn starter_path(&self) -> &str {
        &self.starter_path
    }

    /// Returns true once the program has started.
    pub(super) fn has_started(&self) -> bool {
        self.folder.path().join("started").exists()
    }

    /// Returns the program's result: the text of its name `reply`, or the message of its exception;
    /// `None` while it runs.
    pub(super) fn result(&self) -> Result<Option<std::result::Result<String, String>>> {
        let path = self.folder.path().join("reply");
        let read = || -> io::Result<String> {
            let mut text = String::new();
            io::Read::read_to_string(&mut io::Read::take(fs::File::open(&path)?, MAX_RESULT_BYTES), &mut text)?;
            Ok(text)
        };
        match read() {
            Ok(text) => {
                let (status, text) = text.split_once('\n').unwrap_or_default();
                Ok(Some(if status == "done" { Ok(text.to_owned()) } else { Err(text.to_owned()) }))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(CommandError::file(&path, error)),
        }
    }
}

/// Makes the user of the process the owner of a file or folder.
fn give_to(process: &TargetProcess, path: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    let (uid, gid) = process.owner();
    if fs::metadata(path)?.uid() == uid { Ok(()) } else { chown(path, Some(uid), Some(gid)) }
}

/// Returns a Python program that starts a thread which runs the script at `path`. It defines no
/// names, imports no files and raises nothing, whatever state the process is in.
fn starter(path: &str) -> String {
    let quoted = python_literal(path);
    let thread = format!(
        "try:\n exec(compile(open({quoted},encoding='utf-8').read(),'<vramscope>','exec'),\
         {{'__name__':'vramscope_attach'}})\nexcept BaseException:pass"
    );
    let start = format!("import _thread;_thread.start_new_thread(exec,({},{{}}))", python_literal(&thread));
    format!("try:exec({},{{}})\nexcept BaseException:pass\n", python_literal(&start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starter_is_short() {
        let starter = starter("/tmp/vramscope-abcdef/run.py");
        assert!(starter.len() < 320 && starter.is_ascii(), "{} bytes: {starter}", starter.len());
    }
}
