use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use vramscope_collector::{Address, Gather, HostDevice, Outputs, TlsFiles, Token};
use vramscope_pool::rerun::{self, History};
use vramscope_trace::{
    Decoder, Definition, EventKind, Info, Item, MempoolId, Pool, PoolKind, Recording, SiteId, Stage, StringId,
};

use super::*;

const MIB: u64 = 1 << 20;

/// Devices of a few MiB of this machine's memory, or the reason why there are none.
struct Hosts(Result<Vec<u64>, &'static str>);

impl Devices for Hosts {
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
            0 => Err("it is asleep".to_owned()),
            capacity => Ok(HostDevice::new(capacity)),
        }
    }
}

type Heard = Arc<Mutex<Vec<String>>>;

fn begin(devices: Result<Vec<u64>, &'static str>, conf: Result<&str, &str>, wanted: Wanted) -> (Process<Hosts>, Heard) {
    let heard = Heard::default();
    let tell = {
        let heard = Arc::clone(&heard);
        move |text: &str| lock(&heard).push(text.to_owned())
    };
    let settings = conf.map(|conf| Settings::parse(conf).expect("settings")).map_err(str::to_owned);
    (Process::new(Hosts(devices), settings, wanted, Arc::new(tell)), heard)
}

fn recorded_to(path: &Path) -> Wanted {
    Wanted { record: Some(path.to_owned()), ..Wanted::default() }
}

fn take(heard: &Heard) -> Vec<String> {
    std::mem::take(&mut lock(heard))
}

const STREAM: StreamId = StreamId(0);

/// What a recording says of itself, its events, and what it defines.
fn decode(path: &Path) -> (Info, Vec<EventKind>, Vec<Definition>) {
    let mut decoder = Decoder::new();
    decoder.push(&fs::read(path).expect("it was written"));
    let (mut head, mut events, mut definitions) = (Info::default(), Vec::new(), Vec::new());
    while let Some(item) = decoder.next_item().expect("a whole recording") {
        match item {
            Item::Info(info) => head = info,
            Item::Event(event) => events.push(event.kind),
            Item::Define(definition) => definitions.push(definition),
            _ => {}
        }
    }
    (head, events, definitions)
}

#[test]
fn what_is_handed_out_and_taken_back_is_recorded_without_sites() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.vram");
    let (process, heard) = begin(Ok(vec![64 * MIB]), Ok("max_split_size_mb:32"), recorded_to(&path));
    assert_eq!(process.allocate(0, 0, STREAM), Ok(None));
    let address = process.allocate(1000, 0, STREAM).expect("room").expect("an address");
    assert_eq!(address % 512, 0);
    process.mark("step 1");
    assert_eq!(process.free(address, 0), Ok(()));
    assert_eq!(process.empty_cache(), Ok(()));
    assert!(process.stop());
    let bytes = fs::metadata(&path).expect("it is there").len();
    assert_eq!(take(&heard), [format!("{}: 6 events, {bytes} bytes", path.display())]);
    let (info, events, definitions) = decode(&path);
    assert_eq!(info.alloc_conf, "max_split_size_mb:32");
    assert_eq!((info.devices.len(), info.devices[0].history_complete), (1, true));
    let (pool, site) = (Pool::default_of(PoolKind::Small), SiteId(0));
    let expected = [
        EventKind::SegmentAllocated { address, size: 2 * MIB, stream: STREAM, pool, site },
        EventKind::BlockAllocated { address, size: 1024, requested: 1000, stream: STREAM, pool, site },
        EventKind::Mark { stage: Stage::Instant, name: StringId(1), address: 0, site: SiteId(0) },
        EventKind::FreeRequested { address, site },
        EventKind::FreeCompleted { address, site },
        EventKind::SegmentFreed { address, size: 2 * MIB, site },
    ];
    assert_eq!(events, expected);
    assert_eq!(definitions, [Definition::String("step 1".to_owned())]);
}

#[test]
fn a_stopped_recording_is_whole_and_memory_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.vram");
    let (process, _) = begin(Ok(vec![64 * MIB]), Ok(""), recorded_to(&path));
    let address = process.allocate(512, 0, STREAM).expect("room").expect("an address");
    assert!(process.stop());
    let before = fs::read(&path).expect("it is there");
    assert_eq!(process.free(address, 0), Ok(()));
    assert!(matches!(process.allocate(512, 0, STREAM), Ok(Some(_))));
    process.mark("too late");
    assert!(process.stop());
    process.exit();
    assert_eq!(fs::read(&path).expect("it is there"), before);
    assert_eq!(decode(&path).1.len(), 2);
}

#[test]
fn a_file_that_cannot_be_made_costs_the_recording_alone() {
    let (process, heard) = begin(Ok(vec![64 * MIB]), Ok(""), recorded_to(Path::new("/nowhere/a.vram")));
    assert!(matches!(process.allocate(512, 0, STREAM), Ok(Some(_))));
    let said = take(&heard);
    assert!(said[0].starts_with("/nowhere/a.vram: ") && said[0].ends_with("; nothing is written"), "{said:?}");
    assert!(!process.stop(), "there is no file");
}

/// Asks for memory that there is none of, and says what the answer says.
fn refusal(process: &Process<Hosts>, bytes: u64, device: i32) -> String {
    process.allocate(bytes, device, STREAM).expect_err("there is none").to_string()
}

#[test]
fn without_devices_each_request_is_told_why() {
    let (process, heard) = begin(Err("no CUDA here"), Ok(""), Wanted::default());
    for _ in 0..3 {
        assert_eq!(refusal(&process, 512, 0), "vramscope: no CUDA here; no memory is handed out");
    }
    assert_eq!(process.begin_allocate_to_pool(0, MempoolId(0, 1)), Err("no CUDA here".to_owned()));
    assert_eq!(process.free(512, 0), Err(FreeError::Foreign { address: 512 }));
    assert_eq!((process.memory_stats_json(0), process.stop()), ("{}".to_owned(), true));
    assert!(take(&heard).is_empty());
}

#[test]
fn settings_that_mean_nothing_hand_nothing_out() {
    let (process, _) = begin(Ok(vec![64 * MIB]), Err("PYTORCH_ALLOC_CONF: at 3, nonsense"), Wanted::default());
    assert_eq!(refusal(&process, 512, 0), "vramscope: PYTORCH_ALLOC_CONF: at 3, nonsense; no memory is handed out");
}

#[test]
fn a_device_that_is_not_there_or_does_not_open_takes_no_other_away() {
    let (process, _) = begin(Ok(vec![64 * MIB, 0]), Ok(""), Wanted::default());
    for (device, expected) in [
        (1, "vramscope: device 1: it is asleep; no memory is handed out"),
        (1, "vramscope: device 1: it is asleep; no memory is handed out"),
        (2, "vramscope: there is no device 2: there are 2; no memory is handed out"),
        (-1, "vramscope: there is no device -1: there are 2; no memory is handed out"),
    ] {
        assert_eq!(refusal(&process, 512, device), expected);
    }
    assert!(matches!(process.allocate(512, 0, STREAM), Ok(Some(_))));
}

#[test]
fn what_there_is_no_room_for_is_refused_in_pytorchs_words() {
    let (process, heard) = begin(Ok(vec![64 * MIB]), Ok(""), Wanted::default());
    let said = refusal(&process, 65 * MIB, 0);
    assert!(said.starts_with("CUDA out of memory. Tried to allocate 66.00 MiB. Device 0 has a total "), "{said}");
    let said = refusal(&process, u64::MAX, 0);
    assert!(said.starts_with("CUDA out of memory. Tried to allocate more than 1EB memory"), "{said}");
    assert!(matches!(process.allocate(32 * MIB, 0, STREAM), Ok(Some(_))));
    assert!(take(&heard).is_empty(), "whoever asked is told, and nobody else");
}

#[test]
fn what_was_not_handed_out_is_not_taken_back() {
    let (process, _) = begin(Ok(vec![64 * MIB]), Ok(""), Wanted::default());
    let address = process.allocate(4096, 0, STREAM).expect("room").expect("an address");
    assert_eq!(process.free(1 << 40, 0), Err(FreeError::Foreign { address: 1 << 40 }));
    let inside = address + 512;
    assert_eq!(process.free(inside, 0), Err(FreeError::InsideBlock { address: inside, block: address }));
    assert_eq!(process.record_stream(1 << 40, StreamId(7)), Err(FreeError::Foreign { address: 1 << 40 }));
    assert_eq!(process.record_stream(address, StreamId(7)), Ok(()));
    assert_eq!(process.free(address, 0), Ok(()));
    assert!(process.free(address, 0).is_err());
}

#[test]
fn a_share_of_the_device_is_a_limit_and_stands_in_the_recording() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.vram");
    let (process, _) = begin(Ok(vec![64 * MIB]), Ok(""), recorded_to(&path));
    assert_eq!(process.set_memory_fraction(0.5, 0), Ok(()));
    for nonsense in [-0.5, 1.5, f64::NAN] {
        assert!(process.set_memory_fraction(nonsense, 0).is_err(), "{nonsense}");
    }
    assert!(process.set_memory_fraction(0.5, 1).is_err());
    let Err(Refused::ByPool(AllocateError::OutOfMemory(details))) = process.allocate(40 * MIB, 0, STREAM) else {
        panic!("more than half of the device was handed out");
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
fn a_captured_graph_has_its_memory_for_itself() {
    let (process, _) = begin(Ok(vec![64 * MIB]), Ok(""), Wanted::default());
    let outside = process.allocate(512, 0, STREAM).expect("room").expect("an address");
    let name = MempoolId(0, 1);
    assert_eq!(process.begin_allocate_to_pool(0, name), Ok(()));
    assert!(process.begin_allocate_to_pool(0, name).is_err());
    let inside = process.allocate(512, 0, STREAM).expect("room").expect("an address");
    assert_eq!(process.free(inside, 0), Ok(()));
    assert_eq!(process.end_allocate_to_pool(0, name), Ok(()));
    // Another segment, and not handed out again outside although it is free.
    assert_ne!(inside / (2 * MIB), outside / (2 * MIB));
    let next = process.allocate(512, 0, STREAM).expect("room").expect("an address");
    assert_eq!(next / (2 * MIB), outside / (2 * MIB));
    assert_eq!(process.release_pool(0, name), Ok(()));
    assert!(process.release_pool(0, name).is_err());
}

#[test]
fn counters_have_pytorchs_keys() {
    let (process, _) = begin(Ok(vec![64 * MIB]), Ok(""), Wanted::default());
    assert_eq!(process.memory_stats_json(0), "{}");
    process.allocate(1000, 0, STREAM).expect("room");
    let stats: serde_json::Value = serde_json::from_str(&process.memory_stats_json(0)).expect("JSON");
    assert_eq!(stats["allocated_bytes.all.current"], 1024);
    assert_eq!(stats["requested_bytes.small_pool.allocated"], 1000);
    assert_eq!(stats["reserved_bytes.all.peak"], 2 * MIB);
    assert_eq!(process.memory_stats_json(1), "{}");
}

#[test]
fn the_page_is_served_and_follows() {
    let listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let (process, heard) = begin(Ok(vec![64 * MIB]), Ok(""), Wanted { listen, ..Wanted::default() });
    let said = take(&heard);
    let address = said[0].strip_prefix("listening: http://").and_then(|url| url.split('/').next()).expect("a URL");
    process.allocate(1000, 0, STREAM).expect("room");
    assert!(process.stop());
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(stream, "GET /trace.vram HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").expect("it is small");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("it answers and closes");
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    process.exit();
    assert!(TcpStream::connect(address).is_err(), "the server went with the process");
}

#[test]
fn what_is_recorded_is_pushed_and_the_rest_of_it_at_the_end() {
    let (hub, gather) = (Hub::default(), Gather::new(|_| {}));
    gather.begin(Outputs { hub: Some(hub.clone()), ..Outputs::default() }).expect("a thread");
    let options = ServerOptions { listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))), ..ServerOptions::default() };
    let content = Content { gather: Some(gather.clone()), ..Content::live(hub.clone()) };
    let server = Server::start(options, content).expect("it serves");
    let push = Address::parse(&server.url()).ok();
    let (process, heard) = begin(Ok(vec![64 * MIB, 64 * MIB]), Ok(""), Wanted { push, ..Wanted::default() });
    process.allocate(1000, 1, STREAM).expect("room");
    process.allocate(5 * MIB, 1, STREAM).expect("room");
    assert!(process.stop());
    gather.stop();
    assert_eq!(take(&heard), [""; 0]);
    let mut recording = Recording::new();
    hub.everything().iter().for_each(|chunk| recording.push(&chunk.bytes).expect("a recording"));
    // One device, for nothing happened on the other.
    let [about] = recording.info().devices.as_slice() else { panic!("{:?}", recording.info()) };
    assert!(about.name.ends_with(" · host") && about.history_complete, "{about:?}");
    let device = recording.end_state().device(DeviceId(about.device)).expect("something happened there");
    assert_eq!((device.counters().allocated, device.blocks().len()), (1024 + 5 * MIB, 2));
}

#[test]
fn an_address_that_others_can_reach_takes_a_token() {
    let listen = Some(SocketAddr::from(([0, 0, 0, 0], 0)));
    let (process, heard) = begin(Ok(vec![64 * MIB]), Ok(""), Wanted { listen, ..Wanted::default() });
    let said = take(&heard);
    assert!(said[0].starts_with("listening: http://") && said[0].contains("/?token="), "{said:?}");
    assert!(matches!(process.allocate(512, 0, STREAM), Ok(Some(_))));
}

#[test]
fn a_page_behind_a_proxy_answers_to_its_name_and_says_whom_it_lets_in() {
    let listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let check = |token: Option<&str>, name: &str, expected: u16, lines: usize| {
        let token = token.map(|token| Token::new(token).expect("a token"));
        let allow_hosts = vec!["hub.example.org".to_owned()];
        let wanted = Wanted { listen, token, allow_hosts, ..Wanted::default() };
        let (process, heard) = begin(Ok(vec![64 * MIB]), Ok(""), wanted);
        let said = take(&heard);
        assert_eq!(said.len(), lines, "{said:?}");
        let address = said[0].strip_prefix("listening: http://").and_then(|url| url.split('/').next()).expect("a URL");
        let mut stream = TcpStream::connect(address).expect("it listens");
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n").expect("it is small");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers and closes");
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected} ")), "{answer}");
        process.exit();
    };
    check(None, "hub.example.org", 200, 2);
    check(None, "evil.example", 403, 2);
    check(Some("secret"), "hub.example.org", 401, 1);
}

#[test]
fn a_page_that_cannot_be_encrypted_is_not_served() {
    let listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let tls = Some(TlsFiles { certificate: "/nowhere/a.pem".into(), key: "/nowhere/a.key".into() });
    let (process, heard) = begin(Ok(vec![64 * MIB]), Ok(""), Wanted { listen, tls, ..Wanted::default() });
    let said = take(&heard);
    let [said] = said.as_slice() else { panic!("{said:?}") };
    assert!(said.starts_with("/nowhere/a.pem: ") && said.ends_with("; there is no live page"), "{said}");
    assert!(matches!(process.allocate(512, 0, STREAM), Ok(Some(_))));
}

/// Requests of all sizes on two streams, with uses on the other, a cache that is emptied, and more than there is room for. No private
/// pools: a recording does not say where a capture begins and ends, so that there is nothing certain to compare.
fn run_program(process: &Process<Hosts>, operations: u64) {
    const SIZES: [u64; 5] = [300, 40_000, 900_000, 3 * MIB, 14 * MIB];
    let streams = [StreamId(0), StreamId(0x5500)];
    let (mut live, mut random) = (Vec::new(), 1_u64);
    let mut draw = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let free = |address| process.free(address, 0).expect("it is live");
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
                    process.record_stream(address, streams[draw(2) as usize]).expect("it is live");
                }
                free(address);
            }
            _ if n % 50 == 7 => process.empty_cache().expect("the host takes it back"),
            _ => {}
        }
    }
}

#[test]
fn what_is_recorded_is_what_the_pool_decides_again() {
    for conf in [
        "",
        "expandable_segments:True",
        "max_split_size_mb:24,garbage_collection_threshold:0.6,roundup_power2_divisions:4",
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.vram");
        let (process, _) = begin(Ok(vec![256 * MIB]), Ok(conf), recorded_to(&path));
        process.set_memory_fraction(0.5, 0).expect("half of it");
        run_program(&process, 20_000);
        assert!(process.stop());
        let mut recording = vramscope_trace::Recording::new();
        recording.push(&fs::read(&path).expect("it was written")).expect("a recording");
        let settings = Settings::parse(&recording.info().alloc_conf).expect("its own settings");
        let histories = History::all_of(&recording).expect("a recording");
        assert_eq!(histories.len(), 1);
        let verified = rerun::verify(&histories[0], &settings);
        assert_eq!(verified.divergence, None, "under {conf:?}");
        assert_eq!((verified.matched, verified.events), (recording.events(), recording.events()), "under {conf:?}");
    }
}
