//! Starting the binary and talking to it.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A command of the binary.
pub(crate) fn vramscope<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vramscope"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// A fixture of the repository.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name)
}

/// What a finished command came to.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Finished {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("the binary prints text");
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

/// Runs a command to its end.
pub(crate) fn run<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Finished {
    vramscope(arguments).output().expect("the binary runs").into()
}

/// A command that serves. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    pub(crate) url: String,
    stderr: Option<ChildStderr>,
}

impl Server {
    /// Starts it on a free port, and waits for its address.
    #[track_caller]
    pub(crate) fn start<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Self {
        Self::start_command(vramscope(arguments))
    }

    /// Likewise, with what the command has in its environment.
    #[track_caller]
    pub(crate) fn start_command(mut command: Command) -> Self {
        command.args(["--listen", "127.0.0.1:0"]);
        Self::of(command)
    }

    /// Likewise, of a command that says itself where it listens.
    #[track_caller]
    pub(crate) fn of(mut command: Command) -> Self {
        command.arg("--no-open").stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let stderr = child.stderr.take();
        let mut line = String::new();
        stdout.read_line(&mut line).expect("stdout is text");
        // Whatever it prints later is read, so that it never waits for a reader.
        std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
        let mut server = Self { child, url: String::new(), stderr };
        match line.trim_end().strip_prefix("listening: ") {
            Some(url) => server.url = url.to_owned(),
            None => panic!("{line:?} is not its address; it said {}", server.interrupt().1),
        }
        server
    }

    /// What Ctrl-C does; waits for the end.
    pub(crate) fn interrupt(&mut self) -> (ExitStatus, String) {
        interrupt(&self.child);
        let status = wait(&mut self.child);
        let mut said = String::new();
        if let Some(mut stderr) = self.stderr.take() {
            stderr.read_to_string(&mut said).expect("stderr is text");
        }
        (status, said)
    }

    /// The token in its address, if there is one.
    pub(crate) fn token(&self) -> Option<&str> {
        self.url.split_once("?token=").map(|(_, token)| token)
    }

    /// Its address and port.
    pub(crate) fn address(&self) -> &str {
        self.url.trim_start_matches("http://").split('/').next().expect("an address")
    }

    /// The answer to a request for `path`: its head and its body.
    pub(crate) fn get(&self, path: &str) -> (String, Vec<u8>) {
        self.ask("GET", path, "")
    }

    /// The answer to a request: its head and its body.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> (String, Vec<u8>) {
        let (address, len) = (self.address(), body.len());
        let mut stream = TcpStream::connect(address).expect("the server listens");
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {len}\r\nConnection: close");
        stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).expect("the request is small");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("the server answers");
        let end = answer.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
        (String::from_utf8_lossy(&answer[..end]).into_owned(), answer[end + 4..].to_vec())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended before; then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends SIGINT.
pub(crate) fn interrupt(child: &Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(sent.expect("there is a kill command").success(), "the program is not running any more");
}

/// Waits for a program to end by itself.
pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().expect("it is a child of this program") {
            return status;
        }
        if Instant::now() > deadline {
            child.kill().expect("it is still running");
            panic!("still running after {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until `is_so`.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not in {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
