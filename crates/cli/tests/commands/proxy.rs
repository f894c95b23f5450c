//! A way to a server that breaks when it is told to.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

#[derive(Default)]
struct State {
    target: Option<SocketAddr>,
    open: Vec<TcpStream>,
}

/// Passes on what comes to an address of its own.
pub(crate) struct Proxy {
    pub(crate) url: String,
    state: Arc<Mutex<State>>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("no panic")
}

impl Proxy {
    /// One to the server at `url`.
    pub(crate) fn to(url: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let own = format!("http://{}/", listener.local_addr().expect("it is bound"));
        let state = Arc::new(Mutex::new(State::default()));
        let proxy = Self { url: own, state: Arc::clone(&state) };
        proxy.point_to(url);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let target = lock(&state).target;
                let Some(server) = target.and_then(|target| TcpStream::connect(target).ok()) else { continue };
                let pair = [(&client, &server), (&server, &client)];
                for (from, to) in pair.map(|(from, to)| (from.try_clone(), to.try_clone())) {
                    let (from, to) = (from.expect("a socket"), to.expect("a socket"));
                    std::thread::spawn(move || pass(from, to));
                }
                lock(&state).open.extend([client, server]);
            }
        });
        proxy
    }

    /// From now on it leads to the server at `url`.
    pub(crate) fn point_to(&self, url: &str) {
        let address = url.trim_start_matches("http://").split('/').next().expect("an address");
        lock(&self.state).target = Some(address.parse().expect("an address"));
    }

    /// Breaks every connection that there is.
    pub(crate) fn cut(&self) {
        for stream in lock(&self.state).open.drain(..) {
            // It may have ended by itself.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 16 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    // Either side may be gone.
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
