//! Measures what a server shows of a simulated run.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fastrand::Rng;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use vramscope_collector::{Aggregator, Outputs, Process};
use vramscope_fleet::{FleetAddress, FleetError, Follower, FollowerOptions, SimulatedHost};
use vramscope_insight::fleet::{DeviceSummary, Summary};

use super::recorded_training::RecordedTraining;
use super::watch::{FollowerWatch, PageWatch, Shown, Watch};
use crate::broker::Broker;
use crate::process::ProcessUsage;

/// Interval between two summaries of a rank.
const INTERVAL: Duration = Duration::from_millis(100);
/// Interval at which the server's view is read.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Longest wait for anything that is to be shown.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Summaries of each rank before outliers are planted.
const WINDOW_SUMMARIES: u64 = 50;
/// Number of connections that are opened at once.
const CONNECTING: usize = 32;
/// No rank.
const NO_RANK: u32 = u32::MAX;

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Number of ranks.
    pub ranks: u32,
    /// Ranks whose summaries are sent in one message.
    pub batch: usize,
    /// The least time of the measurement; it ends after the last outlier.
    pub time: Duration,
    /// Number of planted outliers.
    pub outliers: u32,
    /// Machines that are killed after that, one after the other, and whose ranks start again.
    pub kills: u32,
    /// Decides the shifts of ranks and the outliers.
    pub seed: u64,
    /// True to watch the page of a server of its own, in headless Chromium.
    pub has_page: bool,
}

/// What was measured.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Number of ranks.
    pub ranks: u32,
    /// Summaries that were sent.
    pub sent: u64,
    /// Summaries that the server lacks, and those that could not be sent.
    pub lost: u64,
    /// Lag in milliseconds: median, 95th percentile, largest of all ranks at all times; with a
    /// page, of what 95% of the ranks do not exceed at a time.
    pub lag_ms: [u64; 3],
    /// For each planted outlier, milliseconds until it was marked; `None` if it was not.
    pub marked_ms: Vec<Option<u64>>,
    /// Outliers that were ranked first once marked.
    pub ranked_first: usize,
    /// Ranks that were marked although they did not differ.
    pub wrong_marks: u64,
    /// For each killed machine, milliseconds from its new start until all its ranks were shown as
    /// new processes; `None` if they were not.
    pub restarted_ms: Vec<Option<u64>>,
    /// Processor time in seconds for each second of the measurement: broker, server of the page,
    /// and this process (simulated ranks, and the server if there is no page).
    pub processors: [f64; 3],
    /// Resident memory of the broker and of the page's server, in bytes.
    pub memory: [u64; 2],
    /// Size of the broker's store, in bytes.
    pub store_bytes: u64,
    /// Times that 95% of the page's frames do not exceed, in milliseconds: from one frame to the
    /// next, and drawing. `None` without a page.
    pub frames_ms: Option<[f64; 2]>,
}

impl Figures {
    /// Returns what is not as it should be. How long something took is only printed.
    #[must_use]
    pub fn failures(&self) -> Vec<String> {
        let planted = self.marked_ms.len();
        let unmarked = self.marked_ms.iter().filter(|time| time.is_none()).count();
        let mut failures = Vec::new();
        let mut check = |is_right: bool, failure: String| {
            if !is_right {
                failures.push(failure);
            }
        };
        check(self.lost == 0, format!("{} summaries are lost", self.lost));
        check(unmarked == 0, format!("{unmarked} outliers are not marked"));
        check(self.ranked_first == planted, format!("{} outliers are not ranked first", planted - self.ranked_first));
        check(self.wrong_marks == 0, format!("ranks that do not differ are marked {} times", self.wrong_marks));
        let missing = self.restarted_ms.iter().filter(|time| time.is_none()).count();
        check(missing == 0, format!("the new ranks of {missing} killed machines are not shown"));
        failures
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, p95, most] = self.lag_ms;
        let marked: Vec<u64> = self.marked_ms.iter().flatten().copied().collect();
        let ([broker, server, own], [broker_bytes, server_bytes]) = (self.processors, self.memory);
        writeln!(f, "{} ranks: {} summaries sent, {} lost", self.ranks, self.sent, self.lost)?;
        writeln!(f, "lag: median {median} ms, p95 {p95} ms, largest {most} ms")?;
        writeln!(
            f,
            "outliers: {} of {} marked, {} ranked first, after at most {} ms; {} wrong marks",
            marked.len(),
            self.marked_ms.len(),
            self.ranked_first,
            marked.iter().max().unwrap_or(&0),
            self.wrong_marks
        )?;
        let share = 100.0 * marked.iter().filter(|time| **time <= 1000).count() as f64 / marked.len().max(1) as f64;
        let mib = |bytes: u64| bytes >> 20;
        writeln!(f, "marked within 1 s: {share:.0}% of those marked: {marked:?} ms")?;
        let restarted: Vec<u64> = self.restarted_ms.iter().flatten().copied().collect();
        writeln!(
            f,
            "killed machines: ranks of {} of {} shown again, after at most {} ms",
            restarted.len(),
            self.restarted_ms.len(),
            restarted.iter().max().unwrap_or(&0)
        )?;
        writeln!(f, "processors: broker {broker:.2}, page's server {server:.2}, this process {own:.2}")?;
        write!(
            f,
            "memory: broker {} MiB, page's server {} MiB; store {} MiB",
            mib(broker_bytes),
            mib(server_bytes),
            mib(self.store_bytes)
        )?;
        if let Some([frame, draw]) = self.frames_ms {
            write!(f, "\nframes of the page: 95% within {frame:.1} ms, drawing {draw:.1} ms")?;
        }
        self.failures().iter().try_for_each(|failure| write!(f, "\nFAILED: {failure}"))
    }
}

/// How one rank differs from the others.
#[derive(Debug)]
struct Planted {
    /// The rank; [`NO_RANK`] for none.
    rank: AtomicU32,
    /// Kind of the difference.
    kind: AtomicU32,
    /// When it began.
    since: Mutex<Instant>,
}

impl Planted {
    fn plant(&self, rank: u32, kind: u32) {
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.kind.store(kind, Ordering::Relaxed);
        self.rank.store(rank, Ordering::Release);
    }

    /// Changes what a rank holds if it is the planted one.
    fn apply(&self, rank: u32, device: &mut DeviceSummary) {
        if self.rank.load(Ordering::Acquire) != rank {
            return;
        }
        let since = self.since.lock().unwrap_or_else(PoisonError::into_inner).elapsed();
        match self.kind.load(Ordering::Relaxed) % 3 {
            // A third more memory.
            0 => {
                device.allocated += device.allocated / 3;
                device.reserved += device.reserved / 3;
            }
            // Fragmented: more reserved memory, in free blocks that are small.
            1 => {
                device.reserved += device.reserved / 2;
                device.free += device.reserved / 2;
            }
            // A leak of 16 GiB a second.
            _ => {
                let leaked = (since.as_secs_f64() * (16_u64 << 30) as f64) as u64;
                device.allocated += leaked;
                device.reserved += leaked;
            }
        }
    }
}

/// What the tasks of simulated machines share.
struct Simulation {
    training: RecordedTraining,
    planted: Planted,
    stopped: AtomicBool,
    unsent: AtomicU64,
    /// When the training began.
    start: Instant,
}

/// A simulated machine.
struct Machine {
    ranks: Vec<u32>,
    task: JoinHandle<()>,
    /// Summaries that it has sent.
    sent: Arc<AtomicU64>,
}

/// Returns the current time in nanoseconds since 1970.
fn unix_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Returns the description of a simulated rank.
fn process(rank: u32, seed: u64) -> Process {
    Process {
        identity: format!("{seed:016x}{rank:016x}"),
        program: "train.py".to_owned(),
        pid: 1000 + rank,
        rank: Some(rank),
        local_rank: Some(rank % 8),
        host: format!("node{:04}", rank / 8),
        ..Process::default()
    }
}

/// Sends the summaries of a machine's ranks until the simulation stops.
async fn simulate(
    host: SimulatedHost,
    ranks: Vec<u32>,
    shift: Duration,
    sent: Arc<AtomicU64>,
    simulation: Arc<Simulation>,
) {
    tokio::time::sleep(shift).await;
    let mut interval = tokio::time::interval(INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Burst);
    // A machine that starts again continues with the training, as from a checkpoint.
    let begin = (simulation.start.elapsed().as_nanos() / INTERVAL.as_nanos()) as u64;
    let mut number = 0;
    while !simulation.stopped.load(Ordering::Relaxed) {
        interval.tick().await;
        let acknowledged = host.acknowledged();
        let summaries = ranks.iter().map(|&rank| {
            // Ranks are at different points of a step.
            let mut device = simulation.training.at(begin + number + u64::from(rank) * 7);
            simulation.planted.apply(rank, &mut device);
            let names =
                if number == 0 { device.sites.iter().map(|(site, _)| name(*site)).collect() } else { Vec::new() };
            Summary {
                number,
                time_unix_ns: unix_ns(),
                events: number * 500,
                step: Some(simulation.training.step(begin + number)),
                mark: "forward".to_owned(),
                devices: vec![device],
                names,
                acknowledged,
                ..Summary::default()
            }
        });
        let count = ranks.len() as u64;
        let is_sent = host.send(number, summaries.collect()).await;
        let counter = if is_sent { &*sent } else { &simulation.unsent };
        counter.fetch_add(count, Ordering::Relaxed);
        number += 1;
    }
    host.finish().await;
}

/// Returns the name of a simulated site.
fn name(site: u32) -> (u32, String) {
    (site, format!("train.py:{site} forward"))
}

/// Connects all machines and starts to send.
fn start(runtime: &Runtime, url: &str, plan: &Plan, simulation: &Arc<Simulation>) -> Vec<Machine> {
    let ranks: Vec<u32> = (0..plan.ranks).collect();
    let ranks_of_machines: Vec<&[u32]> = ranks.chunks(plan.batch).collect();
    let mut random = Rng::with_seed(plan.seed);
    let mut machines = Vec::new();
    for ranks_of_machines in ranks_of_machines.chunks(CONNECTING) {
        machines.extend(connect(runtime, url, plan.seed, &mut random, ranks_of_machines, simulation));
    }
    machines
}

/// Connects machines with these ranks at once and starts to send. `seed` is a part of the
/// identities of their processes.
fn connect(
    runtime: &Runtime,
    url: &str,
    seed: u64,
    random: &mut Rng,
    ranks_of_machines: &[&[u32]],
    simulation: &Arc<Simulation>,
) -> Vec<Machine> {
    let address = FleetAddress::parse(url).expect("a valid address");
    let connect = |ranks: &&[u32]| {
        let processes = ranks.iter().map(|&rank| process(rank, seed)).collect();
        runtime.spawn(SimulatedHost::connect(address.clone(), processes, ""))
    };
    let connecting: Vec<_> = ranks_of_machines.iter().map(connect).collect();
    let begin = |(connecting, ranks): (JoinHandle<_>, &&[u32])| {
        let connected: Result<SimulatedHost, FleetError> = runtime.block_on(connecting).expect("no task panics");
        let (host, ranks) = (connected.expect("the broker accepts all ranks"), ranks.to_vec());
        let (shift, sent) = (INTERVAL.mul_f64(random.f64()), Arc::default());
        let task = simulate(host, ranks.clone(), shift, Arc::clone(&sent), Arc::clone(simulation));
        Machine { ranks, task: runtime.spawn(task), sent }
    };
    connecting.into_iter().zip(ranks_of_machines).map(begin).collect()
}

/// Simulates the plan's ranks at a broker of its own, and measures what a server shows.
///
/// # Panics
/// Panics if there is no `nats-server`, or the ranks are not shown in time.
#[must_use]
pub fn measure(plan: &Plan) -> Figures {
    let broker = Broker::start();
    let url = broker.address("fleet");
    let simulation = Arc::new(Simulation {
        training: RecordedTraining::read(),
        planted: Planted { rank: AtomicU32::new(NO_RANK), kind: AtomicU32::new(0), since: Mutex::new(Instant::now()) },
        stopped: AtomicBool::new(false),
        unsent: AtomicU64::new(0),
        start: Instant::now(),
    });
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads start");
    let mut machines = start(&runtime, &url, plan, &simulation);
    let watch: Box<dyn Watch> =
        if plan.has_page { Box::new(PageWatch::start(&url)) } else { Box::new(FollowerWatch::new(follow(&url))) };
    let mut observer = Observer::new(watch);
    let begin = Instant::now();
    loop {
        let shown = observer.watch.look().ranks;
        if shown >= plan.ranks as usize {
            break;
        }
        assert!(begin.elapsed() < TIMEOUT, "{shown} of {} ranks are shown", plan.ranks);
        thread::sleep(POLL_INTERVAL);
    }
    // Until the windows of all ranks are full.
    while observer.watch.totals()[0] < WINDOW_SUMMARIES * u64::from(plan.ranks) {
        assert!(begin.elapsed() < TIMEOUT, "{:?} summaries and lost ones are shown", observer.watch.totals());
        thread::sleep(POLL_INTERVAL);
    }
    let (start_time, used) = (Instant::now(), observer.usage(&broker));
    let mut random = Rng::with_seed(plan.seed);
    for number in 0..plan.outliers {
        observer.plant(&simulation.planted, random.u32(..plan.ranks), number);
    }
    while start_time.elapsed() < plan.time {
        observer.poll(NO_RANK);
    }
    let (seconds, used_now) = (start_time.elapsed().as_secs_f64(), observer.usage(&broker));
    let frames_ms = observer.watch.frames_ms();
    for number in 0..plan.kills {
        let index = random.usize(..machines.len());
        let Machine { ranks, task, .. } = &machines[index];
        task.abort();
        let (ranks, seed) = (ranks.clone(), plan.seed + 1 + u64::from(number));
        let start = Instant::now();
        // The summaries of the killed processes are not counted: the server forgets them.
        let mut new = connect(&runtime, &url, seed, &mut random, &[ranks.as_slice()], &simulation);
        machines[index] = new.remove(0);
        observer.expect_restart(start, ranks.iter().map(|rank| process(*rank, seed).identity));
    }
    simulation.stopped.store(true, Ordering::Relaxed);
    let stop = |machine: Machine| {
        runtime.block_on(machine.task).expect("no task panics");
        machine.sent.load(Ordering::Relaxed)
    };
    let sent = machines.into_iter().map(stop).sum();
    let waiting = Instant::now();
    let mut totals = observer.watch.totals();
    while totals[0] < sent && waiting.elapsed() < TIMEOUT {
        thread::sleep(POLL_INTERVAL);
        totals = observer.watch.totals();
    }
    let [broker_bytes, server_bytes, _] = observer.usage(&broker).map(|usage| usage.resident_bytes);
    let [received, lost] = totals;
    let missing = sent.saturating_sub(received);
    Figures {
        ranks: plan.ranks,
        sent,
        lost: lost.max(missing) + simulation.unsent.load(Ordering::Relaxed),
        lag_ms: percentiles(&mut observer.lags_ms),
        processors: std::array::from_fn(|index| used_now[index].cores_since(&used[index], seconds)),
        memory: [broker_bytes, server_bytes],
        store_bytes: broker.store_bytes(),
        frames_ms,
        ..observer.figures
    }
}

/// Starts a server in this process.
fn follow(url: &str) -> Follower {
    let aggregator = Aggregator::new();
    aggregator.begin(Outputs::default()).expect("a thread starts");
    let address = FleetAddress::parse(url).expect("a valid address");
    let options = FollowerOptions { max_open: 0, ..FollowerOptions::default() };
    let follower = Follower::connect(&address, aggregator, options).expect("the broker runs");
    follower.follow();
    follower
}

/// Returns median, 95th percentile and maximum.
fn percentiles(values: &mut [u64]) -> [u64; 3] {
    values.sort_unstable();
    let at = |share: f64| values.get((values.len() as f64 * share) as usize).or(values.last()).copied();
    [at(0.5), at(0.95), values.last().copied()].map(Option::unwrap_or_default)
}

/// Looks at what is shown again and again.
struct Observer {
    watch: Box<dyn Watch>,
    lags_ms: Vec<u64>,
    tick: u64,
    figures: Figures,
}

impl Observer {
    fn new(watch: Box<dyn Watch>) -> Self {
        Self { watch, lags_ms: Vec::new(), tick: 0, figures: Figures::default() }
    }

    /// Returns what the broker, the server of the page, and this process use.
    fn usage(&self, broker: &Broker) -> [ProcessUsage; 3] {
        let server = self.watch.server().and_then(ProcessUsage::of);
        [broker.usage(), server, ProcessUsage::of(std::process::id())].map(Option::unwrap_or_default)
    }

    /// Waits for a moment. Returns the marked ranks in their order. `planted` is the rank that
    /// differs, if any.
    fn poll(&mut self, planted: u32) -> Vec<u32> {
        thread::sleep(POLL_INTERVAL);
        let Shown { tick, outliers, lags_ms, .. } = self.watch.look();
        if tick != self.tick {
            self.tick = tick;
            self.lags_ms.extend(lags_ms);
            self.figures.wrong_marks += outliers.iter().filter(|rank| **rank != planted).count() as u64;
        }
        outliers
    }

    /// Waits until each rank of a machine that was started at `start` has the row of its new
    /// process.
    fn expect_restart(&mut self, start: Instant, identities: impl Iterator<Item = String>) {
        let wanted: BTreeSet<String> = identities.collect();
        let mut is_shown = false;
        while !is_shown && start.elapsed() < TIMEOUT {
            self.poll(NO_RANK);
            is_shown = wanted.is_subset(&self.watch.identities());
        }
        self.figures.restarted_ms.push(is_shown.then(|| start.elapsed().as_millis() as u64));
    }

    /// Plants an outlier, waits until it is marked, removes it, and waits until the mark is gone.
    fn plant(&mut self, planted: &Planted, rank: u32, kind: u32) {
        let start = Instant::now();
        planted.plant(rank, kind);
        let mut marked = Vec::new();
        while !marked.contains(&rank) && start.elapsed() < TIMEOUT {
            marked = self.poll(rank);
        }
        let is_marked = marked.contains(&rank);
        self.figures.marked_ms.push(is_marked.then(|| start.elapsed().as_millis() as u64));
        self.figures.ranked_first += usize::from(marked.first() == Some(&rank));
        planted.rank.store(NO_RANK, Ordering::Release);
        let start = Instant::now();
        while self.poll(rank).contains(&rank) && start.elapsed() < TIMEOUT {}
    }
}
