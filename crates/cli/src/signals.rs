//! Reacts to Ctrl-C and to requests to terminate.

use std::io;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::error::{CommandError, Result};

/// The exit code that shells report for a process ended by SIGINT.
const INTERRUPTED: i32 = 130;

/// A listener that turns the first SIGINT or SIGTERM into a request to stop the command. The second
/// signal ends the process.
#[derive(Debug)]
pub(crate) struct Interrupts {
    requested: Arc<AtomicBool>,
    signals: mpsc::Receiver<()>,
}

impl Interrupts {
    /// Starts to listen for SIGINT and SIGTERM.
    pub(crate) fn listen() -> Result<Self> {
        let requested = Arc::new(AtomicBool::new(false));
        let (sender, signals) = mpsc::channel();
        let flag = Arc::clone(&requested);
        on_signal(move || {
            if flag.swap(true, Ordering::Relaxed) {
                process::exit(INTERRUPTED);
            }
            // Ignore the error: the command may no longer wait for signals.
            let _ = sender.send(());
        })?;
        Ok(Self { requested, signals })
    }

    /// Returns a flag that is set once the command must stop.
    #[cfg(feature = "demo")]
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.requested)
    }

    /// Returns true once the command must stop.
    pub(crate) fn requested(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
    }

    /// Waits until SIGINT or SIGTERM requests the command to stop, at most for `timeout`. Returns
    /// true once it is requested.
    pub(crate) fn wait_timeout(&self, timeout: Duration) -> bool {
        // An error means a timeout, or that no signal can arrive any more.
        if self.signals.recv_timeout(timeout) == Err(mpsc::RecvTimeoutError::Disconnected) {
            std::thread::sleep(timeout);
        }
        self.requested()
    }

    /// Waits until SIGINT or SIGTERM requests the command to stop.
    pub(crate) fn wait(&self) {
        // An error means that the listening thread has ended, after which no signal can arrive.
        let _ = self.signals.recv();
    }
}

/// Ends the process at the first SIGINT or SIGTERM, after calling `clean_up`.
pub(crate) fn exit_on_signal(clean_up: impl Fn() + Send + 'static) -> Result {
    on_signal(move || {
        clean_up();
        process::exit(INTERRUPTED);
    })
}

/// Calls `handler` on another thread for each SIGINT and SIGTERM that arrives after this returns.
fn on_signal(handler: impl FnMut() + Send + 'static) -> Result {
    listen(handler).map_err(|error| CommandError::new(format_args!("cannot listen for Ctrl-C: {error}")))
}

/// Calls `handler` on another thread for each SIGINT and SIGTERM, as Unix reports them.
#[cfg(unix)]
fn listen(mut handler: impl FnMut() + Send + 'static) -> io::Result<()> {
    use signal_hook::consts::SIGXFSZ;
    use signal_hook::iterator::Signals;

    // Handling SIGXFSZ makes a write beyond the file size limit fail, as on a full disk, instead of
    // ending the process in the middle of a chunk.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let thread = std::thread::Builder::new().name("vramscope-signals".into());
    thread.spawn(move || signals.forever().for_each(|_| handler())).map(drop)
}

/// Calls `handler` on another thread after SIGINT or SIGTERM. Windows has no signals that a thread
/// could wait for, so a flag is polled.
#[cfg(not(unix))]
fn listen(mut handler: impl FnMut() + Send + 'static) -> io::Result<()> {
    /// Interval at which the flag of a received signal is polled.
    const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(50);

    let received = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&received))?;
    }
    let poll = move || {
        loop {
            std::thread::sleep(POLL_INTERVAL);
            if received.swap(false, Ordering::Relaxed) {
                handler();
            }
        }
    };
    std::thread::Builder::new().name("vramscope-signals".into()).spawn(poll).map(drop)
}
