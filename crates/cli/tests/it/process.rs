//! Functions for tests that start the binary and send requests to it.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// Maximum time of any wait, sufficient for a slow machine.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Returns a command that runs the binary.
pub(crate) fn vramscope<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vramscope"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Returns the path of a test file of the repository.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name)
}

/// Exit code and output of a finished command.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Finished {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("the output is text");
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

/// Runs a command until it ends.
pub(crate) fn run<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Finished {
    vramscope(arguments).output().expect("the binary runs").into()
}

/// A running command that serves the page. Dropping it kills the process.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    pub(crate) url: String,
    stderr: Option<ChildStderr>,
}

impl Server {
    /// Starts a command on a free port and waits for its address.
    #[track_caller]
    pub(crate) fn start<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Self {
        Self::start_command(vramscope(arguments))
    }

    /// Starts a prepared command on a free port and waits for its address.
    #[track_caller]
    pub(crate) fn start_command(mut command: Command) -> Self {
        command.args(["--listen", "127.0.0.1:0"]);
        Self::start_listening(command)
    }

    /// Starts a prepared command that has its own `--listen`, and waits for its address.
    #[track_caller]
    pub(crate) fn start_listening(mut command: Command) -> Self {
        command.arg("--no-open").stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let stderr = child.stderr.take();
        let mut line = String::new();
        stdout.read_line(&mut line).expect("stdout is text");
        // Reads later output, so that the process never blocks on a full pipe.
        std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
        let mut server = Self { child, url: String::new(), stderr };
        match line.trim_end().strip_prefix("listening: ") {
            Some(url) => server.url = url.to_owned(),
            None => panic!("{line:?} is not an address; stderr: {}", server.interrupt().1),
        }
        server
    }

    /// Sends SIGINT and waits for the end. Returns the exit status and stderr.
    pub(crate) fn interrupt(&mut self) -> (ExitStatus, String) {
        interrupt(&self.child);
        let status = wait(&mut self.child);
        let mut text = String::new();
        if let Some(mut stderr) = self.stderr.take() {
            stderr.read_to_string(&mut text).expect("stderr is text");
        }
        (status, text)
    }

    /// Returns the token in the address, if it has one.
    pub(crate) fn token(&self) -> Option<&str> {
        self.url.split_once("?token=").map(|(_, token)| token)
    }

    /// Returns host and port.
    pub(crate) fn address(&self) -> &str {
        self.url.trim_start_matches("http://").split('/').next().expect("split() returns at least one part")
    }

    /// Sends a GET request and returns head and body of the response.
    pub(crate) fn get(&self, path: &str) -> (String, Vec<u8>) {
        self.request("GET", path, "")
    }

    /// Sends a request and returns head and body of the response.
    pub(crate) fn request(&self, method: &str, path: &str, body: &str) -> (String, Vec<u8>) {
        let (address, len) = (self.address(), body.len());
        let mut stream = TcpStream::connect(address).expect("the server listens");
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {len}\r\nConnection: close");
        stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).expect("the request fits in the socket's buffer");
        let mut response = Vec::new();
        stream.read_to_end(&mut response).expect("the server answers");
        let end = response.windows(4).position(|window| window == b"\r\n\r\n").expect("the response has a head");
        (String::from_utf8_lossy(&response[..end]).into_owned(), response[end + 4..].to_vec())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Ignore errors: the process may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends SIGINT.
pub(crate) fn interrupt(child: &Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(sent.expect("the kill command runs").success(), "the process is still running");
}

/// Waits for a process to end by itself.
pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(status) = child.try_wait().expect("the process is a child of this one") {
            return status;
        }
        if Instant::now() > deadline {
            child.kill().expect("the process is still running");
            panic!("still running after {TIMEOUT:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until `condition` holds.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {TIMEOUT:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
