//! A monitored program: its file, its page and its commands.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use vramscope_collector::{HostDevice, HostPool, Listen, Monitor, MonitorError, Settings, StartError};
use vramscope_trace::{DecodedItem, Decoder, DeviceId, Event, EventKind, Recording};

const MIB: u64 = 1 << 20;

fn start(listen: Listen, record: Option<PathBuf>) -> Result<(Monitor, HostPool), MonitorError> {
    let settings = Settings::parse("max_split_size_mb:32").unwrap();
    let builder = Monitor::builder(HostDevice::new(64 * MIB)).program("train").settings(settings).listen(listen);
    match record {
        Some(path) => builder.record(path).start(),
        None => builder.start(),
    }
}

/// Reads a complete recording file.
fn open(path: &Path) -> Recording {
    let mut recording = Recording::new();
    recording.push(&fs::read(path).unwrap()).unwrap();
    recording.finish().unwrap();
    recording
}

#[test]
fn program_is_recorded_to_a_file_and_served() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.vram");
    let listen = Listen::Address("127.0.0.1:0".parse().unwrap());
    let (monitor, pool) = start(listen, Some(path.clone())).unwrap();
    let step = pool.scope("step");
    let held = pool.alloc_zeros::<f32>(1000).unwrap();
    drop(pool.alloc_zeros::<f32>(1_000_000).unwrap());
    drop(step);

    let url = monitor.url().unwrap();
    let (address, token) = url.trim_start_matches("http://").split_once("/?token=").unwrap();
    assert_eq!(token.len(), 22);
    let mut response = String::new();
    let mut connection = TcpStream::connect(address).unwrap();
    write!(connection, "GET /healthz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    connection.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");

    let summary = monitor.stop();
    assert!(summary.file_error.is_none());
    // The pool outlives its monitor.
    drop(held);
    assert!(pool.alloc_zeros::<f32>(1000).is_ok());
    let recording = open(&path);
    assert_eq!(recording.events(), summary.events);
    let info = recording.info();
    assert_eq!((info.source.as_str(), info.alloc_conf.as_str()), ("train", "max_split_size_mb:32"));
    assert_eq!((info.devices[0].total_bytes, info.devices[0].history_complete), (64 * MIB, true));
    let counters = recording.end_state().device(DeviceId(0)).unwrap().counters();
    assert_eq!((counters.allocated, counters.reserved), (4096, 22 * MIB));
}

#[test]
fn invalid_address_or_file_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    // This machine does not have this address: RFC 5737 reserves it for documentation.
    let error = start(Listen::Address("192.0.2.1:7791".parse().unwrap()), None).unwrap_err();
    assert!(matches!(error, MonitorError::Listen(StartError::Io(..))), "{error}");
    let error = start(Listen::Off, Some(folder.path().join("no/such/folder.vram"))).unwrap_err();
    assert!(error.to_string().contains("folder.vram: "), "{error}");
}

#[test]
fn first_out_of_memory_writes_the_recording() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("oom.vram");
    let (monitor, pool) = start(Listen::Off, None).unwrap();
    assert_eq!(monitor.url(), None);
    let outcomes = Arc::new(Mutex::new(Vec::new()));
    let callback_outcomes = Arc::clone(&outcomes);
    pool.attach_out_of_memory_observer(monitor.recording_at_out_of_memory(&path, move |written| {
        callback_outcomes.lock().unwrap().push(written.map(Path::to_owned).map_err(|error| error.kind()));
    }));
    let held = pool.alloc_zeros::<u8>(30 << 20).unwrap();
    assert!(!path.exists());
    assert!(pool.alloc_zeros::<u8>(40 << 20).is_err());
    assert_eq!(*outcomes.lock().unwrap(), [Ok(path.clone())]);
    let recording = open(&path);
    let device = recording.end_state().device(DeviceId(0)).unwrap();
    assert_eq!((device.ooms(), device.counters().allocated), (1, 30 * MIB));

    // Only the first out-of-memory writes a file: a program that continues may have many.
    let bytes = fs::read(&path).unwrap();
    drop(held);
    assert!(pool.alloc_zeros::<u8>(100 << 20).is_err());
    assert_eq!((outcomes.lock().unwrap().len(), fs::read(&path).unwrap() == bytes), (1, true));
}

#[test]
fn unwritable_file_is_reported_to_the_callback() {
    let folder = tempfile::tempdir().unwrap();
    let (monitor, pool) = start(Listen::Off, None).unwrap();
    let outcome = Arc::new(Mutex::new(None));
    let callback_outcome = Arc::clone(&outcome);
    let path = folder.path().join("no/such/folder.vram");
    pool.attach_out_of_memory_observer(monitor.recording_at_out_of_memory(path, move |written| {
        *callback_outcome.lock().unwrap() = Some(written.map(drop).map_err(|error| error.kind()));
    }));
    assert!(pool.alloc_zeros::<u8>(1 << 30).is_err());
    assert_eq!(*outcome.lock().unwrap(), Some(Err(std::io::ErrorKind::NotFound)));
}

/// Sends a request to the program's page. Returns the status line and the body of the response.
fn send(monitor: &Monitor, method: &str, path: &str, body: &str) -> (String, String) {
    let url = monitor.url().unwrap();
    let (address, token) = url.trim_start_matches("http://").split_once("/?token=").unwrap();
    let (mut response, len) = (String::new(), body.len());
    let mut connection = TcpStream::connect(address).unwrap();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}");
    write!(connection, "{head}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{body}").unwrap();
    connection.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

#[test]
fn page_offers_only_the_allowed_commands() {
    let folder = tempfile::tempdir().unwrap();
    let address: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let builder = Monitor::builder(HostDevice::new(64 * MIB)).listen(address).folder(folder.path());
    let (monitor, pool) = builder.start().unwrap();
    let offered = || send(&monitor, "GET", "/commands", "").1;
    assert_eq!(offered(), "{\"allowed\":true,\"commands\":[\"record\",\"mark\"]}\n");
    assert_eq!(send(&monitor, "POST", "/commands/empty-cache", "").0, "HTTP/1.1 404 Not Found");

    drop(pool.alloc_zeros::<u8>(30 << 20).unwrap());
    monitor.allow_empty_cache(&pool);
    let (status, body) = send(&monitor, "POST", "/commands/empty-cache", "");
    assert_eq!((status.as_str(), body.as_str()), ("HTTP/1.1 200 OK", "{\"done\":\"30 MiB released to the device\"}\n"));
    let (_, body) = send(&monitor, "POST", "/commands/mark", "{\"name\":\"here\"}");
    assert_eq!(body, "{\"done\":\"added the mark to the recording\"}\n");
    let (_, body) = send(&monitor, "POST", "/commands/record", "");
    assert!(body.starts_with("{\"done\":\""), "{body}");
    let file = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    let recording = open(&file);
    assert_eq!(recording.end_state().device(DeviceId(0)).unwrap().counters().reserved, 0);
    let mut decoder = Decoder::new();
    decoder.push(&fs::read(&file).unwrap());
    let items = std::iter::from_fn(|| decoder.next_item().unwrap());
    let is_mark = |item: &DecodedItem| match item {
        DecodedItem::Event(Event { kind: EventKind::Mark { name, .. }, .. }) => {
            recording.definitions().string(*name) == "here"
        }
        _ => false,
    };
    assert_eq!(items.filter(is_mark).count(), 1);

    // The monitor does not keep the pool alive.
    drop(pool);
    let (status, body) = send(&monitor, "POST", "/commands/empty-cache", "");
    assert_eq!(status, "HTTP/1.1 500 Internal Server Error");
    assert!(body.contains("the program has dropped its pool"), "{body}");
}
