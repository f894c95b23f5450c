use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use vramscope_collector::{
    Aggregator, HostDevice, Hub, Outputs, PushAddress, ServedContent, Server, ServerOptions, TlsFiles, Token,
};
use vramscope_pool::rerun::{self, History};
use vramscope_trace::{
    AnnotationStage, ByteSize, DecodedItem, Decoder, Definition, EventKind, MempoolId, PoolKey, PoolKind, Recording,
    RecordingInfo, SiteId, StringId,
};

use super::*;

pub(super) const MIB: u64 = 1 << 20;

/// A source of host devices with these capacities in bytes, or the error of listing them. A device
/// of capacity 0 fails to open.
pub(super) struct HostDevices(pub(super) Result<Vec<u64>, &'static str>);

impl DeviceSource for HostDevices {
    type Device = HostDevice;

    fn list(&self) -> Result<Vec<DeviceInfo>, String> {
        let capacities = self.0.as_ref().map_err(|reason| (*reason).to_owned())?;
        let info = |(device, &total_bytes)| DeviceInfo {
            device,
            name: "host".into(),
            total_bytes,
            history_complete: true,
            ..DeviceInfo::default()
        };
        Ok((0..).zip(capacities).map(info).collect())
    }

    fn open(&self, number: u16) -> Result<HostDevice, String> {
        let capacities = self.0.as_ref().map_err(|reason| (*reason).to_owned())?;
        match capacities[usize::from(number)] {
            0 => Err("unavailable".to_owned()),
            capacity => Ok(HostDevice::new(capacity)),
        }
    }
}

pub(super) type Messages = Arc<Mutex<Vec<String>>>;

pub(super) fn start(
    devices: Result<Vec<u64>, &'static str>,
    conf: Result<&str, &str>,
    options: RecordingOptions,
) -> (ProcessState<HostDevices>, Messages) {
    let messages = Messages::default();
    let log = {
        let messages = Arc::clone(&messages);
        move |text: &str| lock(&messages).push(text.to_owned())
    };
    let settings = conf.map(|conf| Settings::parse(conf).expect("valid settings")).map_err(str::to_owned);
    (ProcessState::new(HostDevices(devices), settings, options, Arc::new(log)), messages)
}

pub(super) fn recording_to(path: &Path) -> RecordingOptions {
    RecordingOptions { record: Some(path.to_owned()), ..RecordingOptions::default() }
}

pub(super) fn take(messages: &Messages) -> Vec<String> {
    std::mem::take(&mut lock(messages))
}

pub(super) const STREAM: StreamId = StreamId(0);

/// Returns a recording's header, events and definitions.
pub(super) fn decode(path: &Path) -> (RecordingInfo, Vec<EventKind>, Vec<Definition>) {
    let mut decoder = Decoder::new();
    decoder.push(&fs::read(path).expect("the file was written"));
    let (mut header, mut events, mut definitions) = (RecordingInfo::default(), Vec::new(), Vec::new());
    while let Some(item) = decoder.next_item().expect("a complete recording") {
        match item {
            DecodedItem::Info(info) => header = info,
            DecodedItem::Event(event) => events.push(event.kind),
            DecodedItem::Define(definition) => definitions.push(definition),
            _ => {}
        }
    }
    (header, events, definitions)
}

#[test]
fn allocations_and_frees_are_recorded_without_sites() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("a.vram");
    let (process, messages) = start(Ok(vec![64 * MIB]), Ok("max_split_size_mb:32"), recording_to(&path));
    assert_eq!(process.allocate(0, 0, STREAM), Ok(None));
    let address = process.allocate(1000, 0, STREAM).expect("the pool is large enough").expect("the URL has an address");
    assert_eq!(address % 512, 0);
    process.mark("step 1", AnnotationStage::Instant);
    assert_eq!(process.free(address, 0), Ok(()));
    assert_eq!(process.empty_cache(), Ok(()));
    assert!(process.stop());
    let bytes = fs::metadata(&path).expect("the file exists").len();
    assert_eq!(take(&messages), [format!("{}: 6 events, {}", path.display(), ByteSize(bytes))]);
    let (info, events, definitions) = decode(&path);
    assert_eq!(info.alloc_conf, "max_split_size_mb:32");
    assert_eq!((info.devices.len(), info.devices[0].history_complete), (1, true));
    let (pool, site) = (PoolKey::default_of(PoolKind::Small), SiteId(0));
    let expected = [
        EventKind::SegmentAllocated { address, size: 2 * MIB, stream: STREAM, pool, site },
        EventKind::BlockAllocated { address, size: 1024, requested: 1000, stream: STREAM, pool, site },
        EventKind::Mark { stage: AnnotationStage::Instant, name: StringId(1), address: 0, site: SiteId(0) },
        EventKind::FreeRequested { address, site },
        EventKind::FreeCompleted { address, site },
        EventKind::SegmentFreed { address, size: 2 * MIB, site },
    ];
    assert_eq!(events, expected);
    assert_eq!(definitions, [Definition::String("step 1".to_owned())]);
}

#[test]
fn stopped_recording_is_complete_and_allocation_continues() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("a.vram");
    let (process, _) = start(Ok(vec![64 * MIB]), Ok(""), recording_to(&path));
    let address = process.allocate(512, 0, STREAM).expect("the pool is large enough").expect("the URL has an address");
    assert!(process.stop());
    let before = fs::read(&path).expect("the file exists");
    assert_eq!(process.free(address, 0), Ok(()));
    assert!(matches!(process.allocate(512, 0, STREAM), Ok(Some(_))));
    process.mark("too late", AnnotationStage::Instant);
    assert!(process.stop());
    process.shut_down();
    assert_eq!(fs::read(&path).expect("the file exists"), before);
    assert_eq!(decode(&path).1.len(), 2);
}

#[test]
fn uncreatable_file_disables_only_the_recording() {
    let (process, messages) = start(Ok(vec![64 * MIB]), Ok(""), recording_to(Path::new("/nowhere/a.vram")));
    assert!(matches!(process.allocate(512, 0, STREAM), Ok(Some(_))));
    let logged = take(&messages);
    assert!(logged[0].starts_with("/nowhere/a.vram: ") && logged[0].ends_with("; no file is written"), "{logged:?}");
    assert!(!process.stop(), "the requested file could not be created");
}

/// Returns the message of a request that must fail.
fn request_error(process: &ProcessState<HostDevices>, bytes: u64, device: i32) -> String {
    process.allocate(bytes, device, STREAM).expect_err("the request cannot be served").to_string()
}

#[test]
fn without_devices_every_request_returns_the_reason() {
    let (process, messages) = start(Err("no CUDA here"), Ok(""), RecordingOptions::default());
    for _ in 0..3 {
        assert_eq!(request_error(&process, 512, 0), "vramscope: cannot allocate: no CUDA here");
    }
    assert_eq!(process.begin_allocate_to_pool(0, MempoolId(0, 1)), Err("no CUDA here".to_owned()));
    assert_eq!(process.free(512, 0), Err(FreeError::UnknownAddress { address: 512 }));
    assert_eq!((process.memory_stats_json(0), process.stop()), ("{}".to_owned(), true));
    assert!(take(&messages).is_empty());
}

#[test]
fn invalid_settings_fail_every_request() {
    let (process, _) =
        start(Ok(vec![64 * MIB]), Err("PYTORCH_ALLOC_CONF: at 3, nonsense"), RecordingOptions::default());
    assert_eq!(request_error(&process, 512, 0), "vramscope: cannot allocate: PYTORCH_ALLOC_CONF: at 3, nonsense");
}

#[test]
fn missing_device_leaves_the_others_usable() {
    let (process, _) = start(Ok(vec![64 * MIB, 0]), Ok(""), RecordingOptions::default());
    for (device, expected) in [
        (1, "vramscope: cannot allocate: device 1: unavailable"),
        (1, "vramscope: cannot allocate: device 1: unavailable"),
        (2, "vramscope: cannot allocate: there is no device 2: this process sees 2 devices"),
        (-1, "vramscope: cannot allocate: there is no device -1: this process sees 2 devices"),
    ] {
        assert_eq!(request_error(&process, 512, device), expected);
    }
    assert!(matches!(process.allocate(512, 0, STREAM), Ok(Some(_))));
}

#[test]
fn out_of_memory_errors_begin_like_pytorchs() {
    let (process, messages) = start(Ok(vec![64 * MIB]), Ok(""), RecordingOptions::default());
    let error = request_error(&process, 65 * MIB, 0);
    assert!(error.starts_with("CUDA out of memory. Tried to allocate 66.00 MiB. Device 0 has a total "), "{error}");
    let error = request_error(&process, u64::MAX, 0);
    assert!(error.starts_with("CUDA out of memory. Tried to allocate more than 1EB memory"), "{error}");
    assert!(matches!(process.allocate(32 * MIB, 0, STREAM), Ok(Some(_))));
    assert!(take(&messages).is_empty(), "the error goes to the caller only");
}

#[test]
fn freeing_an_unknown_address_is_an_error() {
    let (process, _) = start(Ok(vec![64 * MIB]), Ok(""), RecordingOptions::default());
    let address = process.allocate(4096, 0, STREAM).expect("the pool is large enough").expect("the URL has an address");
    assert_eq!(process.free(1 << 40, 0), Err(FreeError::UnknownAddress { address: 1 << 40 }));
    let middle = address + 512;
    assert_eq!(process.free(middle, 0), Err(FreeError::InsideBlock { address: middle, block: address }));
    assert_eq!(process.record_stream(1 << 40, StreamId(7)), Err(FreeError::UnknownAddress { address: 1 << 40 }));
    assert_eq!(process.record_stream(address, StreamId(7)), Ok(()));
    assert_eq!(process.free(address, 0), Ok(()));
    assert!(process.free(address, 0).is_err());
}

#[test]
fn memory_fraction_limits_the_pool_and_is_recorded() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("a.vram");
    let (process, _) = start(Ok(vec![64 * MIB]), Ok(""), recording_to(&path));
    assert_eq!(process.set_memory_fraction(0.5, 0), Ok(()));
    for invalid in [-0.5, 1.5, f64::NAN] {
        assert!(process.set_memory_fraction(invalid, 0).is_err(), "{invalid}");
    }
    assert!(process.set_memory_fraction(0.5, 1).is_err());
    let Err(RequestError::Pool(AllocateError::OutOfMemory(details))) = process.allocate(40 * MIB, 0, STREAM) else {
        panic!("the request exceeds the limit");
    };
    assert_eq!(details.limit_bytes, Some(32 * MIB));
    assert!(matches!(process.allocate(20 * MIB, 0, STREAM), Ok(Some(_))));
    assert_eq!(process.set_memory_fraction(1.0, 0), Ok(()));
    assert!(matches!(process.allocate(40 * MIB, 0, STREAM), Ok(Some(_))));
    assert!(process.stop());
    let (info, ..) = decode(&path);
    assert_eq!(Settings::parse(&info.alloc_conf).map(|settings| settings.per_process_memory_fraction), Ok(0.5));
}

#[test]
fn private_pool_has_its_own_segments() {
    let (process, _) = start(Ok(vec![64 * MIB]), Ok(""), RecordingOptions::default());
    let default_block =
        process.allocate(512, 0, STREAM).expect("the pool is large enough").expect("the URL has an address");
    let mempool = MempoolId(0, 1);
    assert_eq!(process.begin_allocate_to_pool(0, mempool), Ok(()));
    assert!(process.begin_allocate_to_pool(0, mempool).is_err());
    let private_block =
        process.allocate(512, 0, STREAM).expect("the pool is large enough").expect("the URL has an address");
    assert_eq!(process.free(private_block, 0), Ok(()));
    assert_eq!(process.end_allocate_to_pool(0, mempool), Ok(()));
    // The private block is in another segment, and is not reused outside although it is free.
    assert_ne!(private_block / (2 * MIB), default_block / (2 * MIB));
    let next = process.allocate(512, 0, STREAM).expect("the pool is large enough").expect("the URL has an address");
    assert_eq!(next / (2 * MIB), default_block / (2 * MIB));
    assert_eq!(process.release_pool(0, mempool), Ok(()));
    assert!(process.release_pool(0, mempool).is_err());
}

#[test]
fn memory_stats_have_pytorchs_keys() {
    let (process, _) = start(Ok(vec![64 * MIB]), Ok(""), RecordingOptions::default());
    // PyTorch reads the counters when it initializes CUDA.
    process.list_devices();
    assert!(process.memory_stats_json(0).contains("\"allocated_bytes.all.current\":0"));
    process.allocate(1000, 0, STREAM).expect("the pool is large enough");
    let stats: serde_json::Value = serde_json::from_str(&process.memory_stats_json(0)).expect("the text is JSON");
    assert_eq!(stats["allocated_bytes.all.current"], 1024);
    assert_eq!(stats["requested_bytes.small_pool.allocated"], 1000);
    assert_eq!(stats["reserved_bytes.all.peak"], 2 * MIB);
    assert_eq!(process.memory_stats_json(1), "{}");
}

#[test]
fn page_serves_the_recording_until_shutdown() {
    let listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let (process, messages) =
        start(Ok(vec![64 * MIB]), Ok(""), RecordingOptions { listen, ..RecordingOptions::default() });
    let logged = take(&messages);
    let address = logged[0]
        .strip_prefix("listening: http://")
        .and_then(|url| url.split('/').next())
        .expect("the message has a URL");
    process.allocate(1000, 0, STREAM).expect("the pool is large enough");
    assert!(process.stop());
    let mut stream = TcpStream::connect(address).expect("the server listens");
    write!(stream, "GET /trace.vram HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")
        .expect("the request is small");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("the server answers and closes");
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    process.shut_down();
    assert!(TcpStream::connect(address).is_err(), "the server has stopped");
}

#[test]
fn recording_is_pushed_completely_before_it_stops() {
    let (hub, aggregator) = (Hub::default(), Aggregator::new());
    aggregator.begin(Outputs { hub: Some(hub.clone()), ..Outputs::default() }).expect("the merge thread starts");
    let options = ServerOptions { listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))), ..ServerOptions::default() };
    let content = ServedContent { aggregator: Some(aggregator.clone()), ..ServedContent::live(hub.clone()) };
    let server = Server::start(options, content).expect("the server starts");
    let push = PushAddress::parse(&server.url()).ok();
    let (process, messages) =
        start(Ok(vec![64 * MIB, 64 * MIB]), Ok(""), RecordingOptions { push, ..RecordingOptions::default() });
    process.allocate(1000, 1, STREAM).expect("the pool is large enough");
    process.allocate(5 * MIB, 1, STREAM).expect("the pool is large enough");
    assert!(process.stop());
    aggregator.stop();
    assert_eq!(take(&messages), [""; 0]);
    let mut recording = Recording::new();
    hub.everything().iter().for_each(|chunk| recording.push(&chunk.bytes).expect("a valid recording"));
    // The unused device is not pushed.
    let [info] = recording.info().devices.as_slice() else { panic!("{:?}", recording.info()) };
    assert!(info.name.ends_with(" · host") && info.history_complete, "{info:?}");
    let device = recording.end_state().device(DeviceId(info.device)).expect("the device has events");
    assert_eq!((device.counters().allocated, device.blocks().len()), (1024 + 5 * MIB, 2));
}

#[test]
fn public_address_gets_a_random_token() {
    let listen = Some(SocketAddr::from(([0, 0, 0, 0], 0)));
    let (process, messages) =
        start(Ok(vec![64 * MIB]), Ok(""), RecordingOptions { listen, ..RecordingOptions::default() });
    let logged = take(&messages);
    assert!(logged[0].starts_with("listening: http://") && logged[0].contains("/?token="), "{logged:?}");
    assert!(matches!(process.allocate(512, 0, STREAM), Ok(Some(_))));
}

#[test]
fn page_answers_to_allowed_host_names_and_warns_without_a_token() {
    let listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let check = |token: Option<&str>, name: &str, expected: u16, lines: usize| {
        let token = token.map(|token| Token::new(token).expect("a valid token"));
        let allow_hosts = vec!["hub.example.org".to_owned()];
        let options = RecordingOptions { listen, token, allow_hosts, ..RecordingOptions::default() };
        let (process, messages) = start(Ok(vec![64 * MIB]), Ok(""), options);
        let logged = take(&messages);
        assert_eq!(logged.len(), lines, "{logged:?}");
        let address = logged[0]
            .strip_prefix("listening: http://")
            .and_then(|url| url.split('/').next())
            .expect("the message has a URL");
        let mut stream = TcpStream::connect(address).expect("the server listens");
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n")
            .expect("the request is small");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("the server answers and closes");
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected} ")), "{answer}");
        process.shut_down();
    };
    check(None, "hub.example.org", 200, 2);
    check(None, "evil.example", 403, 2);
    check(Some("secret"), "hub.example.org", 401, 1);
}

#[test]
fn page_is_not_served_if_tls_fails() {
    let listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let tls = Some(TlsFiles { certificate: "/nowhere/a.pem".into(), key: "/nowhere/a.key".into() });
    let (process, messages) =
        start(Ok(vec![64 * MIB]), Ok(""), RecordingOptions { listen, tls, ..RecordingOptions::default() });
    let logged = take(&messages);
    let [logged] = logged.as_slice() else { panic!("{logged:?}") };
    assert!(logged.starts_with("/nowhere/a.pem: ") && logged.ends_with("; the page is not served"), "{logged}");
    assert!(matches!(process.allocate(512, 0, STREAM), Ok(Some(_))));
}

/// Makes requests of all sizes on two streams, uses blocks on the other stream, empties the cache,
/// and runs out of memory. Uses no private pools: a recording does not contain where a capture
/// begins and ends, so a comparison would be ambiguous.
fn run_program(process: &ProcessState<HostDevices>, operations: u64) {
    const SIZES: [u64; 5] = [300, 40_000, 900_000, 3 * MIB, 14 * MIB];
    let streams = [StreamId(0), StreamId(0x5500)];
    let (mut live, mut rng) = (Vec::new(), fastrand::Rng::with_seed(1));
    let mut draw = |end: u64| rng.u64(..end);
    let free = |address| process.free(address, 0).expect("the block is allocated");
    for n in 0..operations {
        match draw(10) {
            0..6 => {
                let bytes = SIZES[draw(5) as usize] + draw(5000);
                match process.allocate(bytes, 0, streams[draw(2) as usize]) {
                    Ok(address) => live.extend(address),
                    Err(_) => live.drain(live.len() / 2..).for_each(free),
                }
            }
            6..9 if !live.is_empty() => {
                let address = live.swap_remove(draw(live.len() as u64) as usize);
                if draw(3) == 0 {
                    process.record_stream(address, streams[draw(2) as usize]).expect("the block is allocated");
                }
                free(address);
            }
            _ if n % 50 == 7 => process.empty_cache().expect("host memory can be released"),
            _ => {}
        }
    }
}

#[test]
fn recording_verifies_against_the_pool() {
    for conf in [
        "",
        "expandable_segments:True",
        "max_split_size_mb:24,garbage_collection_threshold:0.6,roundup_power2_divisions:4",
    ] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("a.vram");
        let (process, _) = start(Ok(vec![256 * MIB]), Ok(conf), recording_to(&path));
        process.set_memory_fraction(0.5, 0).expect("a valid fraction");
        run_program(&process, 20_000);
        assert!(process.stop());
        let mut recording = vramscope_trace::Recording::new();
        recording.push(&fs::read(&path).expect("the file was written")).expect("a valid recording");
        let settings = Settings::parse(&recording.info().alloc_conf).expect("the recorded settings are valid");
        let histories = History::from_recording(&recording).expect("a valid recording");
        assert_eq!(histories.len(), 1);
        let verified = rerun::verify(&histories[0], &settings);
        assert_eq!(verified.divergence, None, "under {conf:?}");
        assert_eq!((verified.matched, verified.events), (recording.events(), recording.events()), "under {conf:?}");
    }
}
