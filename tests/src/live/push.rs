//! Several programs that push to one hub over a faulty network.
//!
//! In the end the hub's viewers and file must show, by rank, what each pool holds.

use std::fmt;
use std::time::{Duration, Instant};
use std::{fs, thread};

use vramscope_trace::{DeviceId, Recording, digest};

use super::chaos::{address, through};
use super::{TIMEOUT, read_complete_file};
use crate::load::{Load, PoolSnapshot};
use crate::native_viewer::{FollowOptions, NativeViewer};
use crate::process::ProcessUsage;
use crate::program::Program;
use crate::proxy::{Fault, Proxy};
use fastrand::Rng;

/// Extent of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Seed of the random choices; timing still varies.
    pub seed: u64,
    /// Number of programs.
    pub programs: u64,
    /// Events a second of each program.
    pub rate: u64,
    /// Number of faults injected.
    pub incidents: u64,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct PushSummary {
    plan: Plan,
    /// Events of the hub's recording.
    pub events: u64,
    /// Events that the recording counts as lost.
    pub lost_events: u64,
    /// Memory of the hub in bytes.
    pub resident_bytes: u64,
}

impl fmt::Display for PushSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plan: Plan { seed, programs, rate, incidents }, events, lost_events, resident_bytes } = self;
        write!(f, "seed {seed}: {programs} programs of {rate} events a second pushed through {incidents} incidents; ")?;
        write!(f, "viewer and file match each pool after {events} events, {lost_events} of them lost; ")?;
        write!(f, "the hub took {} MiB", resident_bytes >> 20)
    }
}

/// Runs the plan and checks the result.
///
/// # Errors
/// Returns the first check that failed.
///
/// # Panics
/// Panics if a program does not run.
pub fn push(plan: Plan) -> Result<PushSummary, String> {
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let path = folder.path().join("all.vram");
    let mut serve = Program::start(["serve".as_ref(), "--record".as_ref(), path.as_os_str()]);
    let proxy = Proxy::start(address(serve.url()));
    let hub = through(&proxy, serve.url()).replacen("http", "ws", 1);
    let viewer = NativeViewer::start(serve.url(), FollowOptions::WHOLE);
    let rate = plan.rate.to_string();
    let start = |rank: u64| {
        let rank = rank.to_string();
        Load::start_in(&["--rate", &rate], &[("VRAMSCOPE_PUSH", &hub), ("RANK", &rank), ("LOCAL_RANK", &rank)])
    };
    let mut programs: Vec<Load> = (0..plan.programs).map(start).collect();
    let mut random = Rng::with_seed(plan.seed);
    for number in 0..plan.incidents {
        let fault = match random.u64(..6) {
            0 => Fault::Delay(Duration::from_millis(random.u64(1..60))),
            1 => Fault::Throttle(random.u64(10_000..1_000_000)),
            2 => Fault::Stall,
            3 => Fault::HalfClose,
            4 => Fault::Cut,
            _ => Fault::Reset,
        };
        proxy.inject(random.u64(..u64::MAX), fault);
        thread::sleep(Duration::from_millis(random.u64(..200)));
        if number % 20 == 19 {
            proxy.clear_faults();
        }
    }
    proxy.clear_faults();
    let moments: Vec<PoolSnapshot> = programs.iter_mut().map(Load::pause).collect();
    wait_for_all(&viewer, &moments)?;
    let resident_bytes = ProcessUsage::of(serve.pid()).unwrap_or_default().resident_bytes;
    drop(programs);
    if !serve.interrupt().success() {
        return Err(format!("serve failed: {}", serve.messages()));
    }
    let (recording, _) = read_complete_file(&path)?;
    check_all(&recording, &moments).map_err(|error| format!("the file: {error}"))?;
    let seen = viewer.wait(TIMEOUT, |seen| seen.ended)?;
    if digest(seen.recording.end_state()) != digest(recording.end_state()) {
        return Err("the viewer's last state is not the file's".to_owned());
    }
    let _ = fs::remove_file(&path);
    let (events, lost_events) = (recording.events(), recording.lost_events());
    Ok(PushSummary { plan, events, lost_events, resident_bytes })
}

/// Compares the hub's recording with each pool, by rank.
fn check_all(recording: &Recording, moments: &[PoolSnapshot]) -> Result<(), String> {
    for (rank, snapshot) in moments.iter().enumerate() {
        let mut devices = recording.info().devices.iter();
        let info = devices.find(|info| info.rank == Some(rank as u32));
        let info = info.ok_or_else(|| format!("no device of rank {rank}"))?;
        let device = recording.end_state().device(DeviceId(info.device)).ok_or("a device has no state")?;
        snapshot.check_device(device, recording.definitions()).map_err(|error| format!("rank {rank}: {error}"))?;
    }
    Ok(())
}

/// Waits until the hub has received everything from the paused programs.
fn wait_for_all(viewer: &NativeViewer, moments: &[PoolSnapshot]) -> Result<(), String> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let checked = check_all(&viewer.state().recording, moments);
        if checked.is_ok() || Instant::now() > deadline {
            return checked.map_err(|error| format!("after {TIMEOUT:?}: {error}"));
        }
        thread::sleep(Duration::from_millis(100));
    }
}
