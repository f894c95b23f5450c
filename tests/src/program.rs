//! The real binary.

use std::env;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long anything that the binary is asked for may take on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A command of the `vramscope` binary: the one that `VRAMSCOPE_BINARY` names, or the one built last beside this program.
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

/// What was built last of a program, whose path in cargo's folder for a profile this is.
pub(crate) fn newest_built(name: &Path) -> Option<PathBuf> {
    let this = env::current_exe().expect("a running program has a path");
    let target = this.ancestors().find(|folder| folder.ends_with("debug") || folder.ends_with("release"));
    let target = target.and_then(|folder| folder.parent()).expect("cargo builds tests into target/PROFILE");
    let built = ["debug", "release"].map(|profile| target.join(profile).join(name));
    let newest = built.into_iter().filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path))).max();
    newest.map(|(_, path)| path)
}

/// A running `vramscope demo` or `vramscope view`. It ends when this is dropped.
#[derive(Debug)]
pub struct Program {
    child: Child,
    url: String,
    messages: Arc<Mutex<String>>,
}

impl Program {
    /// Starts the binary on a free port of this machine and waits until it says where it listens.
    ///
    /// # Panics
    /// Where it cannot be started, or its first line on stdout is not `listening: URL`.
    pub fn start<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Self {
        Self::start_at(arguments, "127.0.0.1:0")
    }

    /// The same, at an address of this machine.
    ///
    /// # Panics
    /// See [`start`](Self::start).
    pub fn start_at<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>, listen: &str) -> Self {
        Self::start_in(arguments, listen, &[])
    }

    /// The same, with variables in its environment.
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
        let line = first_line.recv_timeout(PATIENCE).unwrap_or_default();
        let Some(url) = line.trim_end().strip_prefix("listening: ") else {
            panic!("the first line of {command:?} is {line:?}; it said on stderr:\n{}", program.messages());
        };
        program.url = url.to_owned();
        program
    }

    /// The page's address, complete with its token.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The page's address with another path, `/ws` for example; scheme and token stay.
    #[must_use]
    pub fn url_of(&self, path: &str) -> String {
        let (address, query) =
            self.url.split_once('?').map_or((self.url.as_str(), None), |(url, query)| (url, Some(query)));
        let address = address.trim_end_matches('/');
        query.map_or_else(|| format!("{address}{path}"), |query| format!("{address}{path}?{query}"))
    }

    /// Its process's number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has said on stderr so far.
    #[must_use]
    pub fn messages(&self) -> String {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Does what ^C does, and waits until the program has ended by itself.
    ///
    /// # Panics
    /// Where it does not end in time.
    pub fn interrupt(&mut self) -> ExitStatus {
        let interrupted = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status();
        assert!(interrupted.is_ok_and(|status| status.success()), "cannot send SIGINT");
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().expect("the program is a child of this one") {
                return status;
            }
            thread::sleep(Duration::from_millis(20));
        }
        panic!("still running {PATIENCE:?} after SIGINT; it said on stderr:\n{}", self.messages());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended before; then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("vramscope said on stderr:\n{}", self.messages());
        }
    }
}

/// Sends the first line, then reads on so that the writer never waits for a reader.
pub(crate) fn first_line_and_drain(stdout: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    lines_until(stdout, |_| true)
}

/// Sends the first line that `wanted` accepts, or the last one, then reads on so that the writer never waits for a reader.
pub(crate) fn lines_until(
    stdout: impl Read + Send + 'static,
    wanted: impl Fn(&str) -> bool + Send + 'static,
) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
        if let Some(line) = lines.find(|line| wanted(line)) {
            // The receiver is gone where nobody waits any more.
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
