//! Archives a long run and opens moments of it.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use vramscope_fleet::archive::{ArchiveAddress, ArchiveError, ArchiveReader, RankEntry, Rollup};
use vramscope_fleet::{FleetAddress, StreamLimits, create_streams};
use vramscope_trace::{DeviceId, Replay};

use super::expected_rank::ExpectedRank;
use super::training::Training;
use crate::broker::Broker;
use crate::process::ProcessUsage;
use crate::program::Program;

/// Interval at which memory and store are looked at.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Longest wait until the archive has everything.
const TIMEOUT: Duration = Duration::from_secs(900);
/// The most memory of the broker, in bytes.
const MAX_BROKER_BYTES: u64 = 512 << 20;
/// The most memory of the server, in bytes: 512 MiB of open parts of recordings, 256 MiB of the
/// page's history, and as much again for the states of the ranks and what the allocator keeps.
const MAX_SERVER_BYTES: u64 = 1536 << 20;
/// Seconds at the beginning and the end of the run in which a rank may have no summaries.
const MARGIN_SECONDS: u64 = 3;
/// Seconds of a day.
const DAY_SECONDS: f64 = 86_400.0;
/// Limits of the streams: far less than the run has, so that the broker must delete messages.
const LIMITS: StreamLimits = StreamLimits {
    event_bytes: 512 << 20,
    event_age: Duration::from_secs(600),
    summary_bytes: 64 << 20,
    summary_age: Duration::from_secs(120),
};

/// What is simulated.
#[derive(Clone, Debug)]
pub struct DayPlan {
    /// Number of ranks.
    pub ranks: u32,
    /// Events of each rank in a second of the day.
    pub rate: u64,
    /// The time in which all events of a day are made.
    pub time: Duration,
    /// Moments to open.
    pub moments: u32,
    /// Decides the moments.
    pub seed: u64,
    /// The folder of the archive, which must not have one yet.
    pub folder: PathBuf,
}

/// What was measured.
#[derive(Clone, Debug, Default)]
pub struct DayFigures {
    /// Number of ranks.
    pub ranks: u32,
    /// Events of all ranks, and those in the archive.
    pub events: [u64; 2],
    /// Time in which they were made, in seconds.
    pub seconds: f64,
    /// Rows of roll-ups of all ranks, one for each second, the summaries in them, and those that
    /// are missing.
    pub rollups: [u64; 3],
    /// Seconds of ranks that have no row.
    pub seconds_without_rows: u64,
    /// Number of parts of recordings in the archive.
    pub objects: u64,
    /// Their size in bytes.
    pub archive_bytes: u64,
    /// The largest size of the broker's store, and what its streams may have at most, in bytes.
    pub store: [u64; 2],
    /// The largest memory of the broker and of the server that archives, in bytes.
    pub memory: [u64; 2],
    /// Processor time in seconds for each second: broker, server, and this process (ranks).
    pub processors: [f64; 3],
    /// Times to open a moment of a rank, in milliseconds: median, largest.
    pub open_ms: [u64; 2],
    /// What was wrong.
    pub failures: Vec<String>,
}

impl fmt::Display for DayFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes >> 20;
        let [made, archived] = self.events;
        writeln!(f, "{} ranks: {made} events in {:.0} s; the archive has {archived}", self.ranks, self.seconds)?;
        let [rows, summaries, lost] = self.rollups;
        writeln!(
            f,
            "roll-ups: {rows} rows of a rank and second, with {summaries} summaries; {lost} are missing; {} seconds \
             have no row",
            self.seconds_without_rows
        )?;
        writeln!(
            f,
            "archive: {} parts of recordings, {} MiB, {:.2} bytes an event",
            self.objects,
            mib(self.archive_bytes),
            self.archive_bytes as f64 / archived.max(1) as f64
        )?;
        let ([store, limit], [broker_bytes, server_bytes]) = (self.store, self.memory);
        writeln!(f, "broker: store at most {} MiB, of {} MiB allowed", mib(store), mib(limit))?;
        writeln!(f, "memory: broker at most {} MiB, server {} MiB", mib(broker_bytes), mib(server_bytes))?;
        let [broker, server, own] = self.processors;
        writeln!(f, "processors: broker {broker:.2}, server {server:.2}, ranks {own:.2}")?;
        write!(f, "opening a moment of a rank: median {} ms, largest {} ms", self.open_ms[0], self.open_ms[1])?;
        self.failures.iter().try_for_each(|failure| write!(f, "\nFAILED: {failure}"))
    }
}

/// Makes all events of a day in a shorter time, archives them through a broker that cannot keep
/// them all, and opens moments of the archive.
///
/// # Panics
/// Panics if there is no `nats-server` or no `vramscope`, or the folder has an archive.
#[must_use]
pub fn archive_a_day(plan: &DayPlan) -> DayFigures {
    let broker = Broker::start();
    let url = broker.address("day");
    create_streams(&FleetAddress::parse(&url).expect("a valid address"), &LIMITS).expect("the broker runs");
    let archive = format!("file://{}", plan.folder.display());
    let address = ArchiveAddress::parse(&archive).expect("a valid address");
    assert!(ArchiveReader::open(&address).is_err(), "{archive} exists");
    let mut server = Program::start(["serve", "--from", &url, "--archive", &archive]);
    let rate = (plan.rate as f64 * DAY_SECONDS / plan.time.as_secs_f64()) as u64;

    let mut figures = DayFigures { ranks: plan.ranks, ..DayFigures::default() };
    figures.store[1] = LIMITS.event_bytes + LIMITS.summary_bytes;
    let usage = |server: &Program| {
        let own = ProcessUsage::of(std::process::id());
        [broker.usage(), ProcessUsage::of(server.pid()), own].map(Option::unwrap_or_default)
    };
    let (start, before) = (Instant::now(), usage(&server));
    let mut training = Training::start(&url, plan.ranks, rate);
    let watch = |figures: &mut DayFigures, server: &Program| {
        thread::sleep(POLL_INTERVAL);
        let used = usage(server);
        figures.memory = std::array::from_fn(|index| figures.memory[index].max(used[index].resident_bytes));
        figures.store[0] = figures.store[0].max(broker.store_bytes());
    };
    while start.elapsed() < plan.time {
        watch(&mut figures, &server);
    }
    training.stop();
    figures.seconds = start.elapsed().as_secs_f64();
    let after = usage(&server);
    figures.processors = std::array::from_fn(|index| after[index].cores_since(&before[index], figures.seconds));
    figures.events[0] = training.events();
    training.ranks().iter_mut().for_each(super::PushingRank::end);
    let stopped = Instant::now();
    while archived_events(&address) < figures.events[0] && stopped.elapsed() < TIMEOUT {
        watch(&mut figures, &server);
    }
    let status = server.interrupt();
    if !status.success() {
        figures.failures.push(format!("the server ended with {status}: {}", server.messages()));
    } else if server.messages().contains("left out") {
        figures.failures.push(format!("the server left out summaries: {}", server.messages()));
    }
    figures.read_archive(plan, &address, &training);
    figures
}

/// Returns how many events an archive has; none if it cannot be read yet.
fn archived_events(address: &ArchiveAddress) -> u64 {
    ArchiveReader::open(address).map_or(0, |reader| reader.ranks().iter().map(events).sum())
}

/// Returns the number of a rank's archived events.
fn events(rank: &RankEntry) -> u64 {
    rank.parts.iter().map(|part| part.events).sum()
}

impl DayFigures {
    /// Compares the archive with what the ranks did, and opens moments of it.
    fn read_archive(&mut self, plan: &DayPlan, address: &ArchiveAddress, training: &Training) {
        let reader = match ArchiveReader::open(address) {
            Ok(reader) => reader,
            Err(error) => return self.failures.push(error.to_string()),
        };
        let sizes = reader.ranks().iter().flat_map(|rank| rank.parts.iter().map(|part| part.object.bytes));
        self.objects = sizes.clone().count() as u64;
        self.archive_bytes = sizes.sum();
        self.events[1] = reader.ranks().iter().map(events).sum();
        for rank in training.ranks().iter() {
            let Some(entry) = reader.ranks().iter().find(|entry| entry.rank == Some(rank.rank)) else {
                self.failures.push(format!("the archive lacks rank {}", rank.rank));
                continue;
            };
            if events(entry) != rank.program.events() {
                let (archived, made) = (events(entry), rank.program.events());
                self.failures.push(format!("rank {} has made {made} events, {archived} are archived", rank.rank));
            }
            let end_ms = entry.parts.last().map_or(0, |part| part.object.end_unix_ms);
            match reader.recording_at(entry, end_ms) {
                Ok(Some(recording)) => {
                    let state = recording.end_state().device(DeviceId(0));
                    if state.is_none_or(|state| !ExpectedRank::from(rank).is_shown_by(state)) {
                        self.failures.push(format!("rank {} ends in another state", rank.rank));
                    }
                }
                Ok(None) => self.failures.push(format!("rank {} has no end", rank.rank)),
                Err(error) => self.failures.push(error.to_string()),
            }
        }
        if let Err(error) = self.read_rollups(&reader, training) {
            self.failures.push(error.to_string());
        }
        self.open_moments(plan, address, &reader);
        for (of, used, most) in
            [("broker", self.memory[0], MAX_BROKER_BYTES), ("server", self.memory[1], MAX_SERVER_BYTES)]
        {
            if used > most {
                self.failures.push(format!("the memory of the {of} was {used} bytes, more than {most}"));
            }
        }
        let [store, limit] = self.store;
        if store > limit {
            self.failures.push(format!("the broker's store had {store} bytes"));
        }
    }

    /// Checks that the roll-ups have every rank and every summary. Counts the seconds without a
    /// row: a busy machine sends no summary in some.
    fn read_rollups(&mut self, reader: &ArchiveReader, training: &Training) -> Result<(), ArchiveError> {
        let rows = reader.rollups(0..u64::MAX, None)?;
        let sum = |count: fn(&Rollup) -> u64| rows.iter().map(count).sum();
        self.rollups = [rows.len() as u64, sum(|row| row.summaries), sum(|row| row.lost_summaries)];
        for rank in training.ranks().iter() {
            let of_rank = rows.iter().filter(|row| row.rank == Some(rank.rank));
            let seconds: BTreeSet<u64> = of_rank.clone().map(|row| row.unix_ms / 1000).collect();
            let span = seconds.last().zip(seconds.first()).map_or(0, |(last, first)| last - first + 1);
            let (have, lost) = (seconds.len() as u64, of_rank.clone().map(|row| row.lost_summaries).sum::<u64>());
            self.seconds_without_rows += span.max((self.seconds as u64).saturating_sub(MARGIN_SECONDS)) - have;
            if have == 0 || lost > 0 {
                self.failures.push(format!("the history of rank {} has {have} seconds, lost {lost}", rank.rank));
            }
        }
        Ok(())
    }

    /// Opens random moments, each with a reader of its own, as a user does.
    fn open_moments(&mut self, plan: &DayPlan, address: &ArchiveAddress, reader: &ArchiveReader) {
        let mut random = Rng::with_seed(plan.seed);
        let mut times = Vec::new();
        for _ in 0..plan.moments {
            let rank = &reader.ranks()[random.usize(..reader.ranks().len())];
            let (Some(first), Some(last)) = (rank.parts.first(), rank.parts.last()) else { continue };
            let unix_ms = random.u64(first.object.start_unix_ms..=last.object.end_unix_ms);
            let start = Instant::now();
            if let Err(error) = open_moment(address, &rank.identity, unix_ms) {
                self.failures.push(format!("{unix_ms} of rank {:?}: {error}", rank.rank));
            }
            times.push(start.elapsed().as_millis() as u64);
        }
        times.sort_unstable();
        self.open_ms = [times.get(times.len() / 2), times.last()].map(|time| time.copied().unwrap_or(0));
    }
}

/// Opens the recording of a process at a time, and computes the state of its memory then.
fn open_moment(address: &ArchiveAddress, identity: &str, unix_ms: u64) -> Result<(), String> {
    let reader = ArchiveReader::open(address).map_err(|error| error.to_string())?;
    let rank = reader.ranks().iter().find(|rank| rank.identity == identity).ok_or("the rank is missing")?;
    let recording = reader.recording_at(rank, unix_ms).map_err(|error| error.to_string())?;
    let recording = recording.ok_or("the recording has ended before")?;
    let time_ns = (unix_ms * 1_000_000).saturating_sub(recording.info().epoch_unix_ns);
    let mut replay = Replay::new();
    let event = replay.event_at_time(&recording, time_ns);
    let state = replay.seek(&recording, event).map_err(|error| error.to_string())?;
    state.device(DeviceId(0)).map(drop).ok_or_else(|| "the state has no device".to_owned())
}
