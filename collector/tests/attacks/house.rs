//! A server with something to take, and those who watch it honestly meanwhile.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tungstenite::{Message, WebSocket};
use vramscope_collector::{Content, Controls, Hub, Server, ServerLimits, ServerOptions, TlsFiles, Token};
use vramscope_trace::{DeviceId, Encoder, Event, EventKind, RecordingInfo, Recording, Sink};

/// The secret of those servers that were given one.
pub(crate) const TOKEN: &str = "the-right-token";
/// How long the servers wait for whoever is slow.
pub(crate) const PATIENCE: Duration = Duration::from_millis(1500);
/// How many connections they take.
pub(crate) const CONNECTIONS: usize = 64;
/// Much longer than anything here should take.
const FOREVER: Duration = Duration::from_secs(20);

/// How a server is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// On this machine, without a token.
    Open,
    /// On this machine, with commands, which take a token.
    Commands,
    /// On this machine, with a token for everything, and commands.
    Closed,
    /// On every address, and so with a token that was made.
    Everywhere,
    /// Encrypted, with a token.
    Tls,
}

/// Anything that bytes go through.
pub(crate) trait Stream: Read + Write + Send {}
impl<S: Read + Write + Send> Stream for S {}

/// A server, its recording, and one who watches all the time.
pub(crate) struct House {
    pub(crate) server: Server,
    /// What to say, where there is a token.
    pub(crate) token: Option<String>,
    /// The names of the marks that were made.
    pub(crate) marks: Arc<Mutex<Vec<String>>>,
    tls: Option<Arc<ClientConfig>>,
    hub: Hub,
    encoder: Encoder,
    watcher: Option<Watcher>,
}

impl House {
    pub(crate) fn new(door: Door, folder: &Path) -> Self {
        let token = matches!(door, Door::Closed | Door::Tls).then(|| Token::new(TOKEN).expect("a token"));
        let files = TlsFiles { certificate: folder.join("cert.pem"), key: folder.join("key.pem") };
        let tls = (door == Door::Tls).then(|| client_config(&files));
        let address = if door == Door::Everywhere { [0, 0, 0, 0] } else { [127, 0, 0, 1] };
        let (hub, controls, marks) = (Hub::default(), Controls::default(), Arc::<Mutex<Vec<String>>>::default());
        let made = Arc::clone(&marks);
        controls.offer_mark(move |name| {
            made.lock().unwrap().push(name.to_owned());
            Ok(format!("marked {name}"))
        });
        let limits = ServerLimits { connections: CONNECTIONS, patience: PATIENCE, ..ServerLimits::default() };
        let options = ServerOptions {
            listen: Some(SocketAddr::from((address, 0))),
            token,
            tls: tls.is_some().then_some(files),
            limits,
            ..ServerOptions::default()
        };
        let mut content = Content::live(hub.clone());
        content.controls = matches!(door, Door::Commands | Door::Closed).then_some(controls);
        let server = Server::start(options, content).expect("a free port");
        let token = server.url().split_once("?token=").map(|(_, token)| token.to_owned());
        let encoder = Encoder::new(&RecordingInfo { source: "<script>alert(1)</script>".into(), ..RecordingInfo::default() });
        let mut house = Self { server, token, marks, tls, hub, encoder, watcher: None };
        house.record();
        house.watcher = Some(Watcher { socket: house.newcomer(), recording: Recording::new() });
        house
    }

    /// Where clients on this machine reach it.
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.server.address().port()))
    }

    /// A connection over which nothing was said, not even in TLS.
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).expect("the server listens");
        stream.set_read_timeout(Some(FOREVER)).expect("a time");
        stream.set_write_timeout(Some(FOREVER)).expect("a time");
        stream
    }

    /// A connection over which HTTP can be spoken.
    pub(crate) fn open(&self) -> Box<dyn Stream> {
        let stream = self.connect();
        match &self.tls {
            None => Box::new(stream),
            Some(config) => {
                let name = ServerName::try_from("localhost").expect("a name");
                let client = ClientConnection::new(Arc::clone(config), name).expect("a client");
                Box::new(StreamOwned::new(client, stream))
            }
        }
    }

    /// What is answered to `request`, in which `{host}` and `{token}` stand for this server's; until the server closes, or there is enough.
    pub(crate) fn say(&self, request: &str) -> String {
        let mut stream = self.open();
        // Who is refused early may have said only a part.
        let _ = stream.write_all(self.filled(request).as_bytes());
        read_all(&mut stream)
    }

    pub(crate) fn filled(&self, request: &str) -> String {
        let token = self.token.as_deref().unwrap_or("none");
        request.replace("{host}", &self.address().to_string()).replace("{token}", token)
    }

    /// A socket, opened with the token where there is one.
    pub(crate) fn newcomer(&self) -> WebSocket<Box<dyn Stream>> {
        let query = self.token.as_ref().map(|token| format!("?token={token}")).unwrap_or_default();
        let url = format!("ws://{}/ws{query}", self.address());
        tungstenite::client(url, self.open()).expect("a socket for whoever has the right").0
    }

    /// Records one more event.
    fn record(&mut self) {
        let kind = EventKind::MemorySample { used_by_context: 1, used_by_others: 2, free: 3 };
        self.encoder.event(&Event { device: DeviceId(0), time_ns: self.encoder.state().event(), kind });
        self.encoder.flush();
        let chunks: Vec<_> = self.encoder.take_output().into_iter().map(Arc::new).collect();
        self.hub.publish(&chunks);
    }

    /// Whether those who watch honestly are served: the one who was there all the time, and one who comes now.
    pub(crate) fn check_honest(&mut self, after: &str) {
        self.record();
        let end = self.encoder.state().event();
        let mut newcomer = Watcher { socket: self.newcomer(), recording: Recording::new() };
        newcomer.watch_until(end, after);
        self.watcher.as_mut().expect("one who watches").watch_until(end, after);
        let health = self.say("GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        assert!(health.starts_with("HTTP/1.1 200 "), "after {after}: {health}");
    }
}

/// One who watches.
struct Watcher {
    socket: WebSocket<Box<dyn Stream>>,
    recording: Recording,
}

impl Watcher {
    fn watch_until(&mut self, end: u64, after: &str) {
        while self.recording.end_event() < end {
            match self.socket.read().unwrap_or_else(|error| panic!("after {after}: {error}")) {
                Message::Binary(bytes) => self.recording.push(&bytes).expect("a recording"),
                Message::Close(close) => panic!("after {after} an honest viewer was sent away: {close:?}"),
                _ => {}
            }
        }
        assert_eq!(self.recording.lost_events(), 0, "after {after}");
    }
}

/// All that comes until the other side closes, or does nothing for long.
pub(crate) fn read_all(stream: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    // A connection that is reset is closed, too.
    let _ = stream.take(1 << 20).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A client that trusts the certificate, which is made here.
fn client_config(files: &TlsFiles) -> Arc<ClientConfig> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    std::fs::write(&files.certificate, made.cert.pem()).expect("room for it");
    std::fs::write(&files.key, made.signing_key.serialize_pem()).expect("room for it");
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&files.certificate).expect("a certificate")).expect("a good one");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Arc::new(config.expect("versions").with_root_certificates(roots).with_no_client_auth())
}
