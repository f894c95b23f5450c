//! A faulty network: a TCP proxy that delays, throttles, stalls, cuts and resets connections on
//! request.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

/// Bytes forwarded at once while a fault is active: few, so that cuts fall inside messages.
const PIECE: usize = 1500;
/// Bytes forwarded at once without a fault.
const LARGE_PIECE: usize = 64 << 10;
/// Socket buffers of the proxy: small, so that a reader that stalls soon blocks the sender.
const BUFFER_BYTES: u32 = 64 << 10;

/// A fault of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// No fault.
    #[default]
    None,
    /// Each piece is delayed.
    Delay(Duration),
    /// At most this many bytes a second in each direction.
    Throttle(u64),
    /// Nothing is forwarded and the connection stays open.
    Stall,
    /// The server's direction ends, possibly inside a message; the client's stays open.
    HalfClose,
    /// The connection is closed, possibly inside a message.
    Cut,
    /// The connection is reset, possibly inside a message.
    Reset,
}

/// A running proxy. Dropping it ends it.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    connections: Arc<Connections>,
    stop: watch::Sender<bool>,
}

/// The open connections and how to set their faults.
#[derive(Debug, Default)]
struct Connections {
    open: Mutex<Vec<watch::Sender<Fault>>>,
}

impl Connections {
    /// Returns the open connections.
    fn open(&self) -> MutexGuard<'_, Vec<watch::Sender<Fault>>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|connection| !connection.is_closed());
        open
    }
}

impl Proxy {
    /// Starts a proxy for `target` on a free port.
    ///
    /// # Panics
    /// Panics if no port or thread is available.
    #[must_use]
    pub fn start(target: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("the runtime starts");
        let listener = runtime.block_on(async { bind() }).expect("a port is free");
        let address = listener.local_addr().expect("the listener is bound");
        let connections = Arc::new(Connections::default());
        let (stop, stopping) = watch::channel(false);
        let for_thread = Arc::clone(&connections);
        thread::spawn(move || runtime.block_on(listen(listener, target, for_thread, stopping)));
        Self { address, connections, stop }
    }

    /// Returns the address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of open connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.open().len()
    }

    /// Sets the fault of one open connection, number `choice` modulo their count.
    pub fn inject(&self, choice: u64, fault: Fault) {
        let open = self.connections.open();
        if !open.is_empty() {
            open[choice as usize % open.len()].send_replace(fault);
        }
    }

    /// Removes delays, throttles and stalls. Closed connections stay closed.
    pub fn clear_faults(&self) {
        for connection in self.connections.open().iter() {
            connection.send_if_modified(|fault| {
                let is_clearable = matches!(fault, Fault::Delay(_) | Fault::Throttle(_) | Fault::Stall);
                if is_clearable {
                    *fault = Fault::None;
                }
                is_clearable
            });
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

fn small_socket() -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(BUFFER_BYTES)?;
    socket.set_send_buffer_size(BUFFER_BYTES)?;
    Ok(socket)
}

fn bind() -> io::Result<TcpListener> {
    let socket = small_socket()?;
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    socket.listen(1024)
}

async fn listen(
    listener: TcpListener,
    target: SocketAddr,
    connections: Arc<Connections>,
    mut stopping: watch::Receiver<bool>,
) {
    loop {
        tokio::select! {
            _ = stopping.wait_for(|&stopping| stopping) => return,
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { continue };
                let (control, faults) = watch::channel(Fault::None);
                connections.open().push(control.clone());
                tokio::spawn(pass(client, target, control, faults));
            }
        }
    }
}

/// Forwards a connection until both directions have ended.
async fn pass(client: TcpStream, target: SocketAddr, control: watch::Sender<Fault>, faults: watch::Receiver<Fault>) {
    let Ok(socket) = small_socket() else { return };
    let Ok(server) = socket.connect(target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::join!(
        copy(from_client, to_server, Direction::ToServer, &control, faults.clone()),
        copy(from_server, to_client, Direction::ToClient, &control, faults),
    );
}

/// The direction of forwarded bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToClient,
}

async fn copy(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    direction: Direction,
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
            Fault::HalfClose if direction == Direction::ToClient => {
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
            // This direction has ended normally; the other continues.
            let _ = to.shutdown().await;
            if direction == Direction::ToClient {
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
            // Part of the piece may have been written.
            _ = faults.wait_for(|fault| matches!(fault, Fault::Cut | Fault::Reset)) => continue,
        };
        if !written {
            control.send_replace(Fault::Cut);
            return;
        }
    }
}
