//! Being asked to stop: Ctrl-C, or a polite kill.

use std::future::Future;
use std::io;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use crate::failure::{Failure, Outcome};

/// What a shell reports for a program that SIGINT ended.
const INTERRUPTED: i32 = 130;

/// Turns the first signal into a request that the command can look at; the second ends the process at once.
#[derive(Debug)]
pub(crate) struct Interrupts {
    flag: Arc<AtomicBool>,
    signals: mpsc::Receiver<()>,
}

impl Interrupts {
    /// Listens from here on.
    pub(crate) fn listen() -> Outcome<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        let (send, signals) = mpsc::channel();
        let theirs = Arc::clone(&flag);
        on_signal(move || {
            if theirs.swap(true, Ordering::Relaxed) {
                process::exit(INTERRUPTED);
            }
            // The command may be past looking at it.
            let _ = send.send(());
        })?;
        Ok(Self { flag, signals })
    }

    /// Whether it is time to stop.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
    }

    /// Whether it is time to stop.
    pub(crate) fn requested(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// Waits for the request.
    pub(crate) fn wait(&self) {
        // An error would mean that the listening thread is gone, and with it any hope of a signal.
        let _ = self.signals.recv();
    }
}

/// Ends the process at the first signal, after `clean_up`.
pub(crate) fn exit_on_signal(clean_up: impl Fn() + Send + 'static) -> Outcome {
    on_signal(move || {
        clean_up();
        process::exit(INTERRUPTED);
    })
}

/// Calls `each` for every signal. It is heard once this returns.
fn on_signal(mut each: impl FnMut() + Send + 'static) -> Outcome {
    let failed = |error: io::Error| Failure::new(format_args!("cannot listen for Ctrl-C: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(failed)?;
    let mut signals = {
        let _context = runtime.enter();
        Signals::new().map_err(failed)?
    };
    let thread = std::thread::Builder::new().name("vramscope-signals".into());
    let listen = move || {
        while runtime.block_on(signals.next()).is_some() {
            each();
        }
    };
    thread.spawn(listen).map(drop).map_err(failed)
}

/// SIGXFSZ, which ends a program that writes more than a file may hold.
#[cfg(unix)]
const TOO_LARGE: i32 = 25;

#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    /// Taken so that the write fails instead, as on a full disk, and what was written stays whole.
    _too_large: Option<tokio::signal::unix::Signal>,
}

#[cfg(unix)]
impl Signals {
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        // Where it has another number there is nothing to take.
        let is_known = cfg!(any(target_os = "linux", target_os = "macos"));
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            _too_large: is_known.then(|| signal(SignalKind::from_raw(TOO_LARGE)).ok()).flatten(),
        })
    }

    fn next(&mut self) -> impl Future<Output = Option<()>> {
        std::future::poll_fn(|context| {
            let interrupt = self.interrupt.poll_recv(context);
            if interrupt.is_ready() { interrupt } else { self.terminate.poll_recv(context) }
        })
    }
}

#[cfg(windows)]
struct Signals(tokio::signal::windows::CtrlC);

#[cfg(windows)]
impl Signals {
    fn new() -> io::Result<Self> {
        tokio::signal::windows::ctrl_c().map(Self)
    }

    fn next(&mut self) -> impl Future<Output = Option<()>> {
        self.0.recv()
    }
}
