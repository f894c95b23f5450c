//! `vramscope record`: records a running program to a file.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use vramscope_collector::{
    Address, FollowError, FollowErrorKind, FollowEvent, FollowFrom, FollowOptions, Follower, RecordingFile, parse_time,
};
use vramscope_trace::{ByteSize, Count, DecodedItem, Decoder, DurationNs, Encoder, EventKind, RecordingInfo, Sink};

use crate::error::{CommandError, Result};
use crate::output::{is_stdout, refuse_terminal};
use crate::retention::RetentionArguments;
use crate::server::access_token;
use crate::signals::Interrupts;
use crate::terminal;

/// Text after the options in `vramscope record --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope record 'http://127.0.0.1:7791/?token=…' -o run.vram
  vramscope record http://gpu1:7791/ -o run.vram --for 30s
  vramscope record http://gpu1:7791/ -o last.vram --keep 10m";

/// Longest wait for data from the program before `--for` and Ctrl-C are checked.
const RECEIVE_TIMEOUT: Duration = Duration::from_millis(50);
/// Longest time that received events wait for their chunk to be written. Received chunks are small,
/// for quick display, and need several times the bytes, so they are merged. With this interval,
/// every event is in the file within 250 ms.
const CHUNK_INTERVAL: Duration = Duration::from_millis(100);
/// Time for which a lost connection is retried. Most network outages are shorter.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// The interval over which the rates in the status line are measured.
const RATE_INTERVAL: Duration = Duration::from_secs(1);

/// Arguments of `vramscope record`: the program's address, the file to write, and when to begin and
/// stop.
#[derive(Args, Debug)]
pub(crate) struct RecordArguments {
    /// Address that the program printed, such as http://127.0.0.1:7791/, with its token
    #[arg(value_name = "URL")]
    url: String,
    /// Recording to write, readable while it grows; - is standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    retention: RetentionArguments,
    /// Stop after this long: 30s, 5m, 1h [default: at Ctrl-C or when the program ends]
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
    duration: Option<Duration>,
    /// Where to begin
    #[arg(long, value_enum, value_name = "START", default_value_t = History::All)]
    history: History,
    /// Access token [default: the token in the URL, or $VRAMSCOPE_TOKEN]
    #[arg(long)]
    token: Option<String>,
    /// Extra CA certificates (PEM), for a self-signed server
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
}

/// Values of `record --history`: whether the file begins at the oldest event that the program
/// holds, or at the current state of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum History {
    /// At the first event, or the oldest one that the program still holds
    All,
    /// At the current state of memory
    Newest,
}

/// Records until the time is over, the recording ends, or the command is interrupted.
pub(crate) fn run(arguments: &RecordArguments) -> Result {
    let interrupts = Interrupts::listen()?;
    if is_stdout(&arguments.output) {
        refuse_terminal()?;
    }
    let error_at = |error: &FollowError| connection_error(&arguments.url, error);
    let mut follower = Follower::connect(follow_options(arguments)?).map_err(|error| error_at(&error))?;
    let start = Instant::now();
    let mut copy = RecordingCopy::new(arguments);
    let status_line = terminal::status_line();
    let report = |text: &str| {
        status_line.suspend(|| terminal::message(format_args!("{}: {text}", without_secrets(&arguments.url))));
    };
    let end_reason = loop {
        if interrupts.requested() || arguments.duration.is_some_and(|duration| start.elapsed() >= duration) {
            break String::new();
        }
        match follower.next(RECEIVE_TIMEOUT) {
            FollowEvent::Chunks(bytes) => copy.receive(&bytes)?,
            FollowEvent::Disconnected(reason) => {
                let seconds = RECONNECT_TIMEOUT.as_secs();
                report(&format!("connection lost ({reason}); retrying for {seconds} s, or until Ctrl-C"));
            }
            FollowEvent::Resumed => report("reconnected; no events are missing"),
            FollowEvent::ResumedWithGap => report("reconnected; some events are missing"),
            FollowEvent::NewRecording => {
                break "; the program was restarted: run this command again to record the new run".to_owned();
            }
            FollowEvent::Ended => break "; the recording has ended".to_owned(),
            // The part that was received is a valid recording.
            FollowEvent::GaveUp(reason) if copy.events > 0 => break format!("; connection lost: {reason}"),
            FollowEvent::GaveUp(reason) => return Err(error_at(&reason)),
            // The recording itself contains the gap.
            FollowEvent::Missed(_) | FollowEvent::Nothing => {}
        }
        copy.write_chunks(false)?;
        status_line.set_message(copy.status());
    };
    status_line.finish_and_clear();
    copy.finish(start.elapsed(), &end_reason)
}

/// Returns the error for a failed connection to `url`. If an option helps, the error names it.
fn connection_error(url: &str, error: &FollowError) -> CommandError {
    let remedy = match error.kind() {
        FollowErrorKind::UnknownIssuer => "; pass its CA certificate with --ca",
        _ => "",
    };
    CommandError::new(format_args!("{}: {error}{remedy}", without_secrets(url)))
}

/// Returns a URL for messages without its secrets: the token, and a password before the host name.
fn without_secrets(url: &str) -> String {
    let url = url.split_once("token=").map_or(url, |(before, _)| before.trim_end_matches(['?', '&']));
    // The last @, because a careless password may contain others.
    let Some((before, rest)) = url.rsplit_once('@') else { return url.to_owned() };
    before.split_once("://").map_or_else(|| rest.to_owned(), |(scheme, _)| format!("{scheme}://{rest}"))
}

/// Returns the options of the connection: address, token, start, CA certificates and retries.
fn follow_options(arguments: &RecordArguments) -> Result<FollowOptions> {
    let address = Address::parse(&arguments.url)
        .map_err(|error| CommandError::new(format_args!("{}: {error}", without_secrets(&arguments.url))))?;
    // The URL's token is meant for this server; the one in the environment may be for another.
    let token = if arguments.token.is_none() && address.token().is_some() {
        None
    } else {
        access_token(arguments.token.as_deref())?
    };
    Ok(FollowOptions {
        address: address.with_token(token.map(|token| token.secret().to_owned())),
        from: if arguments.history == History::All { FollowFrom::All } else { FollowFrom::Newest },
        ca: arguments.ca.clone(),
        retry_time: RECONNECT_TIMEOUT,
    })
}

/// A meter of events and bytes per second, over intervals of [`RATE_INTERVAL`].
struct RateMeter {
    interval_start: Instant,
    /// Totals at the start of the interval.
    events: u64,
    bytes: u64,
    /// Events and bytes per second in the previous interval.
    rates: (u64, u64),
}

impl RateMeter {
    fn new() -> Self {
        Self { interval_start: Instant::now(), events: 0, bytes: 0, rates: (0, 0) }
    }

    /// Takes the totals so far and returns (events per second, bytes per second) in the last
    /// complete interval.
    fn update(&mut self, events: u64, bytes: u64) -> (u64, u64) {
        let elapsed = self.interval_start.elapsed();
        if elapsed >= RATE_INTERVAL {
            let rate = |now: u64, before: u64| (now.saturating_sub(before) as f64 / elapsed.as_secs_f64()) as u64;
            let rates = (rate(events, self.events), rate(bytes, self.bytes));
            *self = Self { interval_start: Instant::now(), events, bytes, rates };
        }
        self.rates
    }
}

/// The file that `record` writes, and counts of its content.
struct RecordingCopy<'a> {
    arguments: &'a RecordArguments,
    decoder: Decoder,
    /// Created when the first data arrives, so that a wrong address leaves no file behind.
    output: Option<(Encoder, RecordingFile)>,
    /// Time at which the oldest event that is not yet in a chunk was received.
    pending_since: Option<Instant>,
    events: u64,
    lost_events: u64,
    gaps: u64,
    rate: RateMeter,
    info: RecordingInfo,
}

impl<'a> RecordingCopy<'a> {
    fn new(arguments: &'a RecordArguments) -> Self {
        Self {
            arguments,
            decoder: Decoder::new(),
            output: None,
            pending_since: None,
            events: 0,
            lost_events: 0,
            gaps: 0,
            rate: RateMeter::new(),
            info: RecordingInfo::default(),
        }
    }

    /// Decodes a message of the server, which consists of whole chunks, and adds its content to the
    /// file.
    fn receive(&mut self, bytes: &[u8]) -> Result {
        let format_error = |error| CommandError::new(format_args!("{}: {error}", without_secrets(&self.arguments.url)));
        self.pending_since.get_or_insert_with(Instant::now);
        self.decoder.push(bytes);
        while let Some(item) = self.decoder.next_item().map_err(format_error)? {
            match item {
                DecodedItem::Info(info) => {
                    self.begin(&info)?;
                    self.info = info;
                }
                item => self.add(&item),
            }
        }
        Ok(())
    }

    /// Creates the output when the program's description arrives first; a later, changed
    /// description is added to the output.
    fn begin(&mut self, info: &RecordingInfo) -> Result {
        if let Some((encoder, _)) = &mut self.output {
            // After a reconnection the description arrives again.
            if *info != self.info {
                encoder.update_info(info);
            }
            return Ok(());
        }
        let (path, retention) = (&self.arguments.output, &self.arguments.retention);
        let file = if !is_stdout(path) {
            retention.create(path)?
        } else if retention.keep().is_everything() {
            RecordingFile::stdout().map_err(CommandError::new)?
        } else {
            return Err(CommandError::new("--keep and --keep-bytes need a file, not standard output"));
        };
        self.output = Some((Encoder::new(info), file));
        Ok(())
    }

    /// Encodes an item of the recording (an event, a definition, a full state) for the file, and
    /// counts events, lost events and gaps.
    fn add(&mut self, item: &DecodedItem) {
        let Some((encoder, _)) = &mut self.output else { return };
        match item {
            DecodedItem::Event(event) => {
                encoder.event(event);
                self.events += 1;
                if let EventKind::Gap { lost } = event.kind {
                    self.lost_events = self.lost_events.saturating_add(lost);
                    self.gaps += 1;
                }
            }
            DecodedItem::FullState(state) => {
                let lost = state.event().saturating_sub(encoder.state().event());
                if self.events > 0 && lost > 0 {
                    self.lost_events = self.lost_events.saturating_add(lost);
                    self.gaps += 1;
                }
                // Events keep the numbers that every other viewer of the program shows.
                encoder.skip_to(state.event());
                encoder.replace_state(state);
            }
            DecodedItem::Define(definition) => encoder.define(definition),
            DecodedItem::Annotation(annotation) => encoder.annotation(annotation),
            DecodedItem::Relabel(relabel) => encoder.relabel(relabel),
            DecodedItem::Info(_) => {}
        }
    }

    /// Passes complete chunks to the file; also an incomplete one if its events have waited
    /// [`CHUNK_INTERVAL`], or if `flush` is set.
    fn write_chunks(&mut self, flush: bool) -> Result {
        let Some((encoder, file)) = &mut self.output else { return Ok(()) };
        if file.wants_state() {
            let state = encoder.state().clone();
            encoder.replace_state(&state);
        }
        if flush || self.pending_since.is_some_and(|since| since.elapsed() >= CHUNK_INTERVAL) {
            encoder.flush();
            self.pending_since = None;
        }
        encoder.take_output().into_iter().for_each(|chunk| file.append(Arc::new(chunk)));
        file.failure().map_or(Ok(()), |error| Err(CommandError::new(error)))
    }

    /// Completes the file and prints its totals, followed by `end_reason`; fails if no data was
    /// received.
    fn finish(mut self, elapsed: Duration, end_reason: &str) -> Result {
        self.write_chunks(true)?;
        let Some((_, file)) = self.output.take() else {
            return Err(CommandError::file(
                &self.arguments.output,
                "not written: the server sent no data; check that the program runs, or raise --for",
            ));
        };
        let seconds = elapsed.as_secs_f64().max(0.001);
        let name = file.name().to_owned();
        // Only an ended file has all its bytes: another thread writes them.
        let bytes = file.finish().map_err(CommandError::new)?;
        let totals = format!(
            "{}, {} in {}; {} events/s, {}/s",
            Count(self.events).of("event", "events"),
            ByteSize(bytes),
            DurationNs(elapsed.as_nanos() as u64),
            Count((self.events as f64 / seconds) as u64),
            ByteSize((bytes as f64 / seconds) as u64),
        );
        terminal::message(format_args!("{name}: {totals}{end_reason}"));
        if self.lost_events > 0 {
            let lost = Count(self.lost_events).of("event is", "events are");
            let gaps = Count(self.gaps).of("gap", "gaps");
            let reason = "the program or the connection was too slow";
            terminal::message(format_args!("{name}: {lost} missing, in {gaps}: {reason}"));
        }
        Ok(())
    }

    /// Returns the text of the status line: totals, rates per second and missing events.
    fn status(&mut self) -> String {
        let bytes = self.output.as_ref().map_or(0, |(_, file)| file.bytes());
        let (events_per_second, bytes_per_second) = self.rate.update(self.events, bytes);
        let missing = match self.lost_events {
            0 => "no events missing".to_owned(),
            lost => format!("{} missing", Count(lost).of("event", "events")),
        };
        format!(
            "{}, {}; {} events/s, {}/s; {missing}",
            Count(self.events).of("event", "events"),
            ByteSize(bytes),
            Count(events_per_second),
            ByteSize(bytes_per_second),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_removed_from_addresses() {
        for (url, expected) in [
            ("http://127.0.0.1:7791/", "http://127.0.0.1:7791/"),
            ("http://127.0.0.1:7791/?token=secret", "http://127.0.0.1:7791/"),
            ("http://127.0.0.1:7791/gpu/?a=b&token=secret", "http://127.0.0.1:7791/gpu/?a=b"),
            ("https://me:secret@a.b/gpu/?token=secret", "https://a.b/gpu/"),
            ("me:secret@a.b", "a.b"),
            ("http://me:sec@r/e?t@a.b/", "http://a.b/"),
        ] {
            assert_eq!(without_secrets(url), expected);
        }
    }

    #[test]
    fn refused_connection_suggests_a_cause_once() {
        // Nothing listens on port 1.
        let url = "http://127.0.0.1:1/?token=secret";
        let address = Address::parse(url).expect("a valid address");
        let options = FollowOptions { address, from: FollowFrom::All, ca: None, retry_time: Duration::ZERO };
        let error = Follower::connect(options).expect_err("the connection is refused");
        assert_eq!(error.kind(), FollowErrorKind::ConnectionRefused);
        let error = connection_error(url, &error).to_string();
        assert_eq!(error, "http://127.0.0.1:1/: Connection refused: is the program running?");
    }
}
