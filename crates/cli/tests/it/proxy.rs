//! A proxy whose connections a test can cut.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

/// The server that new connections are forwarded to, and the open connections.
#[derive(Default)]
struct ProxyState {
    target: Option<SocketAddr>,
    connections: Vec<TcpStream>,
}

/// A proxy that forwards TCP connections to a server.
pub(crate) struct Proxy {
    pub(crate) url: String,
    state: Arc<Mutex<ProxyState>>,
}

fn lock(state: &Mutex<ProxyState>) -> MutexGuard<'_, ProxyState> {
    state.lock().expect("no thread panics with the lock")
}

impl Proxy {
    /// Starts a proxy to the server at `url`.
    pub(crate) fn start(url: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = format!("http://{}/", listener.local_addr().expect("the listener is bound"));
        let state = Arc::new(Mutex::new(ProxyState::default()));
        let proxy = Self { url: address, state: Arc::clone(&state) };
        proxy.point_to(url);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let target = lock(&state).target;
                let Some(server) = target.and_then(|target| TcpStream::connect(target).ok()) else { continue };
                let pair = [(&client, &server), (&server, &client)];
                for (from, to) in pair.map(|(from, to)| (from.try_clone(), to.try_clone())) {
                    let (from, to) = (from.expect("a socket can be cloned"), to.expect("a socket can be cloned"));
                    std::thread::spawn(move || forward(from, to));
                }
                lock(&state).connections.extend([client, server]);
            }
        });
        proxy
    }

    /// Forwards new connections to the server at `url`.
    pub(crate) fn point_to(&self, url: &str) {
        let address = url.trim_start_matches("http://").split('/').next().expect("split() returns at least one part");
        lock(&self.state).target = Some(address.parse().expect("the URL has host and port"));
    }

    /// Closes every connection.
    pub(crate) fn cut(&self) {
        for stream in lock(&self.state).connections.drain(..) {
            // Ignore errors: the peer may have closed it.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Copies bytes in one direction until a side closes its connection.
fn forward(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 16 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    // Ignore errors: either side may have closed its connection.
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
