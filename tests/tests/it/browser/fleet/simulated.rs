//! A server with a made-up run: thousands of ranks without processes and without a broker.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vramscope_collector::{Controls, FleetClient, FleetFeed, Hub, MetricFamily, ServedContent, Server, ServerOptions};
use vramscope_insight::fleet::{
    Acknowledged, DeviceSummary, EventsState, Fleet, FleetView, Mesh, ProcessDescription, ProcessIdentity, Summary,
    ViewEncoder,
};

const MIB: u64 = 1 << 20;
const START_NS: u64 = 1_764_200_000_000_000_000;
const TICK: Duration = Duration::from_millis(100);
/// How long the events of an opened rank take to arrive.
const OPENING_TIME: Duration = Duration::from_millis(300);

/// What is wrong with a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It has allocated this many MiB more than the others.
    Extra(u64),
    /// Its memory grows by this many MiB a second.
    Leak(u64),
    /// It stays in its step.
    Stuck,
    /// It sends nothing.
    Silent,
    /// It has ended.
    Ended,
}

/// The run.
#[derive(Debug, Default)]
struct Run {
    ranks: u32,
    mesh: Mesh,
    faults: Mutex<BTreeMap<u32, Fault>>,
    opened: Mutex<BTreeMap<String, Instant>>,
    view: Mutex<Arc<FleetView>>,
    tick: AtomicU64,
    is_stopping: AtomicBool,
}

/// A server with the run.
pub(super) struct SimulatedFleet {
    server: Option<Server>,
    run: Arc<Run>,
    thread: Option<JoinHandle<()>>,
}

impl SimulatedFleet {
    /// Starts a server with this many ranks, eight on each host, in a mesh.
    pub(super) fn start(ranks: u32, mesh: &str) -> Self {
        let run = Arc::new(Run { ranks, mesh: mesh.parse().expect("a valid mesh"), ..Run::default() });
        let thread = std::thread::spawn({
            let run = Arc::clone(&run);
            move || run.simulate()
        });
        let mut fleet = Self { server: None, run, thread: Some(thread) };
        fleet.start_server(0);
        fleet
    }

    fn start_server(&mut self, port: u16) {
        let options = ServerOptions {
            listen: Some(([127, 0, 0, 1], port).into()),
            // The same token after a restart.
            token: Some(vramscope_collector::Token::new("simulated").expect("a valid token")),
            ..ServerOptions::default()
        };
        let fleet: Arc<dyn FleetFeed> = Arc::new(Feed(Arc::clone(&self.run)));
        let content = ServedContent {
            controls: Some(Controls::default()),
            fleet: Some(fleet),
            ..ServedContent::live(Hub::default())
        };
        self.server = Some(Server::start(options, content).expect("a port is free"));
    }

    /// Stops the server and starts it again on the same port.
    pub(super) fn restart_server(&mut self) {
        let port = self.server.take().expect("a server").address().port();
        self.start_server(port);
    }

    /// Returns the address of the fleet page.
    pub(super) fn url(&self) -> String {
        format!("{}&fleet", self.server.as_ref().expect("a server").url())
    }

    /// Gives a rank a fault.
    pub(super) fn set_fault(&self, rank: u32, fault: Fault) {
        self.run.faults.lock().expect("no thread panicked").insert(rank, fault);
    }

    /// Returns the ranks whose events are read.
    pub(super) fn opened(&self) -> Vec<String> {
        self.run.opened.lock().expect("no thread panicked").keys().cloned().collect()
    }
}

impl Drop for SimulatedFleet {
    fn drop(&mut self) {
        self.server = None;
        self.run.is_stopping.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns the identity of a rank's recording.
pub(super) fn identity(rank: u32) -> ProcessIdentity {
    ProcessIdentity(format!("{rank:032x}"))
}

impl Run {
    /// Lets the run go on until the server is dropped.
    fn simulate(&self) {
        let mut fleet = Fleet::new();
        let mut next = Instant::now();
        while !self.is_stopping.load(Ordering::Relaxed) {
            self.step(&mut fleet);
            next += TICK;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }

    /// Sends a summary of each rank.
    fn step(&self, fleet: &mut Fleet) {
        let tick = self.tick.fetch_add(1, Ordering::Relaxed);
        let now_ns = START_NS + tick * TICK.as_nanos() as u64;
        let faults = self.faults.lock().expect("no thread panicked").clone();
        for rank in 0..self.ranks {
            let fault = faults.get(&rank);
            let has_ended = fault == Some(&Fault::Ended);
            if tick == 0 || has_ended {
                let host = format!("node{:03}", rank / 8);
                let coordinates = self.mesh.coordinates(rank);
                let rank_number = Some(rank);
                let description = ProcessDescription {
                    rank: rank_number,
                    host,
                    program: "train.py".to_owned(),
                    coordinates,
                    has_ended,
                    ..ProcessDescription::default()
                };
                assert!(fleet.describe(identity(rank), description));
            }
            if fault == Some(&Fault::Silent) || (has_ended && tick > 0) {
                continue;
            }
            fleet.add(&identity(rank), identity(rank), self.summary(rank, tick, now_ns, fault), now_ns);
        }
        for (name, since) in &*self.opened.lock().expect("no thread panicked") {
            let rank = u64::from_str_radix(name, 16).unwrap_or(0) as u16;
            let device = (since.elapsed() >= OPENING_TIME).then_some(rank);
            fleet.set_events(&ProcessIdentity(name.clone()), EventsState::Open, device);
        }
        fleet.tick(now_ns);
        *self.view.lock().expect("no thread panicked") = Arc::new(fleet.view(now_ns));
    }

    /// Returns the summary of a rank that trains: a step takes a second.
    fn summary(&self, rank: u32, tick: u64, now_ns: u64, fault: Option<&Fault>) -> Summary {
        let stage = self.mesh.coordinates(rank).and_then(|at| at.get("pp")).unwrap_or(0);
        let phase = (tick + u64::from(rank) * 7) % 10;
        let noise = u64::from(rank.wrapping_mul(2_654_435_761) >> 24);
        let extra = match fault {
            Some(Fault::Extra(mib)) => mib * MIB,
            Some(Fault::Leak(mib)) => mib * MIB * tick / 10,
            _ => 0,
        };
        let stage_bytes = [26_000, 22_500, 21_800, 24_100][stage as usize % 4] * MIB;
        let allocated = stage_bytes + (noise * 3 + 900 * phase) * MIB + extra;
        let step = if fault == Some(&Fault::Stuck) { 120 } else { 120 + (tick + u64::from(rank % 3)) / 10 };
        let device = DeviceSummary {
            allocated,
            reserved: stage_bytes + (14_000 + noise * 2) * MIB + extra,
            active: allocated,
            requested: allocated - allocated / 64,
            free: (3000 + noise) * MIB,
            largest_free: (2000 + 3 * phase) * MIB,
            segments: 412,
            blocks: 9000,
            sites: vec![(1, allocated / 5)],
            ..DeviceSummary::default()
        };
        let delay_ns = u64::from(rank % 40) * 1_000_000 + 5_000_000;
        Summary {
            number: tick,
            time_unix_ns: now_ns - delay_ns,
            step: Some(step),
            mark: if phase < 5 { "forward" } else { "backward" }.to_owned(),
            devices: vec![device],
            names: vec![(1, "model/mlp.py:31 forward".to_owned())],
            acknowledged: tick
                .checked_sub(1)
                .map(|number| Acknowledged { number, time_unix_ns: now_ns - TICK.as_nanos() as u64 + 2_000_000 }),
            ..Summary::default()
        }
    }
}

/// The run, as the server sees it.
#[derive(Debug)]
struct Feed(Arc<Run>);

impl FleetFeed for Feed {
    fn run(&self) -> String {
        "pretrain-7b".to_owned()
    }

    fn client(&self) -> Box<dyn FleetClient> {
        Box::new(Client(Arc::clone(&self.0), ViewEncoder::default()))
    }

    fn json(&self) -> String {
        serde_json::to_string(&**self.0.view.lock().expect("no thread panicked")).expect("JSON")
    }

    fn metrics(&self) -> Vec<MetricFamily> {
        Vec::new()
    }

    fn open(&self, identity: &str) -> Result<(), String> {
        let mut opened = self.0.opened.lock().expect("no thread panicked");
        if opened.len() == 16 && !opened.contains_key(identity) {
            return Err("16 ranks are open already: close one first".to_owned());
        }
        opened.entry(identity.to_owned()).or_insert_with(Instant::now);
        Ok(())
    }

    fn close(&self, identity: &str) -> Result<(), String> {
        self.0.opened.lock().expect("no thread panicked").remove(identity);
        Ok(())
    }
}

struct Client(Arc<Run>, ViewEncoder);

impl FleetClient for Client {
    fn update(&mut self) -> Option<Vec<u8>> {
        let view = Arc::clone(&self.0.view.lock().expect("no thread panicked"));
        self.1.encode(&view)
    }
}
