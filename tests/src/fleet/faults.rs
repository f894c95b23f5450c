//! Breaks everything between ranks and servers, again and again, and checks what arrives.
//!
//! The longest time of a training step is printed. It has no limit, because it depends on the
//! machine. That no step waits for the network is checked by what it calls: in debug builds of the
//! collector, a thread that publishes to a hub, or holds a lock of the hub, panics if it would wait
//! for the network.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use vramscope_fleet::{FleetAddress, FollowerOptions, StreamLimits, create_streams};

use super::broker_audit::BrokerAudit;
use super::clock_host::ClockHost;
use super::cluster_proxies::ClusterProxies;
use super::faulty_rank::FaultyRank;
use super::following_server::FollowingServer;
use super::rank_process::{PausedRank, STEP_EVENTS};
use crate::broker_cluster::BrokerCluster;
use crate::process::ProcessUsage;
use crate::proxy::Fault;

/// Number of broker nodes.
const NODES: usize = 3;
/// Faults after which everything that is shown is checked.
const CHECK_INTERVAL: u32 = 25;
/// Longest wait until a server shows all ranks as they are.
const TIMEOUT: Duration = Duration::from_secs(180);
/// Name of the run.
const RUN: &str = "faults";
/// Limits of the streams: they fit on the nodes' disks.
const LIMITS: StreamLimits = StreamLimits {
    event_bytes: 192 << 20,
    event_age: Duration::from_secs(3600),
    summary_bytes: 32 << 20,
    summary_age: Duration::from_secs(120),
};

/// What is broken.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    /// The path of the program `fleet`, which each rank runs as its process.
    pub program: PathBuf,
    /// Number of faults.
    pub faults: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// Decides the order of the faults.
    pub seed: u64,
    /// The digits of the kinds of faults to inject, each from 1: their places in
    /// [`FaultFigures::faults`]. 0: all kinds.
    pub kinds: u64,
}

/// The most memory of a rank, of this process with the server, and of a node of the broker, in
/// bytes.
const MAX_MEMORY: u64 = 1 << 30;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A node of the broker is killed, and restarted with its store.
    BrokerKilled,
    /// All nodes of the broker are killed, and restarted with their stores.
    AllKilled,
    /// A node of the broker is killed, and restarted without its store.
    NodeLost,
    /// The disk of a node is full; later, there is room again.
    DiskFull,
    /// A connection is cut, reset, delayed, throttled or stalled.
    Network,
    /// A process is killed, and another starts as its rank.
    ProcessKilled,
    /// A server ends, and another starts.
    ServerEnded,
    /// The clock of a machine jumps.
    ClockJump,
}

impl Kind {
    /// All kinds; frequent ones repeatedly.
    const ALL: [Self; 13] = [
        Self::BrokerKilled,
        Self::AllKilled,
        Self::NodeLost,
        Self::DiskFull,
        Self::Network,
        Self::Network,
        Self::Network,
        Self::Network,
        Self::Network,
        Self::ProcessKilled,
        Self::ServerEnded,
        Self::ClockJump,
        Self::ClockJump,
    ];
    /// Each kind once, with its name.
    const NAMES: [(Self, &str); 8] = [
        (Self::BrokerKilled, "broker nodes killed"),
        (Self::AllKilled, "times all nodes killed"),
        (Self::NodeLost, "nodes lost with their store"),
        (Self::DiskFull, "disks filled up"),
        (Self::Network, "network faults"),
        (Self::ProcessKilled, "processes killed"),
        (Self::ServerEnded, "servers ended"),
        (Self::ClockJump, "clock jumps"),
    ];

    /// Returns the kinds with these digits, frequent ones repeatedly; all kinds for 0.
    fn with_digits(digits: u64) -> Vec<Self> {
        let digits = digits.to_string();
        let has_digit = |kind: Self| digits.contains(&(kind.name_index() + 1).to_string());
        let selected: Vec<Self> = Self::ALL.into_iter().filter(|kind| has_digit(*kind)).collect();
        if selected.is_empty() { Self::ALL.to_vec() } else { selected }
    }

    /// Returns the place of the kind in [`Self::NAMES`].
    fn name_index(self) -> usize {
        Self::NAMES.iter().position(|(known, _)| *known == self).expect("every kind has a name")
    }
}

/// What was measured.
#[derive(Clone, Debug, Default)]
pub struct FaultFigures {
    /// Number of faults of each kind, with its name.
    pub faults: Vec<(&'static str, u32)>,
    /// Disks that were not filled up, because this machine does not allow small disks.
    pub skipped: u32,
    /// Events of all ranks; of a killed process, those until the last check.
    pub events: u64,
    /// How often everything that is shown was checked.
    pub checks: u32,
    /// Events that a rank with little memory could not send, and that are shown as gaps.
    pub gaps: u64,
    /// Messages in the broker's stream of events.
    pub messages: u64,
    /// Messages in the stream that repeat another.
    pub repeated: u64,
    /// The longest time of a training step of 20 events; of a killed process, until the last check.
    pub longest_step: Duration,
    /// The largest memory of a rank, of this process with the server, and of a broker node, in
    /// bytes.
    pub memory: [u64; 3],
    /// What was wrong.
    pub failures: Vec<String>,
}

impl fmt::Display for FaultFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total: u32 = self.faults.iter().map(|(_, count)| count).sum();
        let kinds: Vec<String> = self.faults.iter().map(|(name, count)| format!("{count} {name}")).collect();
        writeln!(f, "{total} faults: {}; {} skipped", kinds.join(", "), self.skipped)?;
        writeln!(
            f,
            "{} events; {} checks, {} failures; {} events shown as gaps of a rank with little memory",
            self.events,
            self.checks,
            self.failures.len(),
            self.gaps
        )?;
        writeln!(f, "{} messages stored, {} of them repeated", self.messages, self.repeated)?;
        write!(
            f,
            "longest step of {STEP_EVENTS} events {:.1} ms; memory at most {} MiB (a rank), {} MiB (server and \
             proxies), {} MiB (a broker node)",
            self.longest_step.as_secs_f64() * 1000.0,
            self.memory[0] >> 20,
            self.memory[1] >> 20,
            self.memory[2] >> 20
        )?;
        self.failures.iter().try_for_each(|failure| write!(f, "\nFAILED: {failure}"))
    }
}

/// Everything that can be broken.
struct World {
    program: PathBuf,
    cluster: BrokerCluster,
    url: String,
    ranks: Vec<FaultyRank>,
    server: FollowingServer,
    server_network: ClusterProxies,
    clock: ClockHost,
    start: Instant,
    random: Rng,
    figures: FaultFigures,
    /// Messages of killed processes that the broker had acknowledged, by subject.
    killed: BTreeMap<String, u64>,
}

/// Breaks things as planned, and checks what a server shows.
///
/// # Panics
/// Panics if there is no `nats-server`.
#[must_use]
pub fn break_everything(plan: &FaultPlan) -> FaultFigures {
    super::print_log();
    let cluster = BrokerCluster::start(NODES);
    let url = cluster.address(RUN);
    let address = FleetAddress::parse(&url).expect("a valid address");
    create_streams(&address, &LIMITS).expect("the broker has room");
    let ranks = (0..plan.ranks).map(|rank| FaultyRank::start(&plan.program, rank, &cluster, RUN, rank == 0));
    let server_network = ClusterProxies::start(&cluster);
    let mut world = World {
        program: plan.program.clone(),
        ranks: ranks.collect(),
        server: start_server(&server_network),
        server_network,
        clock: ClockHost::start(&address, plan.ranks),
        start: Instant::now(),
        random: Rng::with_seed(plan.seed),
        figures: FaultFigures { faults: Kind::NAMES.map(|(_, name)| (name, 0)).to_vec(), ..FaultFigures::default() },
        killed: BTreeMap::new(),
        url,
        cluster,
    };
    let kinds = Kind::with_digits(plan.kinds);
    let mut next_kinds = Vec::new();
    for number in 1..=plan.faults {
        // Every kind is in each sequence of as many faults.
        if next_kinds.is_empty() {
            next_kinds.clone_from(&kinds);
            world.random.shuffle(&mut next_kinds);
        }
        let Some(kind) = next_kinds.pop() else { break };
        eprintln!("fault {number} after {:.1} s: {kind:?}", world.start.elapsed().as_secs_f64());
        world.inject(kind);
        if number % CHECK_INTERVAL == 0 || number == plan.faults {
            world.check(number);
        }
    }
    world.finish()
}

/// Starts a server that reads all events that the streams hold, however long the run takes.
fn start_server(network: &ClusterProxies) -> FollowingServer {
    let options = FollowerOptions { history: LIMITS.event_age, ..FollowerOptions::default() };
    FollowingServer::with_options(&network.address(RUN), options)
}

impl World {
    /// Breaks one thing.
    fn inject(&mut self, kind: Kind) {
        let node = self.random.usize(..NODES);
        let pause = Duration::from_millis(self.random.u64(50..1500));
        match kind {
            Kind::BrokerKilled => {
                self.cluster.kill(node);
                thread::sleep(pause);
                self.cluster.restart(node);
            }
            Kind::AllKilled => self.cluster.restart_all(pause),
            Kind::NodeLost => {
                self.cluster.lose(node);
                thread::sleep(pause);
                self.cluster.restart(node);
            }
            Kind::DiskFull => {
                if !self.cluster.fill_disk(node) {
                    self.figures.skipped += 1;
                    return;
                }
                thread::sleep(pause);
                self.cluster.restart(node);
            }
            Kind::Network => self.break_network(pause),
            Kind::ProcessKilled => self.kill_process(),
            Kind::ServerEnded => self.server = start_server(&self.server_network),
            Kind::ClockJump => {
                self.clock.jump(Duration::from_secs(self.random.u64(1..7200)), self.random.bool());
                thread::sleep(pause / 10);
            }
        }
        self.figures.faults[kind.name_index()].1 += 1;
        let own = ProcessUsage::of(std::process::id()).map_or(0, |usage| usage.resident_bytes);
        let rank = self.ranks.iter().map(|rank| rank.process.memory()).max().unwrap_or(0);
        let used = [rank, own, self.cluster.largest_memory()];
        self.figures.memory = std::array::from_fn(|index| self.figures.memory[index].max(used[index]));
    }

    /// Breaks the connections of a rank or of the server for some time.
    fn break_network(&mut self, pause: Duration) {
        let faults = [
            Fault::Cut,
            Fault::Reset,
            Fault::HalfClose,
            Fault::Stall,
            Fault::Delay(Duration::from_millis(50)),
            Fault::Throttle(20_000),
        ];
        let fault = faults[self.random.usize(..faults.len())];
        let choice = self.random.usize(..=self.ranks.len());
        self.network(choice, |network| network.inject(fault));
        thread::sleep(pause / 4);
        self.network(choice, ClusterProxies::clear_faults);
    }

    /// Changes the network of the rank with an index, or of the server for the index after the last
    /// rank.
    fn network(&self, index: usize, change: impl FnOnce(&ClusterProxies)) {
        change(self.ranks.get(index).map_or(&self.server_network, |rank| &rank.network));
    }

    /// Kills a process and starts another as its rank.
    fn kill_process(&mut self) {
        // Not the first one, whose lost events are counted.
        let index = self.random.usize(1..self.ranks.len());
        let killed = &mut self.ranks[index];
        killed.process.kill();
        self.killed.extend([killed.process.acknowledged(RUN)]);
        *killed = FaultyRank::start(&self.program, killed.process.rank(), &self.cluster, RUN, false);
    }

    /// Waits until a server shows all ranks as they are. Adds what is wrong to the failures.
    fn check(&mut self, number: u32) {
        self.figures.checks += 1;
        let ranks: Vec<PausedRank> = self.ranks.iter_mut().map(|rank| rank.process.pause()).collect();
        let deadline = Instant::now() + TIMEOUT;
        let expected = || ranks.iter().map(|rank| &rank.expected);
        let mut wrong = self.server.wrong_ranks(expected());
        while !wrong.is_empty() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(200));
            wrong = self.server.wrong_ranks(expected());
        }
        if !wrong.is_empty() {
            self.figures.failures.push(format!("after fault {number}: not shown as they are: {}", wrong.join("; ")));
        }
        let lost = self.server.lost_events_by_rank(expected());
        let complete = lost.iter().filter(|(rank, lost)| *rank != 0 && *lost > 0);
        let complete: Vec<String> = complete.map(|(rank, lost)| format!("{lost} of rank {rank}")).collect();
        if !complete.is_empty() {
            self.figures.failures.push(format!("after fault {number}: lost events: {}", complete.join(", ")));
        }
        self.figures.gaps = lost.iter().find(|(rank, _)| *rank == 0).map_or(0, |(_, lost)| *lost);
        for (rank, paused) in self.ranks.iter_mut().zip(&ranks) {
            self.figures.events += paused.events - std::mem::replace(&mut rank.checked_events, paused.events);
            self.figures.longest_step = self.figures.longest_step.max(paused.longest_step);
        }
        // The hub counts missed events while the rank pushes, so the number is read only now.
        let missed = self.ranks[0].process.pause().missed_events;
        self.ranks.iter_mut().for_each(|rank| rank.process.resume());
        if self.figures.gaps != missed {
            let failure = format!("after fault {number}: rank 0 lost {missed} events, {} are shown", self.figures.gaps);
            self.figures.failures.push(failure);
        }
        if let Err(failure) = self.clock.check(&self.server) {
            self.figures.failures.push(format!("after fault {number}: {failure}"));
        }
        self.audit(number);
    }

    /// Reads what the broker has stored of all processes, killed ones included. Adds acknowledged
    /// messages that are missing to the failures.
    fn audit(&mut self, number: u32) {
        let running = self.ranks.iter().map(|rank| rank.process.acknowledged(RUN));
        let acknowledged: BTreeMap<String, u64> = self.killed.clone().into_iter().chain(running).collect();
        if acknowledged.values().all(|messages| *messages == 0) {
            self.figures.failures.push(format!("after fault {number}: no process has reported an acknowledgement"));
        }
        match BrokerAudit::read(&self.url, &acknowledged) {
            Ok(audit) => {
                (self.figures.messages, self.figures.repeated) = (audit.messages, audit.repeated);
                let lost = audit.lost.iter().map(|lost| format!("after fault {number}: {lost}"));
                self.figures.failures.extend(lost);
            }
            Err(error) => self.figures.failures.push(format!("after fault {number}: {error}")),
        }
    }

    /// Ends everything and returns what was measured.
    fn finish(mut self) -> FaultFigures {
        if self.figures.memory.iter().any(|bytes| *bytes > MAX_MEMORY) {
            self.figures.failures.push(format!("a process uses more than {} MiB", MAX_MEMORY >> 20));
        }
        self.figures
    }
}
