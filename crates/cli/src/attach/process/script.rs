//! The folders through which a program gets into a process and its result comes back.
//!
//! The outer folder belongs to this command's user and has the program that Python's interface for
//! debuggers starts (`start.py`). The inner folder, `target`, belongs to the process's user and has
//! the program to run and its output. This command accesses both through file descriptors, so that
//! a link or another folder of that name cannot redirect it. All files are created before the inner
//! folder gets its new owner.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};
use sha2::{Digest as _, Sha256};

use super::target::{TargetProcess, start_time};
use super::text_space::SLOT_BYTES;
use crate::attach::literal::python_literal;
use crate::error::{CommandError, Result};
use crate::private_folder::{check_temporary, short_lived_folders};

/// The Python script that runs the program and writes its result, without the arguments in its last
/// line.
const RUN: &str = include_str!("run.py");
/// Maximum number of bytes of a result to read.
const MAX_RESULT_BYTES: u64 = 1 << 20;
/// Number of hexadecimal digits of the digest by which the process checks the script.
const DIGEST_DIGITS: usize = 32;
/// Flags of every file and folder that is opened.
const OPEN_FLAGS: OFlag = OFlag::O_NOFOLLOW.union(OFlag::O_CLOEXEC).union(OFlag::O_NONBLOCK);

/// Name of the inner folder, which belongs to the process's user.
const TARGET: &str = "target";
/// Name of the file in [`TARGET`] with the script.
const SCRIPT: &str = "run.py";
/// Name of a file that exists once the program has started, or will not start any more.
const STARTED: &str = "started";
/// Name of a file with one byte for each thread that was asked to run [`STARTER`] (Python 3.14).
const ASKED: &str = "asked";
/// Name of a file with one byte for each thread that has run [`STARTER`].
const OPENED: &str = "opened";
/// Name of a file that exists once this command no longer wants the program to run.
const WITHDRAWN: &str = "withdrawn";
/// Name of the file with the program's result.
const REPLY: &str = "reply";
/// Name of the file in the outer folder that Python's interface for debuggers runs.
const STARTER: &str = "start.py";

/// The text in a [starter](ScriptFolder::starter) whose digit becomes 0 when it is withdrawn.
const SWITCH: &str = "\\nif 1:";

/// A folder with a program for a process. Dropping it deletes the folder; a program that has not
/// started by then does not run.
pub(super) struct ScriptFolder {
    path: PathBuf,
    outer: OwnedFd,
    target: OwnedFd,
    /// [`ASKED`] and [`OPENED`], which the process may delete; `None` until the program is written.
    counts: Option<(File, File)>,
    /// User and group that own the inner folder and write the reply.
    owner: (u32, u32),
    starter: String,
    is_kept: bool,
}

impl ScriptFolder {
    /// Creates the folder with the program `code` for the process.
    pub(super) fn create(process: &TargetProcess, code: &str) -> Result<Self> {
        let ((uid, _), own_uid) = (process.owner(), geteuid().as_raw());
        // The process only uses folders of its own user or of root.
        if ![0, uid].contains(&own_uid) {
            return Err(CommandError::new(format_args!(
                "process {} belongs to the user with id {uid}: run this command as that user or as root",
                process.pid()
            )));
        }
        let mut errors = Vec::new();
        for parent in short_lived_folders(uid) {
            match Self::create_in(&parent, process, code) {
                Ok(folder) => return Ok(folder),
                Err(error) => errors.push(format!("{}: {error}", parent.display())),
            }
        }
        Err(CommandError::new(format_args!(
            "cannot create a folder for process {}: {}; set TMPDIR to another folder",
            process.pid(),
            errors.join("; ")
        )))
    }

    /// Creates the folder with the program `code` for the process in the folder `parent`.
    pub(super) fn create_in(parent: &Path, process: &TargetProcess, code: &str) -> io::Result<Self> {
        let mut folder = Self::create_empty(parent, process)?;
        folder.write_program(code)?;
        folder.give_away()?;
        Ok(folder)
    }

    /// Creates the folder, which only this command's user can read, with an empty inner folder.
    pub(super) fn create_empty(parent: &Path, process: &TargetProcess) -> io::Result<Self> {
        let parent = fs::canonicalize(parent)?;
        check_temporary(&parent)?;
        let mut builder = tempfile::Builder::new();
        // Without a mode, the folder's permissions would depend on the umask.
        builder.prefix("vramscope-").permissions(fs::Permissions::from_mode(0o700));
        let created = builder.tempdir_in(&parent)?;
        let outer = open_folder(AT_FDCWD, created.path())?;
        mkdirat(&outer, TARGET, Mode::S_IRWXU)?;
        let target = open_folder(&outer, TARGET.as_ref())?;
        let (path, owner) = (created.keep(), process.owner());
        Ok(Self { path, outer, target, counts: None, owner, starter: String::new(), is_kept: false })
    }

    /// Creates the files of the program `code`.
    pub(super) fn write_program(&mut self, code: &str) -> io::Result<()> {
        let Some(path) = self.path.to_str() else {
            return Err(io::Error::other(format!("{} is not valid Unicode", self.path.display())));
        };
        let (attacher, (uid, _)) = (std::process::id(), self.owner);
        let start = start_time(attacher).unwrap_or(0);
        let (folder, code) = (python_literal(path), python_literal(code));
        let script = RUN.replace("(ARGUMENTS)", &format!("({folder}, {uid}, {attacher}, {start}, {code})"));
        self.starter = starter(&format!("{path}/{TARGET}/{SCRIPT}"), &script, uid);
        if self.starter.len() >= SLOT_BYTES {
            return Err(io::Error::other("its name is too long"));
        }
        create_file(&self.target, SCRIPT, script.as_bytes())?;
        self.counts = Some((create_file(&self.target, ASKED, b"")?, create_file(&self.target, OPENED, b"")?));
        create_file(&self.outer, STARTER, self.starter.as_bytes())?;
        Ok(())
    }

    /// Gives the inner folder to the process's user, and lets that user reach it.
    pub(super) fn give_away(&self) -> io::Result<()> {
        let (uid, gid) = self.owner;
        let script = File::from(openat(&self.target, SCRIPT, OPEN_FLAGS, Mode::empty())?);
        if script.metadata()?.uid() != uid {
            let counts = self.counts.iter().flat_map(|(asked, opened)| [asked, opened]);
            [&script].into_iter().chain(counts).try_for_each(|file| fchown(file, Some(uid), Some(gid)))?;
            fchown(&self.target, Some(uid), Some(gid))?;
        }
        let starter = File::from(openat(&self.outer, STARTER, OPEN_FLAGS, Mode::empty())?);
        starter.set_permissions(fs::Permissions::from_mode(0o644))?;
        File::from(self.outer.try_clone()?).set_permissions(fs::Permissions::from_mode(0o711))
    }

    /// Returns the starter: a short Python program that starts a thread with the script. It has no
    /// effect on the program that it interrupts.
    pub(super) fn starter(&self) -> &str {
        &self.starter
    }

    /// Returns the offset in [`starter`](Self::starter) of the byte that withdraws it, and the byte
    /// to write there. A thread that reads the text meanwhile reads the old or the new byte.
    pub(super) fn withdrawal(&self) -> (usize, u8) {
        withdrawal(&self.starter)
    }

    /// Returns the path of a file with [`starter`](Self::starter).
    pub(super) fn starter_path(&self) -> String {
        format!("{}/{STARTER}", self.path.display())
    }

    /// Returns the folder's path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true once the program has started.
    pub(super) fn has_started(&self) -> bool {
        fstatat(&self.target, STARTED, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok()
    }

    /// Adds a thread to the count of threads that have received a request to run the starter. Call
    /// this before the thread receives the request: if this command is killed, the process deletes
    /// the folder once as many threads have run the starter.
    pub(super) fn add_asked(&self) -> Result {
        let added = self.counts().and_then(|(mut asked, _)| asked.write_all(b"."));
        added.map_err(|error| self.count_error(&error))
    }

    /// Subtracts a thread from the count of threads that have received a request to run the
    /// starter, after the request was withdrawn from the thread.
    pub(super) fn remove_asked(&self) -> Result {
        let removed = self.counts().and_then(|(asked, _)| asked.set_len(asked.metadata()?.len().saturating_sub(1)));
        removed.map_err(|error| self.count_error(&error))
    }

    /// Creates the error for a file [`ASKED`] or [`OPENED`] that cannot be accessed.
    fn count_error(&self, error: &io::Error) -> CommandError {
        CommandError::new(format_args!(
            "cannot write the number of threads with a request to {}: {error}: free space on its disk and try again",
            self.path.join(TARGET).join(ASKED).display()
        ))
    }

    /// Returns true if each thread that has received a request to run the starter has done so.
    pub(super) fn is_opened_by_all(&self) -> bool {
        let lens = self.counts().and_then(|(asked, opened)| Ok((asked.metadata()?.len(), opened.metadata()?.len())));
        lens.is_ok_and(|(asked, opened)| opened >= asked)
    }

    /// Returns the files [`ASKED`] and [`OPENED`].
    fn counts(&self) -> io::Result<(&File, &File)> {
        let counts = self.counts.as_ref().map(|(asked, opened)| (asked, opened));
        counts.ok_or_else(|| io::Error::other("internal error: the file has not been created"))
    }

    /// Prevents the program from starting, if it has not started.
    pub(super) fn withdraw(&self) {
        // An error means that the process's user has created the file.
        let _ = create_file(&self.target, WITHDRAWN, b"");
        let _ = create_file(&self.target, STARTED, b"");
    }

    /// Keeps the folder when `self` is dropped. A program that starts later removes it.
    pub(super) fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Returns the program's result: the value of its variable `reply`, or the message of its
    /// exception; `None` while it runs.
    pub(super) fn result(&self) -> Result<Option<std::result::Result<String, String>>> {
        let text = match self.read_reply() {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(CommandError::file(&self.path.join(TARGET).join(REPLY), error)),
        };
        let (status, text) = text.split_once('\n').unwrap_or_default();
        Ok(Some(if status == "done" { Ok(text.to_owned()) } else { Err(text.to_owned()) }))
    }

    /// Reads the reply, which the process's user may have replaced by anything.
    fn read_reply(&self) -> io::Result<String> {
        let file = File::from(openat(&self.target, REPLY, OPEN_FLAGS, Mode::empty()).map_err(|error| match error {
            Errno::ELOOP | Errno::ENXIO => io::Error::other("it is not a regular file"),
            error => error.into(),
        })?);
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        if metadata.uid() != self.owner.0 {
            return Err(io::Error::other(format!("it belongs to the user with id {}", metadata.uid())));
        }
        let mut bytes = Vec::new();
        file.take(MAX_RESULT_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl Drop for ScriptFolder {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        // Errors are ignored: the process's user may have added or removed files.
        for name in [SCRIPT, STARTED, ASKED, OPENED, WITHDRAWN, REPLY, "reply.part"] {
            let _ = unlinkat(&self.target, name, UnlinkatFlags::NoRemoveDir);
        }
        let _ = unlinkat(&self.outer, TARGET, UnlinkatFlags::RemoveDir);
        let _ = unlinkat(&self.outer, STARTER, UnlinkatFlags::NoRemoveDir);
        // Removes nothing but an empty folder.
        let _ = fs::remove_dir(&self.path);
    }
}

/// Opens a folder.
fn open_folder(parent: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    Ok(openat(parent, path, OPEN_FLAGS | OFlag::O_DIRECTORY, Mode::empty())?)
}

/// Creates a file in a folder. Fails if there is one of this name.
fn create_file(folder: &OwnedFd, name: &str, bytes: &[u8]) -> io::Result<File> {
    let flags = OPEN_FLAGS | OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_CREAT | OFlag::O_EXCL;
    let mut file = File::from(openat(folder, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
    file.write_all(bytes)?;
    Ok(file)
}

/// Returns a Python program that starts a thread. The thread runs the file at `path` if its content
/// is `script` and it belongs to the user `uid`. In any state of the process, the program defines
/// no names, imports no files and raises no exception.
fn starter(path: &str, script: &str, uid: u32) -> String {
    let digest: String = Sha256::digest(script).iter().map(|byte| format!("{byte:02x}")).collect();
    let (digest, len) = (&digest[..DIGEST_DIGITS], script.len());
    // The literal becomes part of a text between three single quotes.
    let path = python_literal(path).replace('\'', "\\x27");
    let (flags, regular) = (OPEN_FLAGS.bits(), 0o100_600);
    let thread = format!(
        "try:\n import os,hashlib\n f=os.open({path},{flags});s=os.fstat(f)[0:5:4];t=os.read(f,{len});os.close(f)\n \
         if s==({regular},{uid})and hashlib.sha256(t).hexdigest()[:{DIGEST_DIGITS}]=='{digest}':\
         exec(t,{{'__name__':'vramscope_attach'}})\nexcept BaseException:pass"
    );
    let thread = thread.replace('\\', "\\\\");
    let start = format!("import _thread\nif 1:_thread.start_new_thread(exec,('''{thread}''',{{}}))");
    format!("try:exec({},{{}})\nexcept BaseException:pass\n", python_literal(&start))
}

/// Returns the offset in a starter of the byte that withdraws it, and the byte to write there.
fn withdrawal(starter: &str) -> (usize, u8) {
    let start = starter.find(SWITCH).expect("every starter has a switch");
    (start + SWITCH.len() - 2, b'0')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::test_pythons;

    #[test]
    fn starter_is_short() {
        let path = "/run/user/1000/vramscope-abcdef/target/run.py";
        let starter = starter(path, &"x".repeat(20_000), 4_294_967_295);
        assert!(starter.len() < SLOT_BYTES - 20 && starter.is_ascii(), "{} bytes: {starter}", starter.len());
    }

    #[test]
    fn withdrawn_starter_differs_in_one_digit() {
        let starter = starter("/run/if 1:/run.py", "pass", 0);
        let (offset, byte) = withdrawal(&starter);
        assert_eq!(&starter[offset - 3..=offset + 1], "if 1:");
        assert_eq!(byte, b'0');
    }

    #[test]
    fn killed_command_has_ended_before_its_parent_notices() {
        let functions = RUN.strip_suffix("run(ARGUMENTS)\n").expect("the last line runs the program");
        let program = format!(
            "{functions}\nimport signal\nchild = os.fork()\nif child == 0:\n    while True: signal.pause()\n\
             _, start = read_status(child)\nassert not has_ended(child, start) and has_ended(child, start + 1)\n\
             os.kill(child, signal.SIGKILL)\nos.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)\n\
             assert has_ended(child, start)\nos.waitpid(child, 0)\nassert has_ended(child, start)\n"
        );
        let status = std::process::Command::new("python3").args(["-c", &program]).status().expect("Python starts");
        assert!(status.success());
    }

    #[test]
    fn starter_runs_nothing_but_the_unchanged_script() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (path, ran, other) = (folder.path().join("run.py"), folder.path().join("ran"), folder.path().join("other"));
        let script = format!("open({ran:?}, 'w')\n");
        let uid = fs::metadata(folder.path()).expect("the folder exists").uid();
        let starter = starter(path.to_str().expect("the name is text"), &script, uid);
        let write = |path: &Path, text: &str, mode| {
            fs::write(path, text).expect("the folder is writable");
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("the file is ours");
        };
        let check = |python: &Path, create: &dyn Fn(), expected| {
            for file in [&path, &ran, &other] {
                let _ = fs::remove_file(file);
            }
            create();
            // Runs the function in the main thread, so that the process ends after it.
            let program = format!("import _thread\n_thread.start_new_thread=lambda function,a:function(*a)\n{starter}");
            let status = std::process::Command::new(python).args(["-c", &program]).status().expect("Python starts");
            assert!(status.success());
            assert_eq!(ran.exists(), expected, "{}", python.display());
        };
        for python in test_pythons::supported() {
            check(&python, &|| write(&path, &script, 0o600), true);
            check(&python, &|| (), false);
            check(&python, &|| write(&path, &script.replace("'w'", "'a'"), 0o600), false);
            // The starter does not read bytes that follow the script.
            check(&python, &|| write(&path, &format!("{script}other"), 0o600), true);
            check(&python, &|| write(&path, &script, 0o644), false);
            check(&python, &|| nix::unistd::mkfifo(&path, Mode::S_IRWXU).expect("the folder is writable"), false);
            let link = || {
                write(&other, &script, 0o600);
                std::os::unix::fs::symlink(&other, &path).expect("the folder is writable");
            };
            check(&python, &link, false);
            if nix::unistd::geteuid().is_root() {
                let of_another_user = || {
                    write(&path, &script, 0o600);
                    std::os::unix::fs::chown(&path, Some(uid + 1), None).expect("root may");
                };
                check(&python, &of_another_user, false);
            }
        }
    }
}
