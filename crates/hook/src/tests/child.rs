//! The scenarios that a child process runs with the stand-in for PyTorch's library.

use std::env;
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use vramscope_collector::session::RecordingOptions;
use vramscope_trace::{AnnotationStage, DeviceInfo};

use super::comparison::Recorded;
use super::standin::{LogEntry, Standin};
use super::{FOLDER, MINOR, SCENARIO};
use crate::follower::PythonRequest;
use crate::interpreter::{FrameWalker, InterpreterBuild, Layout};
use crate::native;
use crate::notes::NoteKind;
use crate::session::Session;
use crate::stacks::StackTable;
use crate::torch::actions;
use crate::tracker::Mode;

/// Number of devices that the stand-in simulates.
const DEVICES: u16 = 2;
/// Size of a device's memory, in bytes.
const DEVICE_BYTES: u64 = 16 << 30;
/// Events per second of 8 threads together.
const FULL_RATE: f64 = 1_000_000.0;
/// How long the threads run at the full rate, for each layout.
const FULL_RATE_SECONDS: f64 = 0.6;
/// Size of the blocks that the tracker is checked with, in bytes.
const CHECKED_BYTES: u64 = 123_457;

#[test]
#[ignore = "a child process of the other tests"]
fn run_scenario() {
    let Ok(scenario) = env::var(SCENARIO) else { return };
    let folder = PathBuf::from(env::var_os(FOLDER).expect("the parent sets the folder"));
    let minor = env::var(MINOR).expect("the parent sets the version").parse().expect("a number");
    let standin = Standin::load(&folder);
    let result = match scenario.as_str() {
        "refused" => attach_is_refused(standin, &folder, minor),
        scenario => {
            let child = Child { standin: standin.expect("the parent built the library"), folder, minor };
            child.standin.init(DEVICES);
            match scenario {
                "record" => child.record(200_000.0, 0.3),
                "storm" => child.storm(),
                "late" => child.start_late(),
                "overflow" => child.overflow(),
                "twice" => child.record_again(),
                "cpp stacks" => child.record_cpp_stacks(),
                _ => panic!("no scenario {scenario}"),
            }
        }
    };
    println!("result: {result}");
}

/// Opens a session that records to a file.
fn open(path: &Path) -> Session {
    let options = RecordingOptions { record: Some(path.to_owned()), ..RecordingOptions::default() };
    Session::open(options, Arc::new(|message| eprintln!("{message}"))).expect("no page is served")
}

/// Returns the description of the devices.
fn devices() -> Vec<DeviceInfo> {
    let info = |device| DeviceInfo { device, total_bytes: DEVICE_BYTES, ..DeviceInfo::default() };
    (0..DEVICES).map(info).collect()
}

/// Asserts that a session does not attach to this stand-in (`None`: no PyTorch is loaded), and
/// returns the error message.
fn attach_is_refused(standin: Option<Standin>, folder: &Path, minor: u32) -> String {
    let is_initialized = standin.inspect(|standin| standin.init(DEVICES));
    let session = open(&folder.join("refused.vram"));
    let error =
        session.attach(minor, devices(), Mode::Events, || None, None).expect_err("the library is not the expected one");
    if let Some(standin) = is_initialized {
        let address = standin.alloc(1, 4096, 0);
        assert!(address != 0 && standin.free(address));
    }
    assert!(session.prepare_snapshot().is_err(), "nothing is followed");
    assert!(session.stop());
    assert!(!folder.join("refused.vram").exists(), "nothing was recorded");
    error
}

/// Returns the index of the log entry after the first snapshot at or after index `from`.
fn after_snapshot(log: &[LogEntry], from: usize) -> usize {
    let is_snapshot = |entry: &LogEntry| entry.action == u64::from(actions::SNAPSHOT);
    from + log[from..].iter().position(is_snapshot).expect("a snapshot was taken") + 1
}

/// Returns a log from this library's first snapshot after `from` on, without the snapshot that
/// checks the tracker, which is not recorded. [`Child::attach`] begins with one of the program.
fn recorded_part(mut log: Vec<LogEntry>, from: usize) -> Vec<LogEntry> {
    let start = after_snapshot(&log, after_snapshot(&log, from));
    log.remove(after_snapshot(&log, start) - 1);
    log.split_off(start)
}

struct Child {
    standin: Standin,
    folder: PathBuf,
    minor: u32,
}

impl Child {
    fn path(&self) -> PathBuf {
        self.folder.join("recording.vram")
    }

    /// Returns the number of entries that the devices have logged.
    fn log_lengths(&self) -> [usize; DEVICES as usize] {
        std::array::from_fn(|device| self.standin.log(device as u16).len())
    }

    /// Opens a session, begins to follow the allocator, and checks the tracker.
    fn attach(&self) -> Session {
        let session = open(&self.path());
        session.attach(self.minor, devices(), Mode::Events, || None, None).expect("the layout is known");
        drop(self.standin.snapshot());
        self.standin.alloc(0, CHECKED_BYTES, 0);
        let snapshot = self.standin.own_snapshot();
        session.start(&snapshot).expect("the snapshot is valid");
        for device in 0..DEVICES {
            let address = self.standin.alloc(device, CHECKED_BYTES, 0);
            assert!(self.standin.free(address));
        }
        assert_eq!(
            session.check_events(&self.standin.own_snapshot(), false),
            Ok(Some(true)),
            "the tracker saw the blocks"
        );
        session
    }

    /// Ends a session and compares its recording with the log's entries since the first snapshot
    /// after `start`. Returns what was recorded.
    fn stop_and_compare(&self, session: &Session, start: [usize; DEVICES as usize]) -> Compared {
        assert!(session.stop(), "the file is complete");
        let recorded = Recorded::read(&self.path());
        let mut sum = Compared { marks: recorded.marks(0, "middle"), ..Compared::default() };
        for device in 0..DEVICES {
            let log = recorded_part(self.standin.log(device), start[usize::from(device)]);
            let compared = recorded.compare(device, &log);
            sum.events += compared.events;
            sum.gaps += compared.gaps;
            sum.lost += compared.lost;
        }
        // The last snapshot is taken after the recording's end, so it is not in the recording.
        recorded.assert_end_state(&self.standin.snapshot());
        sum
    }

    /// Records 8 threads that allocate and free at the full rate.
    fn storm(&self) -> String {
        // A slow machine makes fewer events a second; the result says how many.
        self.record(FULL_RATE, FULL_RATE_SECONDS)
    }

    /// Records a whole program: 8 threads on two devices, and a request that fails. Returns what
    /// was recorded, with the events per second of the threads.
    fn record(&self, events_per_second: f64, seconds: f64) -> String {
        let start = self.log_lengths();
        let session = self.attach();
        session.begin().expect("the recording begins");
        let counts = self.standin.storm(events_per_second, seconds, DEVICES);
        let mark = NoteKind::Mark { name: Arc::from("middle"), stage: AnnotationStage::Instant };
        session.notes().add([(None, mark)]);
        self.standin.set_limit(1, DEVICE_BYTES / 2);
        assert_eq!(self.standin.alloc(1, DEVICE_BYTES, 0x77), 0);
        drop(self.standin.own_snapshot());
        self.standin.empty_cache();
        let compared = self.stop_and_compare(&session, start);
        assert_eq!((compared.gaps, compared.lost, compared.marks), (0, 0, 1), "nothing is lost");
        format!("{} events, {:.0} a second, all equal to the log", compared.events, counts.rate())
    }

    /// Records C++ stacks of 8 threads, which run no Python code.
    fn record_cpp_stacks(&self) -> String {
        // SAFETY: It does nothing.
        unsafe extern "C" fn no_thread_state() -> *mut c_void {
            std::ptr::null_mut()
        }
        native::enable(None);
        let session = open(&self.path());
        let build = InterpreterBuild { hex_version: 0x030e_00f0, free_threaded: false, trace_refs: false };
        let layout = Layout::for_interpreter(build).expect("CPython 3.14 is known");
        // SAFETY: No thread has a state of an interpreter, so no frame is read.
        let walker = unsafe { FrameWalker::new(layout, 0, no_thread_state) };
        let stacks = || Some(StackTable::new(walker, 0));
        session.attach(self.minor, devices(), Mode::EventsWithAllStacks, stacks, None).expect("the layout is known");
        drop(self.standin.snapshot());
        session.start(&self.standin.own_snapshot()).and_then(|()| session.begin()).expect("the recording begins");
        self.standin.storm(100_000.0, 1.0, DEVICES);
        assert_eq!(
            session.check_events(&self.standin.own_snapshot(), false),
            Ok(Some(true)),
            "the tracker saw the blocks"
        );
        assert!(session.stop(), "the file is complete");
        let recorded = Recorded::read(&self.path());
        let (mut events, mut requests, mut with_stack) = (0, 0, 0);
        for device in 0..DEVICES {
            let compared = recorded.compare(device, &recorded_part(self.standin.log(device), 0));
            assert_eq!((compared.gaps, compared.lost), (0, 0), "nothing is lost");
            events += compared.events;
            for functions in recorded.request_stacks(device) {
                requests += 1;
                if !functions.is_empty() {
                    with_stack += 1;
                    let named = |name: &str| functions.iter().any(|function| function.contains(name));
                    assert!(named("standin::DeviceAllocator::allocate") && named("standin::storm"), "{functions:?}");
                    assert!(!named("vramscope_hook"), "{functions:?}");
                }
            }
        }
        assert!(with_stack > requests * 8 / 10, "{with_stack} of {requests} requests have a stack");
        format!("{events} events, {with_stack} of {requests} requests with a stack")
    }

    /// Starts a session while the program allocates and frees.
    fn start_late(&self) -> String {
        let counts = thread::scope(|scope| {
            let storm = scope.spawn(|| self.standin.storm(200_000.0, 1.0, DEVICES));
            thread::sleep(Duration::from_millis(300));
            let session = self.attach();
            session.begin().expect("the recording begins");
            let counts = storm.join().expect("the storm ends");
            (session, counts)
        });
        let (session, counts) = counts;
        let compared = self.stop_and_compare(&session, [0; 2]);
        let all: usize = (0..DEVICES).map(|device| self.standin.log(device).len()).sum();
        assert!((compared.events as usize) < all * 9 / 10, "the beginning was not recorded");
        assert_eq!((compared.gaps, compared.lost), (0, 0), "nothing is lost");
        format!("{} of {all} events, {:.0} a second, all equal to the log", compared.events, counts.rate())
    }

    /// Leaves the rings unread until they are full, then continues.
    fn overflow(&self) -> String {
        let session = self.attach();
        // More events than both rings have room for.
        let filling = self.standin.storm(f64::INFINITY, 1.5, DEVICES);
        let repaired = thread::scope(|scope| {
            let storm = scope.spawn(|| self.standin.storm(100_000.0, 2.0, DEVICES));
            session.begin().expect("the recording begins");
            let mut repaired = 0;
            while !storm.is_finished() {
                if session.next_request(Duration::from_millis(50)) == Some(PythonRequest::Snapshot) {
                    session.prepare_snapshot().expect("the follower runs");
                    session.record(&self.standin.own_snapshot()).expect("the recording continues");
                    repaired += 1;
                }
            }
            repaired
        });
        let compared = self.stop_and_compare(&session, [0; 2]);
        assert!(repaired >= 1 && compared.gaps >= 1 && compared.lost > 0, "{compared:?}");
        let rate = filling.rate();
        let Compared { events, gaps, lost, .. } = compared;
        format!("{events} events equal to the log, {lost} in {gaps} gaps, filled at {rate:.0} a second")
    }

    /// Records with one session after another.
    fn record_again(&self) -> String {
        let earlier = self.attach();
        earlier.begin().expect("the recording begins");
        assert!(earlier.stop());
        let first = self.record(50_000.0, 0.1);
        let start = self.log_lengths();
        let between = self.standin.storm(50_000.0, 0.1, DEVICES);
        assert!(between.allocations > 0);
        let session = self.attach();
        session.begin().expect("the recording begins");
        // The earlier session was stopped before. Dropping it must not affect the present one.
        drop(earlier);
        self.standin.storm(50_000.0, 0.1, DEVICES);
        let compared = self.stop_and_compare(&session, start);
        assert_eq!((compared.gaps, compared.lost), (0, 0), "nothing is lost");
        format!("{first}; then {} events", compared.events)
    }
}

/// Sums of a comparison over all devices.
#[derive(Debug, Default)]
struct Compared {
    events: u64,
    gaps: u64,
    lost: u64,
    marks: usize,
}
