//! A server to attack, and the viewers that must not notice the attack.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tungstenite::{Message, WebSocket};
use vramscope_collector::{
    ANY_HOST, Controls, Hub, ServedContent, Server, ServerLimits, ServerOptions, TlsFiles, Token,
};
use vramscope_trace::{DeviceId, Encoder, Event, EventKind, Recording, RecordingInfo, Sink};

/// The token of servers whose token is not generated.
pub(crate) const TOKEN: &str = "the-right-token";
/// The `client_timeout` of servers, longer than a test: so a server never closes a connection
/// because a client is slow.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(3600);
/// The `client_timeout` of [impatient](TestServer::impatient) servers.
pub(crate) const SHORT_CLIENT_TIMEOUT: Duration = Duration::from_secs(2);
/// The servers' limit on connections.
pub(crate) const MAX_CONNECTIONS: usize = 64;
/// Maximum time that a test waits for a socket; only a test that hangs reaches it.
pub(crate) const SOCKET_TIMEOUT: Duration = Duration::from_secs(120);

/// How a server is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    /// Loopback, without a token.
    None,
    /// Loopback, with commands that need a generated token.
    CommandToken,
    /// Loopback, with a given token for everything, and commands.
    Token,
    /// All addresses, and therefore with a generated token.
    AllAddresses,
    /// Loopback, with TLS and a given token.
    Tls,
    /// Loopback, with any host name and therefore with a generated token.
    AnyHost,
}

/// A byte stream to a server.
pub(crate) trait Stream: Read + Write + Send {}
impl<S: Read + Write + Send> Stream for S {}

/// A server with a live recording and a permanent viewer.
pub(crate) struct TestServer {
    pub(crate) server: Server,
    /// The token, if the server has one.
    pub(crate) token: Option<String>,
    /// The names of the marks that clients have made by commands.
    pub(crate) marks: Arc<Mutex<Vec<String>>>,
    tls: Option<Arc<ClientConfig>>,
    hub: Hub,
    encoder: Encoder,
    viewer: Option<TestViewer>,
    protection: Protection,
    /// The folder with the server's certificate, if it has one.
    folder: PathBuf,
}

impl TestServer {
    /// Starts a server, and opens its permanent viewer.
    pub(crate) fn new(protection: Protection, folder: &Path) -> Self {
        let mut server = Self::start(protection, folder, CLIENT_TIMEOUT);
        server.viewer = Some(TestViewer { socket: server.open_viewer(), recording: Recording::new() });
        server
    }

    /// Starts another server like this one, without a viewer, which soon closes the connections of
    /// clients that do nothing.
    pub(crate) fn impatient(&self) -> Self {
        Self::start(self.protection, &self.folder, SHORT_CLIENT_TIMEOUT)
    }

    fn start(protection: Protection, folder: &Path, client_timeout: Duration) -> Self {
        let has_given_token = matches!(protection, Protection::Token | Protection::Tls);
        let token = has_given_token.then(|| Token::new(TOKEN).expect("a valid token"));
        let files = TlsFiles { certificate: folder.join("cert.pem"), key: folder.join("key.pem") };
        let tls = (protection == Protection::Tls).then(|| client_config(&files));
        let address = if protection == Protection::AllAddresses { [0, 0, 0, 0] } else { [127, 0, 0, 1] };
        let (hub, controls, marks) = (Hub::default(), Controls::default(), Arc::<Mutex<Vec<String>>>::default());
        let command_marks = Arc::clone(&marks);
        controls.offer_mark(move |name| {
            command_marks.lock().unwrap().push(name.to_owned());
            Ok(format!("marked {name}"))
        });
        let limits = ServerLimits { connections: MAX_CONNECTIONS, client_timeout, ..ServerLimits::default() };
        let options = ServerOptions {
            listen: Some(SocketAddr::from((address, 0))),
            token,
            tls: tls.is_some().then_some(files),
            limits,
            allow_hosts: if protection == Protection::AnyHost { vec![ANY_HOST.to_owned()] } else { Vec::new() },
        };
        let mut content = ServedContent::live(hub.clone());
        let has_commands = matches!(protection, Protection::CommandToken | Protection::Token);
        content.controls = has_commands.then_some(controls);
        let server = Server::start(options, content).expect("a port is free");
        let token = server.url().split_once("?token=").map(|(_, token)| token.to_owned());
        let encoder =
            Encoder::new(&RecordingInfo { source: "<script>alert(1)</script>".into(), ..RecordingInfo::default() });
        let folder = folder.to_owned();
        let mut server = Self { server, token, marks, tls, hub, encoder, viewer: None, protection, folder };
        server.record();
        server
    }

    /// Returns the loopback address of the server.
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.server.address().port()))
    }

    /// Opens a TCP connection, without a TLS handshake.
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).expect("the server listens");
        stream.set_read_timeout(Some(SOCKET_TIMEOUT)).expect("the socket can be configured");
        stream.set_write_timeout(Some(SOCKET_TIMEOUT)).expect("the socket can be configured");
        stream
    }

    /// Opens a connection for HTTP, with TLS if the server has it.
    pub(crate) fn open(&self) -> Box<dyn Stream> {
        let stream = self.connect();
        match &self.tls {
            None => Box::new(stream),
            Some(config) => {
                let name = ServerName::try_from("localhost").expect("a valid host name");
                let client = ClientConnection::new(Arc::clone(config), name).expect("a valid configuration");
                Box::new(StreamOwned::new(client, stream))
            }
        }
    }

    /// Sends a request, in which `{host}` and `{token}` are replaced by this server's, and returns
    /// everything that the server sends until it closes the connection.
    pub(crate) fn request(&self, request: &str) -> String {
        let mut stream = self.open();
        // The server may refuse the request and close before all of it is sent.
        let _ = stream.write_all(self.fill_in(request).as_bytes());
        read_all(&mut stream)
    }

    /// Replaces `{host}` and `{token}` in a request.
    pub(crate) fn fill_in(&self, request: &str) -> String {
        let token = self.token.as_deref().unwrap_or("none");
        request.replace("{host}", &self.address().to_string()).replace("{token}", token)
    }

    /// Opens a viewer's WebSocket, with the token if there is one.
    pub(crate) fn open_viewer(&self) -> WebSocket<Box<dyn Stream>> {
        let query = self.token.as_ref().map(|token| format!("?token={token}")).unwrap_or_default();
        let url = format!("ws://{}/ws{query}", self.address());
        tungstenite::client(url, self.open()).expect("the server accepts an authorized viewer").0
    }

    /// Records one more event.
    fn record(&mut self) {
        let kind = EventKind::MemorySample { used_by_context: 1, used_by_others: 2, free: 3 };
        self.encoder.event(&Event { device: DeviceId(0), time_ns: self.encoder.state().event(), kind });
        self.encoder.flush();
        let chunks: Vec<_> = self.encoder.take_output().into_iter().map(Arc::new).collect();
        self.hub.publish(&chunks);
    }

    /// Checks that the permanent viewer and a new one receive every event.
    pub(crate) fn check_viewers(&mut self, attack: &str) {
        self.record();
        let end = self.encoder.state().event();
        let mut new_viewer = TestViewer { socket: self.open_viewer(), recording: Recording::new() };
        new_viewer.receive_until(end, attack);
        self.viewer.as_mut().expect("the permanent viewer is connected").receive_until(end, attack);
        let health = self.request("GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        assert!(health.starts_with("HTTP/1.1 200 "), "after {attack}: {health}");
    }
}

struct TestViewer {
    socket: WebSocket<Box<dyn Stream>>,
    recording: Recording,
}

impl TestViewer {
    fn receive_until(&mut self, end: u64, attack: &str) {
        while self.recording.end_event() < end {
            match self.socket.read().unwrap_or_else(|error| panic!("after {attack}: {error}")) {
                Message::Binary(bytes) => self.recording.push(&bytes).expect("a valid recording"),
                Message::Close(close) => panic!("after {attack} an authorized viewer was disconnected: {close:?}"),
                _ => {}
            }
        }
        assert_eq!(self.recording.lost_events(), 0, "after {attack}");
    }
}

/// Reads until the server closes the connection.
///
/// # Panics
/// Panics if the server keeps it open.
#[track_caller]
pub(crate) fn read_all(stream: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    if let Err(error) = stream.take(1 << 20).read_to_end(&mut bytes) {
        // A reset connection counts as closed.
        let is_open = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
        assert!(!is_open, "the connection stays open after {:?}", String::from_utf8_lossy(&bytes));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Makes a certificate, and returns a client configuration that trusts it.
fn client_config(files: &TlsFiles) -> Arc<ClientConfig> {
    let generated = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate can be made");
    std::fs::write(&files.certificate, generated.cert.pem()).expect("the folder is writable");
    std::fs::write(&files.key, generated.signing_key.serialize_pem()).expect("the folder is writable");
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_file(&files.certificate).expect("a PEM certificate");
    roots.add(certificate).expect("a valid certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Arc::new(config.expect("the provider has the default versions").with_root_certificates(roots).with_no_client_auth())
}
