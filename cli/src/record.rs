//! `vramscope record`: follows a live collector into a file.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use tungstenite::client::IntoClientRequest;
use tungstenite::http::Uri;
use tungstenite::protocol::WebSocketConfig;
use tungstenite::{Message, WebSocket};
use vramscope_collector::{RecordingFile, parse_time};
use vramscope_trace::{Decoder, Encoder, EventKind, Info, Item, Sink};

use crate::failure::{Failure, Outcome};
use crate::file::FileOptions;
use crate::interrupt::Interrupts;
use crate::screen;
use crate::units;

/// How long one wait for bytes lasts before the clock and Ctrl-C are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long events may wait before their chunk is cut. The chunks that come are for the eye, so small that they take
/// several times as many bytes; with what came before and comes after, events are in the file within 250 ms.
const CUT_EVERY: Duration = Duration::from_millis(100);
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
    /// The recording to write; it is usable at any time while it grows. - is standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    file: FileOptions,
    /// Stop after this long: 30s, 5m, 1h [default: at Ctrl-C, or when the program ends]
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
    duration: Option<Duration>,
}

/// Follows until the time is over, the recording ends, or it is interrupted.
pub(crate) fn run(options: &RecordOptions) -> Outcome {
    let interrupts = Interrupts::listen()?;
    let mut socket = connect(&options.url)?;
    let began = Instant::now();
    let mut following = Following::new(options);
    let ticker = screen::ticker();
    let ending = loop {
        if interrupts.requested() {
            break "";
        }
        if options.duration.is_some_and(|duration| began.elapsed() >= duration) {
            break "";
        }
        match socket.read() {
            Ok(Message::Binary(bytes)) => following.take(&bytes)?,
            Ok(Message::Close(_)) => break "; the recording has ended",
            Ok(_) => {}
            Err(tungstenite::Error::Io(error)) if is_pause(&error) => {}
            // What came so far is a recording whatever became of the program that was recorded.
            Err(_) if following.events > 0 => break "; the connection broke off",
            Err(error) => return Err(Failure::new(format_args!("{}: {error}", options.url))),
        }
        following.pass_on(false)?;
        ticker.set_message(following.progress(began.elapsed()));
    };
    ticker.finish_and_clear();
    following.finish(began.elapsed(), ending)
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

/// The file, and what went into it.
struct Following<'a> {
    options: &'a RecordOptions,
    decoder: Decoder,
    /// Made when there is something to write, so that a wrong address leaves no file behind.
    out: Option<(Encoder, RecordingFile)>,
    /// When the first came of what is in no chunk yet.
    since: Option<Instant>,
    events: u64,
    lost: u64,
}

impl<'a> Following<'a> {
    fn new(options: &'a RecordOptions) -> Self {
        Self { options, decoder: Decoder::new(), out: None, since: None, events: 0, lost: 0 }
    }

    /// Takes a message, which is whole chunks.
    fn take(&mut self, bytes: &[u8]) -> Outcome {
        let url = &self.options.url;
        self.since.get_or_insert_with(Instant::now);
        self.decoder.push(bytes);
        while let Some(item) = self.decoder.next_item().map_err(|error| Failure::new(format_args!("{url}: {error}")))? {
            match item {
                Item::Info(info) => self.begin(&info)?,
                item => self.put(&item),
            }
        }
        Ok(())
    }

    fn begin(&mut self, info: &Info) -> Outcome {
        if self.out.is_none() {
            let (path, file) = (&self.options.output, &self.options.file);
            let file = if path.as_os_str() != "-" {
                file.create(path)?
            } else if file.keep().is_everything() {
                RecordingFile::stdout().map_err(Failure::new)?
            } else {
                return Err(Failure::new(
                    "only a file can keep the newest part of a recording; standard output is none",
                ));
            };
            self.out = Some((Encoder::new(info), file));
        }
        Ok(())
    }

    fn put(&mut self, item: &Item) {
        let Some((encoder, _)) = &mut self.out else { return };
        match item {
            Item::Event(event) => {
                encoder.event(event);
                self.events += 1;
                if let EventKind::Gap { lost } = event.kind {
                    self.lost = self.lost.saturating_add(lost);
                }
            }
            Item::FullState(state) => {
                let next = encoder.state().event();
                if self.events > 0 {
                    self.lost = self.lost.saturating_add(state.event().saturating_sub(next));
                }
                // Events keep the numbers that they have for everyone else who watches.
                encoder.skip_to(state.event());
                encoder.full_state(state);
            }
            Item::Define(definition) => encoder.define(definition),
            Item::Annotation(annotation) => encoder.annotation(annotation),
            Item::Info(_) => {}
        }
    }

    /// Gives the file what is complete or has waited long enough; with `at_once`, everything.
    fn pass_on(&mut self, at_once: bool) -> Outcome {
        let Some((encoder, file)) = &mut self.out else { return Ok(()) };
        if file.wants_state() {
            let state = encoder.state().clone();
            encoder.full_state(&state);
        }
        if at_once || self.since.is_some_and(|since| since.elapsed() >= CUT_EVERY) {
            encoder.flush();
            self.since = None;
        }
        encoder.take_output().into_iter().for_each(|chunk| file.append(Arc::new(chunk)));
        file.failure().map_or(Ok(()), |error| Err(Failure::new(error)))
    }

    fn finish(mut self, took: Duration, ending: &str) -> Outcome {
        self.pass_on(true)?;
        let done = self.progress(took);
        let Some((_, file)) = self.out else {
            return Err(Failure::file(&self.options.output, "not written, for nothing was received"));
        };
        let name = file.name().to_owned();
        file.finish().map_err(Failure::new)?;
        screen::note(format_args!("{name}: {done}{ending}"));
        if self.lost > 0 {
            let lost = units::counted(self.lost, "event is", "events are");
            screen::note(format_args!("{name}: {lost} missing: the program or the connection was too slow"));
        }
        Ok(())
    }

    fn progress(&self, took: Duration) -> String {
        let seconds = took.as_secs_f64().max(0.001);
        let bytes = self.out.as_ref().map_or(0, |(_, file)| file.bytes());
        format!(
            "{} in {}, {}; {} events/s, {}/s",
            units::counted(self.events, "event", "events"),
            units::bytes(bytes),
            units::duration(took),
            units::count((self.events as f64 / seconds) as u64),
            units::bytes((bytes as f64 / seconds) as u64),
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
