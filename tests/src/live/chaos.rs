//! Viewers that connect, leave, stall and are cut off by a faulty network, hundreds of times.
//!
//! In the end every connected viewer must show what the pool holds and must have learned of
//! every event it lacks, and the file must be complete.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::Duration;

use vramscope_trace::digest;

use super::recorder::Recorder;
use super::{TIMEOUT, read_complete_file};
use crate::load::{Load, PoolSnapshot};
use crate::native_viewer::{FollowOptions, NativeViewer};
use crate::process::ProcessUsage;
use crate::proxy::{Fault, Proxy};
use fastrand::Rng;

/// Extent of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Seed of the random choices; timing still varies.
    pub seed: u64,
    /// Number of incidents to viewers and connections.
    pub incidents: u64,
    /// Number of viewers at a time.
    pub viewers: usize,
    /// Number of `vramscope record` processes.
    pub recorders: usize,
    /// Events a second.
    pub rate: u64,
    /// Longest time for which a viewer does not read.
    pub longest_stall: Duration,
    /// Longest pause between incidents.
    pub longest_pause: Duration,
}

/// The incidents and the result of a run.
#[derive(Clone, Debug)]
pub struct Chaos {
    seed: u64,
    /// Number of incidents by kind.
    pub incident_counts: BTreeMap<&'static str, u64>,
    /// Events of the recording.
    pub events: u64,
    /// Connections of the viewers that remained to the end.
    pub connections: u64,
    /// Connections among them that resumed the one before.
    pub resumed: u64,
    /// Events that the server reported as missed, to all viewers.
    pub missed: u64,
    /// Events that all `vramscope record` processes lost.
    pub lost_by_recorders: u64,
    /// Memory of the program in bytes, before and after.
    pub resident_bytes: (u64, u64),
    viewers: usize,
}

impl fmt::Display for Chaos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, events, connections, resumed, missed, viewers, resident_bytes: (before, after), .. } = self;
        write!(f, "seed {seed}: ")?;
        for (what, times) in &self.incident_counts {
            write!(f, "{what} {times}, ")?;
        }
        write!(
            f,
            "{} in all; {viewers} viewers at the end, {connections} connections of which {resumed} ",
            self.incidents()
        )?;
        write!(f, "resumed, match the pool at event {events}, and were told of {missed} missed events; ")?;
        write!(f, "the files of `record` lack {} events; ", self.lost_by_recorders)?;
        write!(f, "the file is complete; memory {} to {} MiB", before >> 20, after >> 20)
    }
}

impl Chaos {
    /// Returns the number of incidents.
    #[must_use]
    pub fn incidents(&self) -> u64 {
        self.incident_counts.values().sum()
    }
}

/// The viewers of a program behind a faulty network.
struct Scenario<'a> {
    random: Rng,
    page: &'a str,
    proxy: &'a Proxy,
    viewers: Vec<NativeViewer>,
    longest_stall: Duration,
    /// Missed events that were reported to viewers which left.
    missed: u64,
}

impl Scenario<'_> {
    fn new_viewer(&mut self) -> NativeViewer {
        let history = ["", "recent", "all"][self.random.u64(..3) as usize];
        NativeViewer::start(self.page, FollowOptions { history, resumes: self.random.u64(..2) == 0 })
    }

    fn random_index(&mut self) -> usize {
        self.random.u64(..self.viewers.len() as u64) as usize
    }

    /// Causes a random incident and returns its kind.
    fn incident(&mut self) -> &'static str {
        let ms = |random: &mut Rng, least, most| Duration::from_millis(random.u64(least..most));
        match self.random.u64(..10) {
            0 | 1 => {
                // A viewer leaves and another connects.
                let (at, new_viewer) = (self.random_index(), self.new_viewer());
                self.missed += self.viewers[at].state().missed_ever;
                self.viewers[at] = new_viewer;
                return "replaced";
            }
            2 => {
                let at = self.random_index();
                self.viewers[at].reconnect();
                return "reconnected";
            }
            3 | 4 => {
                // Sometimes for so long that the server skips ahead.
                let most = if self.random.u64(..6) == 0 { self.longest_stall } else { self.longest_stall / 8 };
                let most_ms = most.as_millis() as u64;
                let (at, time) = (self.random_index(), ms(&mut self.random, most_ms / 10, most_ms));
                self.viewers[at].stall(time);
                return "stalled reader";
            }
            _ => {}
        }
        let (name, fault) = match self.random.u64(..6) {
            0 => ("delayed", Fault::Delay(ms(&mut self.random, 1, 60))),
            1 => ("throttled", Fault::Throttle(self.random.u64(10_000..1_000_000))),
            2 => ("stalled network", Fault::Stall),
            3 => ("half closed", Fault::HalfClose),
            4 => ("cut", Fault::Cut),
            _ => ("reset", Fault::Reset),
        };
        let choice = self.random.u64(..u64::MAX);
        self.proxy.inject(choice, fault);
        name
    }
}

/// Returns the URL of a page through a proxy.
pub(super) fn through(proxy: &Proxy, page: &str) -> String {
    let address = address(page).to_string();
    page.replacen(&address, &proxy.address().to_string(), 1)
}

/// Returns the address of a page's server.
pub(super) fn address(page: &str) -> SocketAddr {
    let address = page.split("//").nth(1).and_then(|rest| rest.split(['/', '?']).next());
    address.and_then(|address| address.parse().ok()).unwrap_or_else(|| panic!("{page} names no address"))
}

/// Runs the plan and checks the result.
///
/// # Errors
/// Returns the first check that failed.
///
/// # Panics
/// Panics if the program does not run.
pub fn chaos(plan: Plan) -> Result<Chaos, String> {
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let path = folder.path().join("load.vram");
    let mut load = Load::start(&["--rate", &plan.rate.to_string(), "--record", &path.to_string_lossy()]);
    let proxy = Proxy::start(address(load.url()));
    let page = through(&proxy, load.url());
    let (random, longest_stall) = (Rng::with_seed(plan.seed), plan.longest_stall);
    let mut scenario = Scenario { random, page: &page, proxy: &proxy, viewers: Vec::new(), longest_stall, missed: 0 };
    for _ in 0..plan.viewers {
        let new_viewer = scenario.new_viewer();
        scenario.viewers.push(new_viewer);
    }
    let copy = |number: usize| folder.path().join(format!("copy{number}.vram"));
    let recorders: Vec<_> = (0..plan.recorders).map(|number| Recorder::start(&page, &copy(number))).collect();
    let before = ProcessUsage::of(load.pid()).unwrap_or_default();
    let mut incident_counts = BTreeMap::new();
    for number in 0..plan.incidents {
        *incident_counts.entry(scenario.incident()).or_insert(0) += 1;
        thread::sleep(Duration::from_millis(scenario.random.u64(..plan.longest_pause.as_millis() as u64)));
        // Without this all connections would be stalled in the end.
        if number % 60 == 59 {
            proxy.clear_faults();
        }
    }
    proxy.clear_faults();
    let after = ProcessUsage::of(load.pid()).unwrap_or_default();
    let snapshot = load.pause();
    let mut chaos = Chaos {
        seed: plan.seed,
        incident_counts,
        events: snapshot.events(),
        connections: 0,
        resumed: 0,
        missed: scenario.missed,
        lost_by_recorders: 0,
        resident_bytes: (before.resident_bytes, after.resident_bytes),
        viewers: scenario.viewers.len(),
    };
    let mut digests = Vec::new();
    for (number, viewer) in scenario.viewers.iter().enumerate() {
        digests.push(check_viewer(viewer, &snapshot, &mut chaos).map_err(|error| format!("viewer {number}: {error}"))?);
    }
    recorders.iter().try_for_each(|recorder| recorder.wait_for(&snapshot))?;
    load.stop();
    for recorder in recorders {
        let (digest, lost) = recorder.finish(&snapshot)?;
        chaos.lost_by_recorders += lost;
        digests.push(digest);
    }
    digests.push(check_file(&path, &snapshot)?);
    digests.dedup();
    if digests.len() == 1 { Ok(chaos) } else { Err(format!("digests differ: {digests:x?}")) }
}

/// Compares a viewer with the pool and returns the digest of its state.
fn check_viewer(viewer: &NativeViewer, snapshot: &PoolSnapshot, chaos: &mut Chaos) -> Result<u64, String> {
    let seen = viewer.wait_for_event(snapshot.events(), TIMEOUT)?;
    snapshot.check(seen.recording.end_state(), seen.recording.definitions())?;
    if let Some(error) = &seen.error {
        return Err(error.clone());
    }
    let lost = seen.recording.lost_events();
    if lost != seen.missed {
        return Err(format!("{lost} events are missing, and the server reported {}", seen.missed));
    }
    chaos.connections += seen.connections;
    chaos.resumed += seen.resumed;
    chaos.missed += seen.missed_ever;
    Ok(digest(seen.recording.end_state()))
}

fn check_file(path: &Path, snapshot: &PoolSnapshot) -> Result<u64, String> {
    let (recording, _) = read_complete_file(path)?;
    let counts = (recording.first_event(), recording.events(), recording.lost_events());
    if counts != (0, snapshot.events(), 0) {
        return Err(format!("the file's first event, events and lost events are {counts:?}"));
    }
    snapshot.check(recording.end_state(), recording.definitions()).map_err(|error| format!("the file: {error}"))?;
    Ok(digest(recording.end_state()))
}
