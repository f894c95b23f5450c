//! `vramscope record`: follows a live collector into a file.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use vramscope_collector::{Address, FollowFrom, FollowOptions, Followed, Follower, RecordingFile, parse_time};
use vramscope_trace::{Decoder, Encoder, EventKind, Info, Item, Sink};

use crate::failure::{Failure, Outcome};
use crate::file::FileOptions;
use crate::interrupt::Interrupts;
use crate::screen;
use crate::serving::given_token;
use crate::units;

/// How long one wait for bytes lasts before the clock and Ctrl-C are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long events may wait before their chunk is cut. The chunks that come are for the eye, so small that they take
/// several times as many bytes; with what came before and comes after, events are in the file within 250 ms.
const CUT_EVERY: Duration = Duration::from_millis(100);
/// For how long a connection that is lost is tried again: longer than a network takes to come back, and a machine to wake up.
const PATIENCE: Duration = Duration::from_secs(60);
/// Over how long the rates of the progress line are taken.
const RATE_OVER: Duration = Duration::from_secs(1);

/// Arguments of `record`.
#[derive(Args, Debug)]
pub(crate) struct RecordOptions {
    /// The address that a running vramscope printed, http://127.0.0.1:7791/, with its token
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
    /// Where to begin
    #[arg(long, value_enum, default_value_t = History::All)]
    history: History,
    /// What the program wants to hear before it shows anything [default: the URL's own, or $VRAMSCOPE_TOKEN]
    #[arg(long)]
    token: Option<String>,
    /// Certificates to believe beside the system's, in PEM: for https:// with one that was made at home
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
}

/// Where a recording of something live begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum History {
    /// With the program's first event, or the oldest that it still has
    All,
    /// With the memory as it is now
    Newest,
}

/// Follows until the time is over, the recording ends, or it is interrupted.
pub(crate) fn run(options: &RecordOptions) -> Outcome {
    let interrupts = Interrupts::listen()?;
    let failed = |what: &dyn std::fmt::Display| Failure::new(format_args!("{}: {what}", shown(&options.url)));
    let mut follower = Follower::connect(follow_options(options)?).map_err(|error| failed(&error))?;
    let began = Instant::now();
    let mut following = Following::new(options);
    let ticker = screen::ticker();
    let tell = |what: &str| ticker.suspend(|| screen::note(format_args!("{}: {what}", shown(&options.url))));
    let ending = loop {
        if interrupts.requested() || options.duration.is_some_and(|duration| began.elapsed() >= duration) {
            break String::new();
        }
        match follower.next(LOOK_EVERY) {
            Followed::Chunks(bytes) => following.take(&bytes)?,
            Followed::Broken(why) => {
                let patience = PATIENCE.as_secs();
                tell(&format!("the connection broke off ({why}); trying again for {patience} s, or until Ctrl-C"));
            }
            Followed::Resumed => tell("the connection is back, and nothing is missing"),
            Followed::Rejoined => tell("the connection is back; part of what came between is missing"),
            Followed::Another => break "; the program was started again: record its new recording anew".to_owned(),
            Followed::Ended => break "; the recording has ended".to_owned(),
            // What came so far is a recording whatever became of the program that was recorded.
            Followed::GivenUp(why) if following.events > 0 => break format!("; the connection is lost: {why}"),
            Followed::GivenUp(why) => return Err(failed(&why)),
            // What is missing the recording itself says.
            Followed::Missed(_) | Followed::Nothing => {}
        }
        following.pass_on(false)?;
        ticker.set_message(following.progress());
    };
    ticker.finish_and_clear();
    following.finish(began.elapsed(), &ending)
}

/// The address as it may be seen: the token in it is a secret, and so is a password before the host, wherever that is thought to end.
fn shown(url: &str) -> String {
    let url = url.split_once("token=").map_or(url, |(before, _)| before.trim_end_matches(['?', '&']));
    let Some((before, rest)) = url.rsplit_once('@') else { return url.to_owned() };
    before.split_once("://").map_or_else(|| rest.to_owned(), |(scheme, _)| format!("{scheme}://{rest}"))
}

fn follow_options(options: &RecordOptions) -> Outcome<FollowOptions> {
    let wrong = |error: String| Failure::new(format_args!("{}: {error}", shown(&options.url)));
    let address = Address::parse(&options.url).map_err(wrong)?;
    // The environment's is for whatever is started there, the URL's for this one.
    let given = if options.token.is_none() && address.token().is_some() {
        None
    } else {
        given_token(options.token.as_deref())?
    };
    Ok(FollowOptions {
        address: address.with_token(given.map(|token| token.secret().to_owned())),
        from: if options.history == History::All { FollowFrom::All } else { FollowFrom::Newest },
        ca: options.ca.clone(),
        patience: PATIENCE,
    })
}

/// How fast something grew over the last while.
struct Rate {
    since: Instant,
    events: u64,
    bytes: u64,
    /// Events and bytes a second.
    last: (u64, u64),
}

impl Rate {
    fn new() -> Self {
        Self { since: Instant::now(), events: 0, bytes: 0, last: (0, 0) }
    }

    fn of(&mut self, events: u64, bytes: u64) -> (u64, u64) {
        let took = self.since.elapsed();
        if took >= RATE_OVER {
            let grown = |now: u64, before: u64| (now.saturating_sub(before) as f64 / took.as_secs_f64()) as u64;
            let last = (grown(events, self.events), grown(bytes, self.bytes));
            *self = Self { since: Instant::now(), events, bytes, last };
        }
        self.last
    }
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
    /// Events that are missing, and in how many places.
    lost: u64,
    gaps: u64,
    rate: Rate,
    info: Info,
}

impl<'a> Following<'a> {
    fn new(options: &'a RecordOptions) -> Self {
        Self {
            options,
            decoder: Decoder::new(),
            out: None,
            since: None,
            events: 0,
            lost: 0,
            gaps: 0,
            rate: Rate::new(),
            info: Info::default(),
        }
    }

    /// Takes a message, which is whole chunks.
    fn take(&mut self, bytes: &[u8]) -> Outcome {
        let wrong = |error| Failure::new(format_args!("{}: {error}", shown(&self.options.url)));
        self.since.get_or_insert_with(Instant::now);
        self.decoder.push(bytes);
        while let Some(item) = self.decoder.next_item().map_err(wrong)? {
            match item {
                Item::Info(info) => {
                    self.begin(&info)?;
                    self.info = info;
                }
                item => self.put(&item),
            }
        }
        Ok(())
    }

    fn begin(&mut self, info: &Info) -> Outcome {
        if let Some((encoder, _)) = &mut self.out {
            // One that comes again after a break says nothing new.
            if *info != self.info {
                encoder.head(info);
            }
        } else {
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
                    self.gaps += 1;
                }
            }
            Item::FullState(state) => {
                let next = encoder.state().event();
                let lost = state.event().saturating_sub(next);
                if self.events > 0 && lost > 0 {
                    self.lost = self.lost.saturating_add(lost);
                    self.gaps += 1;
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
        let Some((_, file)) = self.out.take() else {
            return Err(Failure::file(&self.options.output, "not written, for nothing was received"));
        };
        let seconds = took.as_secs_f64().max(0.001);
        let a_second = (file.bytes() as f64 / seconds) as u64;
        let done = format!(
            "{} in {}, {}; {} events/s, {}/s",
            units::counted(self.events, "event", "events"),
            units::bytes(file.bytes()),
            units::duration(took),
            units::count((self.events as f64 / seconds) as u64),
            units::bytes(a_second),
        );
        let name = file.name().to_owned();
        file.finish().map_err(Failure::new)?;
        screen::note(format_args!("{name}: {done}{ending}"));
        if self.lost > 0 {
            let lost = units::counted(self.lost, "event is", "events are");
            let gaps = units::counted(self.gaps, "place", "places");
            screen::note(format_args!("{name}: {lost} missing, in {gaps}: the program or the connection was too slow"));
        }
        Ok(())
    }

    /// Rate, size and gaps.
    fn progress(&mut self) -> String {
        let bytes = self.out.as_ref().map_or(0, |(_, file)| file.bytes());
        let (events_a_second, bytes_a_second) = self.rate.of(self.events, bytes);
        let gaps = match self.lost {
            0 => "nothing missing".to_owned(),
            lost => format!("{} missing", units::counted(lost, "event", "events")),
        };
        format!(
            "{} in {}; {} events/s, {}/s; {gaps}",
            units::counted(self.events, "event", "events"),
            units::bytes(bytes),
            units::count(events_a_second),
            units::bytes(bytes_a_second),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_not_shown() {
        for (url, expected) in [
            ("http://127.0.0.1:7791/", "http://127.0.0.1:7791/"),
            ("http://127.0.0.1:7791/?token=secret", "http://127.0.0.1:7791/"),
            ("http://127.0.0.1:7791/gpu/?a=b&token=secret", "http://127.0.0.1:7791/gpu/?a=b"),
            ("https://me:secret@a.b/gpu/?token=secret", "https://a.b/gpu/"),
            ("me:secret@a.b", "a.b"),
            ("http://me:sec@r/e?t@a.b/", "http://a.b/"),
        ] {
            assert_eq!(shown(url), expected);
        }
    }
}
