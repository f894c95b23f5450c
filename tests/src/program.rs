//! The `vramscope` binary and what it prints.

use std::env;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Longest wait for the binary, on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Returns a command that runs `vramscope`: the binary that `VRAMSCOPE_BINARY` names, or the
/// newest in the target folder.
#[must_use]
pub fn vramscope() -> Command {
    Command::new(binary())
}

fn binary() -> PathBuf {
    if let Some(path) = env::var_os("VRAMSCOPE_BINARY") {
        return PathBuf::from(path);
    }
    let name = PathBuf::from(format!("vramscope{}", env::consts::EXE_SUFFIX));
    newest_built(&name).expect("no vramscope binary: run `cargo xtask build` first")
}

/// Returns the newest build of a program, given its path within cargo's folder of a profile.
pub(crate) fn newest_built(name: &Path) -> Option<PathBuf> {
    let this = env::current_exe().expect("a running program has a path");
    let target = this.ancestors().find(|folder| folder.ends_with("debug") || folder.ends_with("release"));
    let target = target.and_then(|folder| folder.parent()).expect("cargo builds tests into target/PROFILE");
    let built = ["debug", "release"].map(|profile| target.join(profile).join(name));
    let newest = built.into_iter().filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path))).max();
    newest.map(|(_, path)| path)
}

/// A running `vramscope demo`, `view` or `serve`. Dropping it ends the process.
#[derive(Debug)]
pub struct Program {
    child: Child,
    url: String,
    messages: Arc<Mutex<String>>,
}

impl Program {
    /// Starts the binary on a free port of this machine and waits until it listens.
    ///
    /// # Panics
    /// Panics if it does not start or its first line on stdout is not `listening: URL`.
    pub fn start<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Self {
        Self::start_at(arguments, "127.0.0.1:0")
    }

    /// Starts the binary at an address of this machine.
    ///
    /// # Panics
    /// See [`start`](Self::start).
    pub fn start_at<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>, listen: &str) -> Self {
        Self::start_in(arguments, listen, &[])
    }

    /// Starts the binary with additional environment variables.
    ///
    /// # Panics
    /// See [`start`](Self::start).
    pub fn start_in<A: AsRef<OsStr>>(
        arguments: impl IntoIterator<Item = A>,
        listen: &str,
        variables: &[(&str, &str)],
    ) -> Self {
        let mut command = vramscope();
        command.args(arguments).args(["--no-open", "--listen", listen]).envs(variables.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let messages = Arc::new(Mutex::new(String::new()));
        let first_line = first_line_and_drain(child.stdout.take().expect("stdout is piped"));
        keep(child.stderr.take().expect("stderr is piped"), Arc::clone(&messages));
        let mut program = Self { child, url: String::new(), messages };
        let line = first_line.recv_timeout(TIMEOUT).unwrap_or_default();
        let Some(url) = line.trim_end().strip_prefix("listening: ") else {
            panic!("the first line of {command:?} is {line:?}; stderr:\n{}", program.messages());
        };
        program.url = url.to_owned();
        program
    }

    /// Returns the page's URL with its token.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the URL of another path, for example `/ws`, with the same scheme and token.
    #[must_use]
    pub fn url_of(&self, path: &str) -> String {
        let (address, query) =
            self.url.split_once('?').map_or((self.url.as_str(), None), |(url, query)| (url, Some(query)));
        let address = address.trim_end_matches('/');
        query.map_or_else(|| format!("{address}{path}"), |query| format!("{address}{path}?{query}"))
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its output on stderr so far.
    #[must_use]
    pub fn messages(&self) -> String {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends SIGINT and waits until the process has ended.
    ///
    /// # Panics
    /// Panics if it does not end in time.
    pub fn interrupt(&mut self) -> ExitStatus {
        let interrupted = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status();
        assert!(interrupted.is_ok_and(|status| status.success()), "cannot send SIGINT");
        let deadline = Instant::now() + TIMEOUT;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().expect("the program is a child of this one") {
                return status;
            }
            thread::sleep(Duration::from_millis(20));
        }
        panic!("still running {TIMEOUT:?} after SIGINT; stderr:\n{}", self.messages());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("stderr of vramscope:\n{}", self.messages());
        }
    }
}

/// Sends the first line, then keeps reading so that the writer never blocks.
pub(crate) fn first_line_and_drain(stdout: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    lines_until(stdout, |_| true)
}

/// Sends the first line that `wanted` accepts, then keeps reading so that the writer never
/// blocks.
pub(crate) fn lines_until(
    stdout: impl Read + Send + 'static,
    wanted: impl Fn(&str) -> bool + Send + 'static,
) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
        if let Some(line) = lines.find(|line| wanted(line)) {
            // The receiver may have timed out.
            let _ = sender.send(line);
        }
        lines.for_each(drop);
    });
    receiver
}

fn keep(stderr: impl Read + Send + 'static, messages: Arc<Mutex<String>>) {
    thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let mut messages = messages.lock().unwrap_or_else(PoisonError::into_inner);
            messages.push_str(&line);
            messages.push('\n');
        }
    });
}
