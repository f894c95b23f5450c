//! `vramscope record`: follows a live collector into a file.

use std::fs::File;
use std::io::{self, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::ProgressBar;
use tungstenite::client::IntoClientRequest;
use tungstenite::http::Uri;
use tungstenite::protocol::WebSocketConfig;
use tungstenite::{Message, WebSocket};
use vramscope_trace::{Decoder, EventKind, Item};

use crate::failure::{Failure, Outcome};
use crate::interrupt::Interrupts;
use crate::screen;
use crate::units;

/// How long one wait for bytes lasts before the clock and Ctrl-C are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long the collector may take to answer.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// The largest message that is taken. A full state is the largest chunk there is, and a message holds at least one.
const MAX_MESSAGE_BYTES: usize = 256 << 20;

/// Arguments of `record`.
#[derive(Args, Debug)]
pub(crate) struct RecordOptions {
    /// The address that a running vramscope printed, http://127.0.0.1:7791/
    #[arg(value_name = "URL")]
    url: String,
    /// The recording to write; it is usable at any time while it grows
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Stop after this long: 30s, 5m, 1h [default: at Ctrl-C, or when the program ends]
    #[arg(long = "for", value_name = "TIME", value_parser = units::parse_duration)]
    duration: Option<Duration>,
}

/// Follows until the time is over, the recording ends, or it is interrupted.
pub(crate) fn run(options: &RecordOptions) -> Outcome {
    let interrupts = Interrupts::listen()?;
    let mut socket = connect(&options.url)?;
    let began = Instant::now();
    let mut file = Following::new(&options.output);
    let ticker = screen::ticker();
    let ending = loop {
        if interrupts.requested() {
            break "";
        }
        if options.duration.is_some_and(|duration| began.elapsed() >= duration) {
            break "";
        }
        match socket.read() {
            Ok(Message::Binary(bytes)) => file.take(&options.url, &bytes)?,
            Ok(Message::Close(_)) => break "; the recording has ended",
            Ok(_) => {}
            Err(tungstenite::Error::Io(error)) if is_pause(&error) => {}
            // What came so far is a recording whatever became of the program that was recorded.
            Err(_) if file.events > 0 => break "; the connection broke off",
            Err(error) => return Err(Failure::new(format_args!("{}: {error}", options.url))),
        }
        ticker.set_message(file.progress(began.elapsed()));
    };
    finish(&ticker, file, began.elapsed(), ending)
}

fn finish(ticker: &ProgressBar, file: Following<'_>, took: Duration, ending: &str) -> Outcome {
    ticker.finish_and_clear();
    if file.file.is_none() {
        return Err(Failure::file(file.path, "not written, for nothing was received"));
    }
    screen::note(format_args!("{}: {}{ending}", file.path.display(), file.progress(took)));
    if file.lost > 0 {
        let lost = units::counted(file.lost, "event is", "events are");
        screen::note(format_args!(
            "{}: {lost} missing: the program or the connection was too slow",
            file.path.display()
        ));
    }
    Ok(())
}

fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

/// The WebSocket beside the page at `url`: the same address with `ws` as its last step, and with its token.
fn socket_address(url: &str) -> Result<Uri, String> {
    let with_scheme = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    let page: Uri = with_scheme.parse().map_err(|error| format!("{error}"))?;
    if !matches!(page.scheme_str(), Some("http" | "ws")) {
        return Err("only http:// addresses can be followed".to_owned());
    }
    let host = page.authority().ok_or("it names no host")?;
    let folder = page.path().strip_suffix("/ws").unwrap_or(page.path());
    let folder = folder.trim_end_matches('/');
    let query = page.query().map(|query| format!("?{query}")).unwrap_or_default();
    format!("ws://{host}{folder}/ws{query}").parse().map_err(|error| format!("{error}"))
}

/// Tries each address that the name has, none for longer than a person would wait.
fn reach(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIME) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn connect(url: &str) -> Outcome<WebSocket<TcpStream>> {
    let failed = |what: &dyn std::fmt::Display| Failure::new(format_args!("{url}: {what}"));
    let address = socket_address(url).map_err(|why| failed(&format_args!("not an address to follow: {why}")))?;
    let host = address.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let stream = reach(host, address.port_u16().unwrap_or(80)).map_err(|error| failed(&error))?;
    stream.set_read_timeout(Some(CONNECT_TIME)).map_err(|error| failed(&error))?;
    let request = address.clone().into_client_request().map_err(|error| failed(&error))?;
    let config = WebSocketConfig::default();
    let config = config.max_message_size(Some(MAX_MESSAGE_BYTES)).max_frame_size(Some(MAX_MESSAGE_BYTES));
    let (socket, _) =
        tungstenite::client::client_with_config(request, stream, Some(config)).map_err(|error| match error {
            tungstenite::HandshakeError::Failure(tungstenite::Error::Http(answer)) => {
                failed(&format_args!("no live recording is served there ({})", answer.status()))
            }
            tungstenite::HandshakeError::Failure(error) => failed(&error),
            tungstenite::HandshakeError::Interrupted(_) => failed(&"no answer"),
        })?;
    socket.get_ref().set_read_timeout(Some(LOOK_EVERY)).map_err(|error| failed(&error))?;
    Ok(socket)
}

/// The file, and what is in it.
struct Following<'a> {
    path: &'a Path,
    /// Made when there is something to write, so that a wrong address leaves no file behind.
    file: Option<File>,
    decoder: Decoder,
    bytes: u64,
    events: u64,
    lost: u64,
    /// The number of the next event, once one is known.
    next_event: Option<u64>,
}

impl<'a> Following<'a> {
    fn new(path: &'a Path) -> Self {
        Self { path, file: None, decoder: Decoder::new(), bytes: 0, events: 0, lost: 0, next_event: None }
    }

    /// Takes a message: whole chunks, written at once, so that a kill loses nothing that was received.
    fn take(&mut self, url: &str, bytes: &[u8]) -> Outcome {
        self.decoder.push(bytes);
        while let Some(item) = self.decoder.next_item().map_err(|error| Failure::new(format_args!("{url}: {error}")))? {
            match item {
                Item::Event(event) => {
                    self.events += 1;
                    self.next_event = Some(self.next_event.unwrap_or(0) + 1);
                    if let EventKind::Gap { lost } = event.kind {
                        self.lost = self.lost.saturating_add(lost);
                    }
                }
                Item::FullState(state) => {
                    let skipped = state.event().saturating_sub(self.next_event.unwrap_or(state.event()));
                    self.lost = self.lost.saturating_add(skipped);
                    self.next_event = Some(state.event());
                }
                _ => {}
            }
        }
        let failed = |error| Failure::file(self.path, error);
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(File::create(self.path).map_err(failed)?),
        };
        file.write_all(bytes).map_err(failed)?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn progress(&self, took: Duration) -> String {
        let seconds = took.as_secs_f64().max(0.001);
        format!(
            "{} in {}, {}; {} events/s, {}/s",
            units::counted(self.events, "event", "events"),
            units::bytes(self.bytes),
            units::duration(took),
            units::count((self.events as f64 / seconds) as u64),
            units::bytes((self.bytes as f64 / seconds) as u64),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_beside_the_page() {
        for (page, socket) in [
            ("http://127.0.0.1:7791/", "ws://127.0.0.1:7791/ws"),
            ("http://127.0.0.1:7791", "ws://127.0.0.1:7791/ws"),
            ("127.0.0.1:7791", "ws://127.0.0.1:7791/ws"),
            ("ws://localhost:1/ws", "ws://localhost:1/ws"),
            ("http://[::1]:7791/gpu/?token=x", "ws://[::1]:7791/gpu/ws?token=x"),
        ] {
            assert_eq!(socket_address(page).map(|uri| uri.to_string()), Ok(socket.to_owned()));
        }
        for wrong in ["https://example.org/", "ftp://example.org", "", "http://", "a b"] {
            assert!(socket_address(wrong).is_err(), "{wrong:?}");
        }
    }
}
