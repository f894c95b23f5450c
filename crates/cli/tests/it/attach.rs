//! Tests of `attach` and `detach` with a fake Python package, which needs no PyTorch.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::process::{Server, run, vramscope, wait_until};
use crate::test_pythons;

/// The fake package's module, which logs its calls to the file in the environment variable `CALLS`.
const ATTACH_MODULE: &str = "\
import os

class AttachError(RuntimeError):
    pass

def log(text):
    with open(os.environ['CALLS'], 'a') as file:
        file.write(text + '\\n')

def check():
    log('check')
    if 'REFUSE' in os.environ:
        raise AttachError(os.environ['REFUSE'])
    return 'PyTorch 2.9.0, Python 3.12.1'

def start(push_url, stacks, attacher):
    log(f'start {push_url} {stacks} {attacher}')
    return 'waiting'

def stop(missing_ok=False):
    log(f'stop {missing_ok}')
";

/// A program that computes on four threads and prints a digest once stdin is closed.
const COMPUTE: &str = "\
import hashlib, sys, threading
ROUNDS = 20000
def work(number):
    digest = bytes([number])
    for _ in range(ROUNDS):
        digest = hashlib.sha256(digest).digest()
    results[number] = digest
def all_digests():
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return hashlib.sha256(b''.join(results[number] for number in range(4))).hexdigest()
def wait():
    global closed
    sys.stdin.read()
    closed = True
results, closed, digests = {}, False, set()
print('ready', flush=True)
threading.Thread(target=wait).start()
while not closed:
    digests.add(all_digests())
print(' '.join(digests), flush=True)";

/// The output of [`COMPUTE`]: the digest of its computation.
const DIGEST: &str = "dbea7959023d416f577e56d6ee9ab8288f738edc6b094ca920c35a33c4539e35";

/// A running Python program, and a folder with the package. Dropping it kills the process.
struct Program {
    child: Child,
    stdout: BufReader<ChildStdout>,
    folder: TempDir,
}

impl Program {
    /// Starts the program with further environment variables.
    fn start(python: &Path, variables: &[(&str, &str)]) -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        fs::create_dir(folder.path().join("vramscope")).expect("the folder is writable");
        for (name, text) in [("__init__.py", ""), ("_attach.py", ATTACH_MODULE)] {
            fs::write(folder.path().join("vramscope").join(name), text).expect("the folder is writable");
        }
        let mut command = Command::new(python);
        command.args(["-c", COMPUTE]).envs(variables.iter().copied()).env("CALLS", folder.path().join("calls"));
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{}: {error}", python.display()));
        let mut stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("stdout is text");
        assert_eq!(line, "ready\n", "{}", python.display());
        Self { child, stdout, folder }
    }

    /// Returns `attach` or `detach` for the program.
    fn command(&self, name: &str, options: &[&str]) -> Command {
        let mut command = vramscope([name, &self.child.id().to_string(), "--package"]);
        // Killed commands leave their temporary folders behind, so they go to this folder.
        command.arg(self.folder.path()).args(options).env("TMPDIR", self.folder.path());
        command
    }

    /// Returns the calls of the package's functions so far.
    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.folder.path().join("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Ends the program and checks that its computation and its messages are as without `attach`.
    #[track_caller]
    fn check_result(mut self) {
        drop(self.child.stdin.take());
        let (mut output, mut errors) = (String::new(), String::new());
        self.stdout.read_to_string(&mut output).expect("stdout is text");
        self.child.stderr.take().expect("stderr is piped").read_to_string(&mut errors).expect("stderr is text");
        assert_eq!((output.trim_end(), errors.as_str()), (DIGEST, ""));
        assert!(self.child.wait().expect("it is a child").success());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn attach_pushes_until_ctrl_c_and_leaves_the_program_alone() {
    for python in test_pythons::supported() {
        let program = Program::start(&python, &[]);
        let mut attach = Server::start_command(program.command("attach", &["--stacks", "none"]));
        wait_until("the session starts", || program.calls().len() == 2);
        let head = attach.get("/healthz").0;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        let calls = program.calls();
        let start = format!("start {} none ", attach.url.replacen("http", "ws", 1));
        assert!(calls[0] == "check" && calls[1].starts_with(&start), "{calls:?} {}", attach.url);
        thread::sleep(Duration::from_millis(100));
        let (status, stderr) = attach.interrupt();
        assert!(status.success(), "{stderr}");
        let attached = format!("attached to process {}: PyTorch 2.9.0, Python 3.12.1", program.child.id());
        assert!(stderr.contains(&attached) && stderr.contains("the recording begins when it does"), "{stderr}");
        assert_eq!(program.calls().last().map(String::as_str), Some("stop True"));
        let detached = program.command("detach", &[]).output().expect("the binary runs");
        assert!(detached.status.success(), "{detached:?}");
        assert_eq!(program.calls().last().map(String::as_str), Some("stop False"));
        program.check_result();
    }
}

#[test]
fn attach_ends_after_its_time() {
    let program = Program::start(Path::new("python3"), &[]);
    let file = program.folder.path().join("run.vram");
    let mut command = program.command("attach", &["--for", "1s", "--no-open", "--listen", "127.0.0.1:0", "--record"]);
    let output = command.arg(&file).output().expect("the binary runs");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && stderr.contains("run.vram: 0 events"), "{stderr}");
    assert_eq!(program.calls().last().map(String::as_str), Some("stop True"));
    program.check_result();
}

#[test]
fn refusal_of_the_process_is_the_error_and_keeps_an_earlier_recording() {
    let program = Program::start(Path::new("python3"), &[("REFUSE", "it has not imported PyTorch")]);
    let file = program.folder.path().join("run.vram");
    fs::write(&file, "earlier").expect("the folder is writable");
    let mut command = program.command("attach", &["--no-open", "--listen", "127.0.0.1:0", "--record"]);
    let output = command.arg(&file).output().expect("the binary runs");
    let message = format!("vramscope: process {}: it has not imported PyTorch\n", program.child.id());
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned()), (Some(2), message));
    assert!(output.stdout.is_empty());
    assert_eq!(fs::read_to_string(file).expect("the file exists"), "earlier");
    program.check_result();
}

#[test]
fn unsuitable_arguments_are_errors() {
    let check = |arguments: &[&str], expected: &str| {
        let finished = run(arguments);
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), ""), "{finished:?}");
        assert!(finished.stderr.lines().count() == 1 && finished.stderr.contains(expected), "{finished:?}");
    };
    check(&["attach"], "PID");
    check(&["attach", "4294967295"], "there is no process 4294967295");
    check(&["detach", "4294967295"], "there is no process 4294967295");
    check(&["attach", &std::process::id().to_string()], "is not a Python process");
    let program = Program::start(Path::new("python3"), &[]);
    let pid = program.child.id().to_string();
    check(&["attach", &pid, "--package", "/nowhere"], "/nowhere: No such file");
    check(&["attach", &pid, "--package", "/"], "/: has no Python package vramscope");
    check(&["attach", &pid, "--stacks", "rust"], "rust");
    check(&["attach", &pid], "its Python has no package vramscope: install it there");
    check(&["attach", &pid, "--keep", "1h"], "--record");
    program.check_result();
}

/// Kills the command at many moments: the process must never be affected.
#[test]
fn killed_attach_leaves_the_program_alone() {
    let mut random = 5_u64;
    for python in test_pythons::supported() {
        let program = Program::start(&python, &[]);
        for _ in 0..50 {
            // A linear congruential generator: the moments spread over the command's first 60 ms.
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let delay = Duration::from_micros((random >> 33) % 60_000);
            let mut command = program.command("attach", &["--no-open", "--listen", "127.0.0.1:0"]);
            let mut attach = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary runs");
            thread::sleep(delay);
            attach.kill().expect("it is a child");
            attach.wait().expect("it was killed");
        }
        let start = Instant::now();
        let detached = program.command("detach", &[]).output().expect("the binary runs");
        assert!(detached.status.success(), "{}: {detached:?}", python.display());
        println!("{}: detached after {:?}, {} calls", python.display(), start.elapsed(), program.calls().len());
        program.check_result();
    }
}
