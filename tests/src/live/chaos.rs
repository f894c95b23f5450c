//! Viewers come, go, stall, and are cut off by a network that fails, hundreds of times in one run. Whoever is connected in the end must show what the
//! pool holds, must have been told of every event that it lacks, and the file must be whole.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::Duration;

use vramscope_trace::digest;

use super::recorder::Recorder;
use super::{PATIENCE, whole_file};
use crate::load::{Load, Moment};
use crate::process::Taken;
use crate::proxy::{Fault, Proxy};
use crate::random::Random;
use crate::watcher::{Manner, Watcher};

/// How much goes wrong.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Whatever is random is the same for the same seed, but for time.
    pub seed: u64,
    /// How many things happen to viewers and connections.
    pub incidents: u64,
    /// How many viewers there are at once.
    pub viewers: usize,
    /// How many `vramscope record` beside them.
    pub recorders: usize,
    /// Events a second.
    pub rate: u64,
    /// The longest that a viewer does not read.
    pub longest_stall: Duration,
    /// The longest time in which nothing happens.
    pub longest_pause: Duration,
}

/// What happened, and what there was to see in the end.
#[derive(Clone, Debug)]
pub struct Chaos {
    seed: u64,
    /// How often each thing happened.
    pub happened: BTreeMap<&'static str, u64>,
    /// Events of the recording.
    pub events: u64,
    /// Connections of those viewers that were there in the end.
    pub connections: u64,
    /// How many of those went on where the one before was.
    pub resumed: u64,
    /// Events that viewers were told that they missed, of all that were ever there.
    pub missed: u64,
    /// Events that `vramscope record` says are lost, of all that ran.
    pub lost_by_recorders: u64,
    /// Bytes of memory of the program before and after.
    pub resident_bytes: (u64, u64),
    viewers: usize,
}

impl fmt::Display for Chaos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, events, connections, resumed, missed, viewers, resident_bytes: (before, after), .. } = self;
        write!(f, "seed {seed}: ")?;
        for (what, times) in &self.happened {
            write!(f, "{what} {times}, ")?;
        }
        write!(
            f,
            "{} in all; {viewers} viewers in the end, by {connections} connections of which {resumed} ",
            self.incidents()
        )?;
        write!(f, "resumed, show what the pool holds at event {events}, and were told of {missed} events missed; ")?;
        write!(f, "what `record` wrote lacks {} events; ", self.lost_by_recorders)?;
        write!(f, "the file is whole; memory {} to {} MiB", before >> 20, after >> 20)
    }
}

impl Chaos {
    /// How much happened.
    #[must_use]
    pub fn incidents(&self) -> u64 {
        self.happened.values().sum()
    }
}

/// A program behind a network that fails, and those who watch it.
struct World<'a> {
    random: Random,
    page: &'a str,
    proxy: &'a Proxy,
    viewers: Vec<Watcher>,
    longest_stall: Duration,
    /// Events that those who left were told that they missed.
    missed: u64,
}

impl World<'_> {
    fn newcomer(&mut self) -> Watcher {
        let history = ["", "recent", "all"][self.random.below(3) as usize];
        Watcher::start(self.page, Manner { history, resumes: self.random.below(2) == 0 })
    }

    fn anyone(&mut self) -> usize {
        self.random.below(self.viewers.len() as u64) as usize
    }

    /// Something happens; says what.
    fn incident(&mut self) -> &'static str {
        let ms = |random: &mut Random, least, most| Duration::from_millis(random.between(least, most));
        match self.random.below(10) {
            0 | 1 => {
                // One leaves for good, and another comes.
                let (at, newcomer) = (self.anyone(), self.newcomer());
                self.missed += self.viewers[at].seen().missed_ever;
                self.viewers[at] = newcomer;
                return "replaced";
            }
            2 => {
                let at = self.anyone();
                self.viewers[at].reconnect();
                return "reconnected";
            }
            3 | 4 => {
                // Now and then for so long that the program has gone on without it.
                let most = if self.random.below(6) == 0 { self.longest_stall } else { self.longest_stall / 8 };
                let most_ms = most.as_millis() as u64;
                let (at, time) = (self.anyone(), ms(&mut self.random, most_ms / 10, most_ms));
                self.viewers[at].stall(time);
                return "stalled reader";
            }
            _ => {}
        }
        let (name, fault) = match self.random.below(6) {
            0 => ("delayed", Fault::Delay(ms(&mut self.random, 1, 60))),
            1 => ("throttled", Fault::Throttle(self.random.between(10_000, 1_000_000))),
            2 => ("stalled network", Fault::Stall),
            3 => ("half closed", Fault::HalfClose),
            4 => ("cut", Fault::Cut),
            _ => ("reset", Fault::Reset),
        };
        let choice = self.random.below(u64::MAX);
        self.proxy.afflict(choice, fault);
        name
    }
}

/// The address of a page as it is reached through a proxy.
pub(super) fn through(proxy: &Proxy, page: &str) -> String {
    let address = address(page).to_string();
    page.replacen(&address, &proxy.address().to_string(), 1)
}

/// Where a page is served.
pub(super) fn address(page: &str) -> SocketAddr {
    let address = page.split("//").nth(1).and_then(|rest| rest.split(['/', '?']).next());
    address.and_then(|address| address.parse().ok()).unwrap_or_else(|| panic!("{page} names no address"))
}

/// Lets it happen, and looks.
///
/// # Errors
/// What is not as it should be.
///
/// # Panics
/// Where the program does not run.
pub fn chaos(plan: Plan) -> Result<Chaos, String> {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("load.vram");
    let mut load = Load::start(&["--rate", &plan.rate.to_string(), "--record", &path.to_string_lossy()]);
    let proxy = Proxy::start(address(load.url()));
    let page = through(&proxy, load.url());
    let (random, longest_stall) = (Random::new(plan.seed), plan.longest_stall);
    let mut world = World { random, page: &page, proxy: &proxy, viewers: Vec::new(), longest_stall, missed: 0 };
    for _ in 0..plan.viewers {
        let newcomer = world.newcomer();
        world.viewers.push(newcomer);
    }
    let copy = |number: usize| folder.path().join(format!("copy{number}.vram"));
    let recorders: Vec<_> = (0..plan.recorders).map(|number| Recorder::start(&page, &copy(number))).collect();
    let before = Taken::by(load.pid()).unwrap_or_default();
    let mut happened = BTreeMap::new();
    for number in 0..plan.incidents {
        *happened.entry(world.incident()).or_insert(0) += 1;
        thread::sleep(Duration::from_millis(world.random.below(plan.longest_pause.as_millis() as u64)));
        // What stands still is mended now and then, or in the end everything would.
        if number % 60 == 59 {
            proxy.heal();
        }
    }
    proxy.heal();
    let after = Taken::by(load.pid()).unwrap_or_default();
    let moment = load.moment();
    let mut chaos = Chaos {
        seed: plan.seed,
        happened,
        events: moment.events(),
        connections: 0,
        resumed: 0,
        missed: world.missed,
        lost_by_recorders: 0,
        resident_bytes: (before.resident_bytes, after.resident_bytes),
        viewers: world.viewers.len(),
    };
    let mut digests = Vec::new();
    for (number, viewer) in world.viewers.iter().enumerate() {
        digests.push(look(viewer, &moment, &mut chaos).map_err(|error| format!("viewer {number}: {error}"))?);
    }
    recorders.iter().try_for_each(|recorder| recorder.wait_for(&moment))?;
    load.stop();
    for recorder in recorders {
        let (digest, lost) = recorder.finish(&moment)?;
        chaos.lost_by_recorders += lost;
        digests.push(digest);
    }
    digests.push(look_at_file(&path, &moment)?);
    digests.dedup();
    if digests.len() == 1 { Ok(chaos) } else { Err(format!("not all the same: {digests:x?}")) }
}

/// What a viewer shows in the end.
fn look(viewer: &Watcher, moment: &Moment, chaos: &mut Chaos) -> Result<u64, String> {
    let seen = viewer.wait_for_event(moment.events(), PATIENCE)?;
    moment.check(seen.recording.end_state(), seen.recording.definitions())?;
    if let Some(wrong) = &seen.wrong {
        return Err(wrong.clone());
    }
    let lost = seen.recording.lost_events();
    if lost != seen.missed {
        return Err(format!("{lost} events are not there, and it was told of {}", seen.missed));
    }
    chaos.connections += seen.connections;
    chaos.resumed += seen.resumed;
    chaos.missed += seen.missed_ever;
    Ok(digest(seen.recording.end_state()))
}

fn look_at_file(path: &Path, moment: &Moment) -> Result<u64, String> {
    let (recording, _) = whole_file(path)?;
    let counts = (recording.first_event(), recording.events(), recording.lost_events());
    if counts != (0, moment.events(), 0) {
        return Err(format!("the file's first event, events and lost events are {counts:?}"));
    }
    moment.check(recording.end_state(), recording.definitions()).map_err(|error| format!("the file: {error}"))?;
    Ok(digest(recording.end_state()))
}
