//! A network that fails: a TCP proxy that delays, throttles, stalls, cuts and resets what goes through it, when it is told to.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

/// Bytes that are passed on at once, so few that a message is cut in its middle more often than at its end.
const PIECE: usize = 1500;
/// And where nothing fails.
const LARGE_PIECE: usize = 64 << 10;
/// What the proxy's own end of a connection holds: little, so that whoever does not read is soon noticed at the other end.
const BUFFER_BYTES: u32 = 64 << 10;

/// What is wrong with a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// Each piece is late.
    Delay(Duration),
    /// So many bytes a second, each way.
    Throttle(u64),
    /// Nothing comes through, and nobody is told.
    Stall,
    /// What the program sends ends in the middle of anything; the other way stays open.
    HalfClose,
    /// It ends in the middle of anything, in order.
    Cut,
    /// It ends in the middle of anything, with an error.
    Reset,
}

/// A running proxy. It ends when this is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Shared {
    open: Mutex<Vec<watch::Sender<Fault>>>,
}

impl Shared {
    /// The connections that are open.
    fn open(&self) -> MutexGuard<'_, Vec<watch::Sender<Fault>>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|connection| !connection.is_closed());
        open
    }
}

impl Proxy {
    /// A proxy at a free port that passes everything on to `target`.
    ///
    /// # Panics
    /// Where the machine has no port or no thread.
    #[must_use]
    pub fn start(target: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let listener = runtime.block_on(async { bind() }).expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared::default());
        let (stop, stopping) = watch::channel(false);
        let theirs = Arc::clone(&shared);
        thread::spawn(move || runtime.block_on(listen(listener, target, theirs, stopping)));
        Self { address, shared, stop }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many connections are open.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.open().len()
    }

    /// From now on this is wrong with one of the connections, whichever `choice` says.
    pub fn afflict(&self, choice: u64, fault: Fault) {
        let open = self.shared.open();
        if !open.is_empty() {
            open[choice as usize % open.len()].send_replace(fault);
        }
    }

    /// From now on nothing is wrong. What was cut stays so.
    pub fn heal(&self) {
        for connection in self.shared.open().iter() {
            connection.send_if_modified(|fault| {
                let heals = matches!(fault, Fault::Delay(_) | Fault::Throttle(_) | Fault::Stall);
                if heals {
                    *fault = Fault::None;
                }
                heals
            });
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

fn small() -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(BUFFER_BYTES)?;
    socket.set_send_buffer_size(BUFFER_BYTES)?;
    Ok(socket)
}

fn bind() -> io::Result<TcpListener> {
    let socket = small()?;
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    socket.listen(1024)
}

async fn listen(listener: TcpListener, target: SocketAddr, shared: Arc<Shared>, mut stopping: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            _ = stopping.wait_for(|&stopping| stopping) => return,
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { continue };
                let (control, faults) = watch::channel(Fault::None);
                shared.open().push(control.clone());
                tokio::spawn(pass(client, target, control, faults));
            }
        }
    }
}

/// A connection until both ways have ended.
async fn pass(client: TcpStream, target: SocketAddr, control: watch::Sender<Fault>, faults: watch::Receiver<Fault>) {
    let Ok(socket) = small() else { return };
    let Ok(server) = socket.connect(target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::join!(
        copy(from_client, to_server, Way::Up, &control, faults.clone()),
        copy(from_server, to_client, Way::Down, &control, faults),
    );
}

/// Up is to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

async fn copy(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    way: Way,
    control: &watch::Sender<Fault>,
    mut faults: watch::Receiver<Fault>,
) {
    let mut piece = vec![0; LARGE_PIECE];
    loop {
        let fault = *faults.borrow_and_update();
        let most = if fault == Fault::None { LARGE_PIECE } else { PIECE };
        match fault {
            Fault::Cut => return,
            Fault::Reset => {
                let _ = (from.as_ref().set_zero_linger(), to.as_ref().set_zero_linger());
                return;
            }
            Fault::HalfClose if way == Way::Down => {
                let _ = to.shutdown().await;
                let _ = faults.wait_for(|fault| matches!(fault, Fault::Cut | Fault::Reset)).await;
                continue;
            }
            Fault::Stall => {
                let _ = faults.changed().await;
                continue;
            }
            Fault::None | Fault::Delay(_) | Fault::Throttle(_) | Fault::HalfClose => {}
        }
        let read = tokio::select! {
            read = from.read(&mut piece[..most]) => read,
            changed = faults.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
        };
        let Ok(len) = read else {
            control.send_replace(Fault::Cut);
            return;
        };
        if len == 0 {
            // This way has ended, as it should; the other goes on.
            let _ = to.shutdown().await;
            if way == Way::Down {
                control.send_replace(Fault::Cut);
            }
            return;
        }
        match fault {
            Fault::Delay(time) => tokio::time::sleep(time).await,
            Fault::Throttle(rate) => tokio::time::sleep(Duration::from_secs_f64(len as f64 / rate as f64)).await,
            _ => {}
        }
        let written = tokio::select! {
            written = to.write_all(&piece[..len]) => written.is_ok(),
            // Whatever of the piece is there is there.
            _ = faults.wait_for(|fault| matches!(fault, Fault::Cut | Fault::Reset)) => continue,
        };
        if !written {
            control.send_replace(Fault::Cut);
            return;
        }
    }
}
