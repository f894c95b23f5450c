//! Several programs push to one hub over a network that fails. In the end its viewers and its file must show, by rank, what each pool holds.

use std::fmt;
use std::time::{Duration, Instant};
use std::{fs, thread};

use vramscope_trace::{DeviceId, Recording, digest};

use super::chaos::{address, through};
use super::{PATIENCE, whole_file};
use crate::load::{Load, Moment};
use crate::process::Taken;
use crate::program::Program;
use crate::proxy::{Fault, Proxy};
use crate::random::Random;
use crate::watcher::{Manner, Watcher};

/// How much goes wrong.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Whatever is random is the same for the same seed, but for time.
    pub seed: u64,
    /// How many programs push.
    pub programs: u64,
    /// Events a second, of each.
    pub rate: u64,
    /// How often something goes wrong with a connection.
    pub incidents: u64,
}

/// What there was to see in the end.
#[derive(Clone, Debug)]
pub struct Pushed {
    plan: Plan,
    /// Events of the hub's recording.
    pub events: u64,
    /// Events that it knows to be missing.
    pub lost_events: u64,
    /// Bytes of memory of the hub.
    pub resident_bytes: u64,
}

impl fmt::Display for Pushed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plan: Plan { seed, programs, rate, incidents }, events, lost_events, resident_bytes } = self;
        write!(f, "seed {seed}: {programs} programs of {rate} events a second pushed through {incidents} incidents; ")?;
        write!(
            f,
            "viewer and file show what each pool holds, after {events} events, {lost_events} known to be lost; "
        )?;
        write!(f, "the hub took {} MiB", resident_bytes >> 20)
    }
}

/// Lets it happen, and looks.
///
/// # Errors
/// What is not as it should be.
///
/// # Panics
/// Where a program does not run.
pub fn push(plan: Plan) -> Result<Pushed, String> {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("all.vram");
    let mut serve = Program::start(["serve".as_ref(), "--record".as_ref(), path.as_os_str()]);
    let proxy = Proxy::start(address(serve.url()));
    let hub = through(&proxy, serve.url()).replacen("http", "ws", 1);
    let viewer = Watcher::start(serve.url(), Manner::WHOLE);
    let rate = plan.rate.to_string();
    let start = |rank: u64| {
        let rank = rank.to_string();
        Load::start_in(&["--rate", &rate], &[("VRAMSCOPE_PUSH", &hub), ("RANK", &rank), ("LOCAL_RANK", &rank)])
    };
    let mut programs: Vec<Load> = (0..plan.programs).map(start).collect();
    let mut random = Random::new(plan.seed);
    for number in 0..plan.incidents {
        let fault = match random.below(6) {
            0 => Fault::Delay(Duration::from_millis(random.between(1, 60))),
            1 => Fault::Throttle(random.between(10_000, 1_000_000)),
            2 => Fault::Stall,
            3 => Fault::HalfClose,
            4 => Fault::Cut,
            _ => Fault::Reset,
        };
        proxy.afflict(random.below(u64::MAX), fault);
        thread::sleep(Duration::from_millis(random.below(200)));
        if number % 20 == 19 {
            proxy.heal();
        }
    }
    proxy.heal();
    let moments: Vec<Moment> = programs.iter_mut().map(Load::moment).collect();
    wait_for_all(&viewer, &moments)?;
    let resident_bytes = Taken::by(serve.pid()).unwrap_or_default().resident_bytes;
    drop(programs);
    if !serve.interrupt().success() {
        return Err(format!("serve failed: {}", serve.messages()));
    }
    let (recording, _) = whole_file(&path)?;
    check_all(&recording, &moments).map_err(|error| format!("the file: {error}"))?;
    let seen = viewer.wait(PATIENCE, |seen| seen.ended)?;
    if digest(seen.recording.end_state()) != digest(recording.end_state()) {
        return Err("the viewer's last state is not the file's".to_owned());
    }
    let _ = fs::remove_file(&path);
    let (events, lost_events) = (recording.events(), recording.lost_events());
    Ok(Pushed { plan, events, lost_events, resident_bytes })
}

/// That the hub's recording shows, by rank, what each pool holds.
fn check_all(recording: &Recording, moments: &[Moment]) -> Result<(), String> {
    for (rank, moment) in moments.iter().enumerate() {
        let mut devices = recording.info().devices.iter();
        let info = devices.find(|info| info.rank == Some(rank as u32));
        let info = info.ok_or_else(|| format!("there is no device of rank {rank}"))?;
        let device = recording.end_state().device(DeviceId(info.device)).ok_or("nothing is known of a device")?;
        moment.check_device(device, recording.definitions()).map_err(|error| format!("rank {rank}: {error}"))?;
    }
    Ok(())
}

/// The programs stand still; sooner or later the hub has all.
fn wait_for_all(viewer: &Watcher, moments: &[Moment]) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let checked = check_all(&viewer.seen().recording, moments);
        if checked.is_ok() || Instant::now() > deadline {
            return checked.map_err(|error| format!("after {PATIENCE:?}: {error}"));
        }
        thread::sleep(Duration::from_millis(100));
    }
}
