//! Runs programs in processes of every Python version that this machine has.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::PythonProcess;
use crate::attach::test_pythons;
use crate::attach::wait::Wait;
use crate::error::Result;

/// A program that computes.
const LOOP: &str = "n = 0\nwhile True: n += 1";
/// A program that waits outside of Python most of the time.
const SLEEP: &str = "import time\nwhile True: time.sleep(0.3)";
/// A program whose threads compute, and whose main thread only waits for them.
const JOINED_THREADS: &str = "\
import threading
def work():
    n = 0
    while True: n += 1
threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()";
/// A program with many threads that start, wait and end all the time.
const SHORT_THREADS: &str = "\
import threading, time
def work():
    time.sleep(0.002)
while True:
    threads = [threading.Thread(target=work) for _ in range(20)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()";

/// A running Python program, with pipes for its input and output. Dropping it kills the process.
pub(super) struct Program {
    pub(super) child: Child,
    pub(super) stdout: BufReader<ChildStdout>,
}

impl Program {
    /// Starts `program` and waits until its interpreter runs it.
    pub(super) fn start(python: &Path, program: &str) -> Self {
        let program = format!("print('ready', flush=True)\n{program}");
        let mut command = Command::new(python);
        command.args(["-c", &program]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", python.display()));
        let mut stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("stdout is text");
        assert_eq!(line, "ready\n", "{}", python.display());
        Self { child, stdout }
    }

    pub(super) fn find(&self) -> PythonProcess {
        PythonProcess::find(self.child.id()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Waits until the program waits in a system call, outside of Python, for a line of input.
    pub(super) fn wait_until_reading(&self) {
        let path = format!("/proc/{}/syscall", self.child.id());
        // The system call's number (`read` is 0) and its first argument (stdin is 0).
        while !std::fs::read_to_string(&path).expect("the process runs").starts_with("0 0x0 ") {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the wait of a program that reads a line.
    pub(super) fn send_line(&mut self) {
        self.child.stdin.as_mut().expect("stdin is piped").write_all(b"\n").expect("the program reads it");
    }

    /// Kills the process and returns what it printed to stderr.
    pub(super) fn end(mut self) -> String {
        let _ = self.child.kill();
        let mut text = String::new();
        let mut stderr = self.child.stderr.take().expect("stderr is piped");
        stderr.read_to_string(&mut text).expect("stderr is text");
        text
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a program in the process; fails after `timeout`.
fn run_within(process: &PythonProcess, code: &str, timeout: Duration) -> Result<String> {
    process.run(code, &Wait { timeout, on_message: &|message| println!("{message}"), is_cancelled: &|| false })
}

/// Runs a program in the process.
fn run(process: &PythonProcess, code: &str) -> Result<String> {
    run_within(process, code, Duration::from_secs(30))
}

/// Calls `test` for every interpreter with every kind of program. Its arguments are the
/// interpreter's path, the kind's name and the program.
fn for_each_program(mut test: impl FnMut(&Path, &str, &str)) {
    let programs =
        [("loop", LOOP), ("sleep", SLEEP), ("joined threads", JOINED_THREADS), ("short threads", SHORT_THREADS)];
    for python in test_pythons::supported() {
        for (name, program) in programs {
            test(&python, name, program);
        }
    }
}

#[test]
fn program_runs_in_every_version() {
    for_each_program(|python, name, program| {
        // Up to Python 3.11 only the main thread can run the request.
        let target = Program::start(python, program);
        let process = target.find();
        if name == "joined threads" && process.python_minor() < 12 {
            println!("SKIPPED: {}: {name}", python.display());
            return;
        }
        let start = Instant::now();
        let reply = run(&process, "import sys, os; reply = f'{sys.version_info[1]} {os.getpid()}'");
        let expected = format!("{} {}", process.python_minor(), target.child.id());
        assert_eq!(reply.unwrap_or_else(|error| panic!("{}: {name}: {error}", python.display())), expected);
        println!("Python 3.{}: {name}: {:?}", process.python_minor(), start.elapsed());
        assert_eq!(target.end(), "", "{}: {name}", python.display());
    });
}

#[test]
fn exception_is_reported_and_leaves_the_process_alone() {
    for python in test_pythons::supported() {
        let target = Program::start(&python, LOOP);
        let process = target.find();
        let error = run(&process, "raise ValueError('too\\nlarge')").expect_err("the program raises");
        let expected = format!("process {}: ValueError: too large", target.child.id());
        assert_eq!(error.to_string(), expected, "{}", python.display());
        let error = run(&process, "a b").expect_err("the program is not Python");
        assert!(error.to_string().contains("SyntaxError"), "{error}");
        assert_eq!(run(&process, "reply = '\\u00e4 \\U0001f600'").expect("the process still runs"), "\u{e4} \u{1f600}");
        let names = run(&process, "import __main__; reply = sorted(vars(__main__))").expect("the process still runs");
        let own = "['__annotations__', '__builtins__', '__doc__', '__loader__', '__name__', '__package__', '__spec__'";
        let names = names.replace("'__annotations__', ", "");
        assert_eq!(names.trim_end_matches(", 'n']"), own.replace("'__annotations__', ", ""), "{}", python.display());
        assert_eq!(target.end(), "", "{}", python.display());
    }
}

#[test]
fn hundred_programs_run_one_after_another() {
    for python in test_pythons::supported() {
        let target = Program::start(&python, SHORT_THREADS);
        let process = target.find();
        let mut slowest = Duration::ZERO;
        for number in 0..100 {
            let start = Instant::now();
            let reply = run(&process, &format!("reply = {number} + 1")).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(reply, (number + 1).to_string());
            slowest = slowest.max(start.elapsed());
        }
        println!("Python 3.{}: slowest of 100: {slowest:?}", process.python_minor());
        assert_eq!(target.end(), "", "{}", python.display());
    }
}

#[test]
fn process_that_does_not_answer_is_reported_and_continues() {
    let program = format!("import os; os.read(0, 1)\nprint('done', flush=True)\n{SLEEP}");
    for python in test_pythons::supported() {
        let mut target = Program::start(&python, &program);
        target.wait_until_reading();
        let process = target.find();
        let error = run_within(&process, "reply = 'late'", Duration::from_millis(1200)).expect_err("it waits");
        let error = error.to_string();
        assert!(error.contains("did not answer within") && error.contains("is in a long call"), "{error}");
        target.send_line();
        let mut line = String::new();
        target.stdout.read_line(&mut line).expect("stdout is text");
        assert_eq!(line, "done\n", "{}", python.display());
        assert_eq!(run(&process, "reply = 'now'").expect("the process answers"), "now");
        assert_eq!(target.end(), "", "{}", python.display());
    }
}

#[test]
fn unsuitable_processes_are_refused() {
    let check = |pid: u32, expected: &str| {
        let error = PythonProcess::find(pid).map(|_| ()).expect_err("the process is refused").to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(0, "there is no process 0");
    check(u32::MAX, "there is no process 4294967295");
    check(std::process::id(), "is this vramscope command");
    let mut sleep = Command::new("sleep").arg("30").spawn().expect("sleep exists");
    check(sleep.id(), "(sleep) is not a Python process");
    sleep.kill().expect("it runs");
    sleep.wait().expect("it was killed");
    check(sleep.id(), "there is no process");
    for (version, python) in test_pythons::of_pyenv() {
        let expected = match version {
            (2, 7) => "is not a Python process",
            (3, 8 | 9) => "Python 3.9 or older",
            _ => continue,
        };
        let program = "import sys, time\nsys.stdout.write('ready\\n'); sys.stdout.flush(); time.sleep(30)";
        let child = Command::new(&python).args(["-c", program]).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("Python starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("stdout is text");
        check(child.id(), expected);
        child.kill().expect("it runs");
        child.wait().expect("it was killed");
    }
}
