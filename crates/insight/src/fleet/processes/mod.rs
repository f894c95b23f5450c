//! The processes of a run: the newest seconds of each, and how they compare.

use std::collections::{BTreeMap, VecDeque};

use super::clock_offset::{ClockOffset, OffsetEstimate};
use super::mesh::Coordinates;
use super::outliers::{self, Outlier, RankDistances, Values};
use super::rank_window::{RankFigures, RankWindow};
use super::sequence_window::{Arrival, SequenceWindow};
use super::summary::{DeviceSummary, Summary};
use super::view::{EventsState, FleetView, ProcessIdentity, RankRow, stages};

#[cfg(test)]
mod tests;

/// Maximum number of processes of a run, including ended ones. Further ones are not shown.
const MAX_PROCESSES: usize = 16_384;
/// Maximum number of summaries that wait for the description of their process.
const MAX_EARLY: usize = 16_384;
/// Maximum memory of the summaries that wait for the description of their process, in bytes.
const MAX_EARLY_BYTES: usize = 64 << 20;
/// Age at which the estimate of a clock is no longer used, in nanoseconds: one minute.
const MAX_CLOCK_AGE_NS: u64 = 60_000_000_000;
/// Maximum number of site names that are kept for one process.
const MAX_NAMES: usize = 256;

/// A process's description of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessDescription {
    /// Its rank among all processes; `None` if it has none.
    pub rank: Option<u32>,
    /// The name of its machine.
    pub host: String,
    /// The name of its program.
    pub program: String,
    /// Its process id.
    pub pid: u32,
    /// Its place in the mesh of the run.
    pub coordinates: Option<Coordinates>,
    /// True once its recording is complete.
    pub has_ended: bool,
}

/// A process: its description, and its newest seconds.
#[derive(Debug, Default)]
struct ProcessState {
    description: ProcessDescription,
    events: EventsState,
    /// The number of its first device in the server's recording.
    device: Option<u16>,
    window: RankWindow,
    clock: ClockOffset,
    distances: RankDistances,
    newest: Summary,
    /// The numbers of its summaries, from the first that arrived.
    numbers: Option<SequenceWindow>,
    /// When the first and the newest summary were stored, by the broker's clock; 0 without a
    /// summary.
    first_broker_ns: u64,
    newest_broker_ns: u64,
    /// Summaries that arrived.
    summaries: u64,
    /// Summaries that are missing.
    lost_summaries: u64,
    /// Names of sites.
    names: BTreeMap<u32, String>,
    /// The values of all metrics, as compared last.
    values: Values,
    outlier: Option<Outlier>,
}

/// A summary of a process whose description has not arrived.
#[derive(Debug)]
struct EarlySummary {
    /// The process that sent the summary.
    sender: ProcessIdentity,
    /// The process that the summary describes.
    identity: ProcessIdentity,
    summary: Summary,
    broker_ns: u64,
}

impl EarlySummary {
    /// Returns its memory, in bytes.
    fn bytes(&self) -> usize {
        let Summary { mark, devices, names, .. } = &self.summary;
        let sites: usize = devices.iter().map(|device| device.sites.capacity() * size_of::<(u32, u64)>()).sum();
        let characters: usize = names.iter().map(|(_, name)| name.capacity()).sum();
        size_of::<Self>()
            + self.sender.0.capacity()
            + self.identity.0.capacity()
            + mark.capacity()
            + devices.capacity() * size_of::<DeviceSummary>()
            + sites
            + names.capacity() * size_of::<(u32, String)>()
            + characters
    }
}

/// All processes of a run.
#[derive(Debug, Default)]
pub struct Fleet {
    processes: BTreeMap<ProcessIdentity, ProcessState>,
    /// Summaries that arrived before the description of their process, in order.
    early: VecDeque<EarlySummary>,
    /// The memory of `early`, in bytes.
    early_bytes: usize,
    /// Summaries that were refused: of unknown processes, and of other machines than the sender's.
    refused: u64,
}

impl Fleet {
    /// Creates a fleet without processes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a process or changes its description. If there are too many processes, drops ended and
    /// replaced ones. Returns false if there are still too many.
    pub fn describe(&mut self, identity: ProcessIdentity, description: ProcessDescription) -> bool {
        if self.processes.len() == MAX_PROCESSES && !self.processes.contains_key(&identity) {
            let starts = self.newest_starts();
            self.processes.retain(|_, process| !process.description.has_ended && !process.is_replaced(&starts));
            if self.processes.len() == MAX_PROCESSES {
                return false;
            }
        }
        self.processes.entry(identity.clone()).or_default().description = description;
        let is_of = |early: &EarlySummary| early.sender == identity || early.identity == identity;
        if self.early.iter().any(is_of) {
            let (known, early): (Vec<_>, Vec<_>) = std::mem::take(&mut self.early).into_iter().partition(is_of);
            self.early = early.into();
            self.early_bytes = self.early.iter().map(EarlySummary::bytes).sum();
            for early in known {
                self.add(&early.sender, early.identity, early.summary, early.broker_ns);
            }
        }
        true
    }

    /// Returns, for each rank, when the first summary of its newest process was stored.
    fn newest_starts(&self) -> BTreeMap<u32, u64> {
        let mut starts = BTreeMap::new();
        for process in self.processes.values() {
            if let Some(rank) = process.description.rank {
                let start: &mut u64 = starts.entry(rank).or_default();
                *start = process.first_broker_ns.max(*start);
            }
        }
        starts
    }

    /// Adds the next summary of the process `identity`, which `sender` sent and the broker stored
    /// at `broker_ns` of its clock.
    ///
    /// A repeated summary is ignored. One that a newer summary has overtaken is counted and its
    /// names are kept, but it changes no values. One of a process on another machine than the
    /// sender's is refused. The descriptions of both processes may arrive later.
    pub fn add(&mut self, sender: &ProcessIdentity, identity: ProcessIdentity, summary: Summary, broker_ns: u64) {
        let (Some(host), true) = (self.host(sender), self.processes.contains_key(&identity)) else {
            let early = EarlySummary { sender: sender.clone(), identity, summary, broker_ns };
            self.early_bytes += early.bytes();
            self.early.push_back(early);
            while self.early.len() > MAX_EARLY || self.early_bytes > MAX_EARLY_BYTES {
                let Some(oldest) = self.early.pop_front() else { break };
                self.early_bytes -= oldest.bytes();
                self.refused += 1;
            }
            return;
        };
        if self.host(&identity) != Some(host) {
            self.refused += 1;
            return;
        }
        if let Some(process) = self.processes.get_mut(&identity) {
            process.add(summary, broker_ns);
        }
    }

    /// Returns the offset of each machine's clock at `now_ns`: the estimate with the least error
    /// among its processes. Only processes that send their summaries themselves have an estimate.
    fn host_clocks(&self, now_ns: u64) -> BTreeMap<&str, OffsetEstimate> {
        let mut clocks = BTreeMap::new();
        let oldest_ns = now_ns.saturating_sub(MAX_CLOCK_AGE_NS);
        for process in self.processes.values().filter(|process| process.newest_broker_ns >= oldest_ns) {
            if let Some(estimate) = process.clock.estimate() {
                let best = clocks.entry(process.description.host.as_str()).or_insert(estimate);
                if estimate.error_ns < best.error_ns {
                    *best = estimate;
                }
            }
        }
        clocks
    }

    /// Returns the name of a process's machine.
    fn host(&self, identity: &ProcessIdentity) -> Option<&str> {
        self.processes.get(identity).map(|process| process.description.host.as_str())
    }

    /// Sets whether the server reads a process's events, and its first device in the server's
    /// recording. Does nothing if the process is unknown.
    pub fn set_events(&mut self, identity: &ProcessIdentity, events: EventsState, device: Option<u16>) {
        if let Some(process) = self.processes.get_mut(identity) {
            (process.events, process.device) = (events, device);
        }
    }

    /// Returns how long ago a process's newest summary was stored, in nanoseconds; `None` without a
    /// summary. `now_ns` is the time by the broker's clock.
    #[must_use]
    pub fn silence_ns(&self, identity: &ProcessIdentity, now_ns: u64) -> Option<u64> {
        let process = self.processes.get(identity).filter(|process| process.newest_broker_ns > 0)?;
        Some(now_ns.saturating_sub(process.newest_broker_ns))
    }

    /// Returns how many summaries were refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns the number of processes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.processes.len()
    }

    /// Returns true if there are no processes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// Compares the running ranks with each other. Leaves out a process whose rank has a newer
    /// process. Call it ten times a second; `now_ns` is the time by the broker's clock.
    pub fn tick(&mut self, now_ns: u64) {
        let starts = self.newest_starts();
        let mut stages: BTreeMap<Option<u32>, Vec<&mut ProcessState>> = BTreeMap::new();
        for process in self.processes.values_mut() {
            process.outlier = None;
            if process.newest_broker_ns > 0 && !process.description.has_ended && !process.is_replaced(&starts) {
                stages.entry(process.stage()).or_default().push(process);
            }
        }
        // Stages too small for a median of their own are compared with each other.
        let (small, large): (Vec<_>, Vec<_>) =
            stages.into_values().partition(|group| group.len() < outliers::MIN_GROUP);
        let small: Vec<_> = small.into_iter().flatten().collect();
        for mut group in large.into_iter().chain([small]) {
            compare_group(&mut group, now_ns);
        }
    }

    /// Returns the displayed figures at `now_ns`, a time by the broker's clock. Each rank has a row
    /// for its newest process, and one for each earlier process that sends again.
    #[must_use]
    pub fn view(&self, now_ns: u64) -> FleetView {
        let starts = self.newest_starts();
        let is_shown = |process: &ProcessState| process.newest_broker_ns > 0 && !process.is_replaced(&starts);
        let with_summaries = self.processes.iter().filter(|(_, process)| is_shown(process));
        let clocks = self.host_clocks(now_ns);
        let row = |(identity, process): (&ProcessIdentity, &ProcessState)| {
            let clock = clocks.get(process.description.host.as_str()).copied();
            process.row(identity.clone(), clock, now_ns)
        };
        let mut ranks: Vec<RankRow> = with_summaries.map(row).collect();
        ranks.sort_by(|a, b| (a.rank.is_none(), a.rank, &a.identity).cmp(&(b.rank.is_none(), b.rank, &b.identity)));
        let stages = stages(&ranks);
        FleetView { time_unix_ns: now_ns, ranks, stages }
    }
}

/// Compares the ranks of a group with each other at `now_ns`.
fn compare_group(group: &mut [&mut ProcessState], now_ns: u64) {
    let mut steps: Vec<f64> = group.iter().filter_map(|process| Some(process.newest.step? as f64)).collect();
    let median_step = outliers::median(&mut steps);
    for process in group.iter_mut() {
        process.values = process.values_at(now_ns, median_step);
    }
    let mut ranks: Vec<_> = group.iter_mut().map(|process| (process.values, &mut process.distances)).collect();
    let medians = outliers::compare(&mut ranks);
    for process in group {
        process.outlier = process.distances.outlier(&process.values, &medians);
    }
}

impl ProcessState {
    /// Adds a summary, which the broker stored at `broker_ns` of its clock.
    fn add(&mut self, summary: Summary, broker_ns: u64) {
        match self.numbers.get_or_insert_with(|| SequenceWindow::new(summary.number)).add(summary.number) {
            Arrival::Repeated => return,
            Arrival::Newest { missing } => self.lost_summaries += missing,
            Arrival::Late => {
                // A late summary was counted as lost, and its values are older than the displayed
                // ones.
                self.lost_summaries -= 1;
                self.summaries += 1;
                self.add_names(summary.names);
                return;
            }
        }
        self.summaries += 1;
        self.clock.sent(summary.number, summary.time_unix_ns, broker_ns);
        if let Some(acknowledged) = summary.acknowledged {
            self.clock.acknowledged(acknowledged.number, acknowledged.time_unix_ns);
        }
        self.add_names(summary.names.iter().cloned());
        if self.newest_broker_ns == 0 {
            self.first_broker_ns = broker_ns;
        }
        self.window.add(broker_ns, &summary.total(), summary.step);
        (self.newest, self.newest_broker_ns) = (summary, broker_ns);
    }

    /// Stores the names of sites, at most [`MAX_NAMES`].
    fn add_names(&mut self, names: impl IntoIterator<Item = (u32, String)>) {
        for (number, name) in names {
            if self.names.len() < MAX_NAMES || self.names.contains_key(&number) {
                self.names.insert(number, name);
            }
        }
    }

    /// Returns true if its rank has another process that began after this one's newest summary.
    /// `starts` has the first summary of each rank's newest process.
    fn is_replaced(&self, starts: &BTreeMap<u32, u64>) -> bool {
        let start = self.description.rank.and_then(|rank| starts.get(&rank));
        start.is_some_and(|start| *start > self.newest_broker_ns)
    }

    /// Returns the process's pipeline stage.
    fn stage(&self) -> Option<u32> {
        self.description.coordinates.as_ref().and_then(|coordinates| coordinates.get("pp"))
    }

    /// Returns the values of all metrics; `median_step` is the median of the group's steps. A rank
    /// that has just started has no peaks yet that can be compared.
    fn values_at(&self, now_ns: u64, median_step: Option<f64>) -> Values {
        let figures = self.window.figures();
        let peak = |value: u64| self.window.has_been_full().then_some(value as f64);
        let behind = self.newest.step.zip(median_step).map(|(step, median)| median - step as f64);
        [
            peak(figures.peak_allocated),
            peak(figures.peak_reserved),
            peak(figures.fragmented),
            self.window.has_growth().then_some(figures.growth),
            behind,
            Some(now_ns.saturating_sub(self.newest_broker_ns) as f64 / 1e9),
        ]
    }

    /// Returns the displayed figures of the process.
    fn row(&self, identity: ProcessIdentity, clock: Option<OffsetEstimate>, now_ns: u64) -> RankRow {
        let RankFigures { peak_allocated, fragmentation, growth, .. } = self.window.figures();
        let total = self.newest.total();
        let coordinates = self.description.coordinates.as_ref();
        let largest_site = total
            .sites
            .first()
            .map(|(number, bytes)| (self.names.get(number).cloned().unwrap_or_else(|| "unknown".to_owned()), *bytes));
        let made_ns = clock.map_or(self.newest_broker_ns, |OffsetEstimate { offset_ns, .. }| {
            self.newest.time_unix_ns.saturating_add_signed(offset_ns).min(self.newest_broker_ns)
        });
        RankRow {
            identity,
            rank: self.description.rank,
            host: self.description.host.clone(),
            pipeline: self.stage(),
            tensor: coordinates.and_then(|coordinates| coordinates.get("tp")),
            allocated: total.allocated,
            reserved: total.reserved,
            peak_allocated,
            fragmentation,
            growth,
            step: self.newest.step,
            mark: self.newest.mark.clone(),
            largest_site,
            ooms: total.ooms,
            lag_ns: now_ns.saturating_sub(made_ns),
            summaries: self.summaries,
            lost_summaries: self.lost_summaries,
            clock,
            has_ended: self.description.has_ended,
            outlier: self.outlier,
            events: self.events,
            device: self.device,
        }
    }
}
