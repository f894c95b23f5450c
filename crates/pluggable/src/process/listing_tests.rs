//! Tests that the devices are listed at their first use and not before.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use vramscope_collector::HostDevice;
use vramscope_trace::MempoolId;

use super::tests::{HostDevices, MIB, STREAM, decode, recording_to};
use super::*;

/// Host devices that count how often they are listed, and call a function meanwhile.
#[derive(Clone)]
struct CountingDevices {
    devices: Arc<HostDevices>,
    lists: Arc<AtomicUsize>,
    while_listing: Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>,
}

impl CountingDevices {
    fn new(devices: Result<Vec<u64>, &'static str>) -> Self {
        Self { devices: Arc::new(HostDevices(devices)), lists: Arc::default(), while_listing: Arc::default() }
    }

    fn lists(&self) -> usize {
        self.lists.load(Ordering::Relaxed)
    }
}

impl DeviceSource for CountingDevices {
    type Device = HostDevice;

    fn list(&self) -> Result<Vec<DeviceInfo>, String> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        if let Some(call) = self.while_listing.get() {
            call();
        }
        self.devices.list()
    }

    fn open(&self, number: u16) -> Result<HostDevice, String> {
        self.devices.open(number)
    }
}

fn start(devices: &CountingDevices, conf: Result<&str, &str>) -> ProcessState<CountingDevices> {
    let settings = conf.map(|conf| Settings::parse(conf).expect("valid settings")).map_err(str::to_owned);
    ProcessState::new(devices.clone(), settings, RecordingOptions::default(), Arc::new(|_| ()))
}

#[test]
fn devices_are_listed_at_the_first_request() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("a.vram");
    let devices = CountingDevices::new(Ok(vec![64 * MIB; 2]));
    let process = start(&devices, Ok("max_split_size_mb:32"));
    assert_eq!(process.start_session(recording_to(&path)), Ok(SessionStart::Started(None)));
    let seen = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&seen);
    process.attach_out_of_memory_observer(Arc::new(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    }));
    process.mark("early", AnnotationStage::Begin);
    process.set_recording(true);
    assert_eq!(process.set_settings("max_split_size_mb:64,per_process_memory_fraction:0.5"), Ok(()));
    assert_eq!((process.memory_fraction(0), process.cache_info(0, 7)), (0.5, 7));
    process.reset_stats(0, StatsReset::Peaks);
    assert_eq!(process.memory_stats_json(0), "{}");
    assert_eq!(process.free(512, 0), Err(FreeError::UnknownAddress { address: 512 }));
    assert_eq!(process.record_stream(512, STREAM), Err(FreeError::UnknownAddress { address: 512 }));
    assert_eq!(process.empty_cache(), Ok(()));
    assert!(process.save(&path).is_err());
    process.snapshot_pickle(true).expect("a snapshot without devices");
    assert_eq!(devices.lists(), 0);
    for _ in 0..2 {
        process.allocate(1000, 1, STREAM).expect("the pool is large enough");
        assert_eq!(devices.lists(), 1);
    }
    assert!(process.allocate(40 * MIB, 1, STREAM).is_err(), "half of the device can be reserved");
    assert_eq!(seen.load(Ordering::Relaxed), 1);
    let split = process.pool(1).map(|pool| pool.allocator_settings().max_split_size_bytes);
    assert_eq!(split, Ok(Some(64 * MIB)));
    assert!(process.stop());
    let (info, ..) = decode(&path);
    assert_eq!(info.devices.len(), 2);
    assert_eq!(devices.lists(), 1);
}

#[test]
fn uses_of_a_device_list_the_devices() {
    let check = |use_device: &dyn Fn(&ProcessState<CountingDevices>)| {
        let devices = CountingDevices::new(Ok(vec![64 * MIB]));
        let process = start(&devices, Ok(""));
        for _ in 0..2 {
            use_device(&process);
            assert_eq!(devices.lists(), 1);
        }
        assert!(process.memory_stats_json(0).contains("\"allocated_bytes.all.current\":0"));
    };
    check(&ProcessState::list_devices);
    check(&|process| assert_eq!(process.set_memory_fraction(0.5, 0), Ok(())));
    check(&|process| assert_eq!(process.pool(0).map(drop), Ok(())));
    check(&|process| {
        assert_eq!(process.begin_allocate_to_pool(0, MempoolId(0, 1)), Ok(()));
        assert_eq!(process.end_allocate_to_pool(0, MempoolId(0, 1)), Ok(()));
    });
}

#[test]
fn each_request_fails_with_the_reason_of_the_failed_listing() {
    let devices = CountingDevices::new(Err("no CUDA here"));
    let process = start(&devices, Ok(""));
    assert_eq!((devices.lists(), process.memory_fraction(0)), (0, 1.0));
    for _ in 0..2 {
        let error = process.allocate(512, 0, STREAM).expect_err("there is no device").to_string();
        assert_eq!((error.as_str(), devices.lists()), ("vramscope: cannot allocate: no CUDA here", 1));
        assert_eq!(process.set_memory_fraction(0.5, 0), Err("no CUDA here".to_owned()));
    }
}

#[test]
fn invalid_settings_fail_every_request_without_a_device() {
    let devices = CountingDevices::new(Ok(vec![64 * MIB]));
    let process = start(&devices, Err("PYTORCH_ALLOC_CONF: at 3, nonsense"));
    assert_eq!(process.set_settings("max_split_size_mb:32"), Ok(()));
    process.list_devices();
    for _ in 0..2 {
        let error = process.allocate(512, 0, STREAM).expect_err("the settings are invalid").to_string();
        assert_eq!(error, "vramscope: cannot allocate: PYTORCH_ALLOC_CONF: at 3, nonsense");
    }
    assert_eq!(devices.lists(), 0);
}

#[test]
fn listing_waits_until_pools_may_be_created() {
    let devices = CountingDevices::new(Ok(vec![64 * MIB]));
    let process = Arc::new(start(&devices, Ok("")));
    let (weak, is_held) = (Arc::downgrade(&process), Arc::new(OnceLock::new()));
    let found = Arc::clone(&is_held);
    let look = move || found.set(weak.upgrade().expect("the test has it").devices.is_listing_held()).expect("once");
    assert!(devices.while_listing.set(Box::new(look)).is_ok());
    let creating = process.devices.lock_pool_creation();
    assert!(process.devices.is_listing_held());
    let requesting = Arc::clone(&process);
    let request = std::thread::spawn(move || requesting.allocate(512, 0, STREAM).is_ok());
    assert_eq!(devices.lists(), 0);
    drop(creating);
    assert!(request.join().expect("no thread panics"));
    assert_eq!(is_held.get(), Some(&true));
    assert!(!process.devices.is_listing_held());
}
