//! The page's connection to a running program: reconnecting, proxies and commands.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use fastrand::Rng;
use serde_json::{Value, json};
use vramscope_tests::{Browser, Fault, Page, PageState, Program, Proxy, Window};
use vramscope_trace::{Recording, Replay, digest};

/// Starts the demo, recorded to a file in `folder`.
fn demo(folder: &Path) -> Program {
    let file = folder.join("live.vram");
    Program::start(["demo".as_ref(), "--device".as_ref(), "host".as_ref(), "--record".as_ref(), file.as_os_str()])
}

/// Returns the URL of `program`'s page through `proxy`.
fn through(proxy: SocketAddr, program: &Program) -> String {
    program.url().replace(&address(program).to_string(), &proxy.to_string())
}

fn address(program: &Program) -> SocketAddr {
    let address = program.url().trim_start_matches("http://").split('/').next().unwrap_or_default();
    address.parse().unwrap_or_else(|error| panic!("{}: {error}", program.url()))
}

fn text(page: Page<'_>, id: &str) -> String {
    let text = page.run(&format!("const e = document.getElementById('{id}'); return e.hidden ? '' : e.innerText"));
    text.as_str().unwrap_or_default().to_owned()
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn lost_connection_resumes_where_it_ended() {
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let mut demo = demo(folder.path());
    let proxy = Proxy::start(address(&demo));
    let browser = Browser::start(Window::default());
    let page = Page::open(&browser, &through(proxy.address(), &demo));
    let begun = page.wait_until("live events arrive", |state| state.live && state.events > 1000);
    assert_eq!((begun.connection.as_str(), text(page, "badge").as_str()), ("live", "Live"));
    let mut random = Rng::with_seed(5);
    for round in 0..6 {
        // A page that shows an earlier moment also resumes, and stays at its moment.
        let earlier = (round % 2 == 1).then(|| page.seek(begun.events / 2));
        let before = page.state();
        for _ in 0..proxy.connections() {
            proxy.inject(random.u64(..16), [Fault::Cut, Fault::Reset][round % 2]);
        }
        (0..16).for_each(|choice| proxy.inject(choice, Fault::Cut));
        let more = before.events + 2000;
        let after = page.wait_until("events arrive again", |state| state.live && state.events > more);
        assert_eq!(after.first_event, begun.first_event, "the page keeps what it had");
        assert_eq!((after.lost_events, after.missed_events), (0, 0));
        match earlier {
            Some(shown) => assert_eq!((after.event, after.allocated_bytes), (shown.event, shown.allocated_bytes)),
            None => assert_eq!(after.view["following"], json!(true)),
        }
        page.run("document.getElementById('live').click()");
    }
    assert!(demo.interrupt().success());
    let ended = page.wait_until("the page has seen the end", |state| state.connection == "ended");
    check_against(page, &ended, &folder.path().join("live.vram"));
    assert_eq!(text(page, "badge"), "Ended");
}

/// Asserts that the page and the file agree from the page's first event on.
fn check_against(page: Page<'_>, state: &PageState, file: &Path) {
    let mut recording = Recording::new();
    recording.push(&fs::read(file).expect("the program has written its recording")).expect("the recording is valid");
    assert_eq!(state.events, recording.end_event());
    let (mut random, mut replay) = (Rng::with_seed(1), Replay::new());
    for _ in 0..50 {
        let event = random.u64(state.first_event..state.events + 1);
        let expected = digest(replay.seek(&recording, event).expect("the moment is in the recording"));
        assert_eq!(page.seek(event).event, event);
        assert_eq!(page.digest(), expected, "at event {event}");
    }
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn another_program_at_the_same_address_is_not_mixed_in() {
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let mut demo = demo(folder.path());
    let browser = Browser::start(Window::default());
    let page = Page::open(&browser, demo.url());
    page.wait_until("live events arrive", |state| state.live && state.events > 0);
    let listen = address(&demo).to_string();
    demo.interrupt();
    let ended = page.wait_until("the page has seen the end", |state| !state.live);
    let _other = Program::start_at(["demo", "--device", "host"], &listen);
    page.wait_until("the page follows the new program", |state| {
        state.live && state.events > 0 && state.events < ended.events + 100_000
    });
    assert!(text(page, "message").contains("This page now follows it"), "{}", text(page, "message"));
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn client_with_the_token_may_send_commands() {
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let demo = demo(folder.path());
    let browser = Browser::start(Window::default());
    let page = Page::open(&browser, demo.url());
    page.wait_until("live events arrive", |state| state.live && state.events > 0);
    assert_eq!(page.run("return location.search"), json!(""), "the token is removed from the URL");
    page.wait("the program offers commands", "return !document.getElementById('program').hidden");
    page.run("document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'm', bubbles: true }))");
    assert_eq!(page.run("return document.activeElement.id"), json!("mark-name"));
    assert_eq!(text(page, "controls-unavailable-reason"), "");
    page.run("document.getElementById('mark-name').value = '<b>here</b>'; document.getElementById('mark-now').click()");
    page.wait(
        "the mark is recorded",
        "const said = document.getElementById('control-result');
         return said.dataset.kind === 'done' && said.innerText.length > 1",
    );
    // One command at a time: the buttons are enabled again with the next frame.
    page.wait("the next command can be sent", "return !document.getElementById('record-now').disabled");
    page.run("document.getElementById('record-now').click()");
    page.wait("the file is written", "return document.getElementById('control-result').innerText.includes('.vram')");
    let said = text(page, "control-result");
    let written = said
        .split_whitespace()
        .find(|word| word.contains(".vram"))
        .unwrap_or_default()
        .trim_matches(['"', '.', ',', '`']);
    let bytes = fs::read(written).unwrap_or_else(|error| panic!("{said}: {error}"));
    let mut recording = Recording::new();
    recording.push(&bytes).expect("the recording is valid");
    let names: Vec<_> = recording.annotations().iter().map(|mark| recording.definitions().string(mark.name)).collect();
    assert!(names.contains(&"<b>here</b>"), "none of the recording's {} marks is the new one", names.len());
    fs::remove_file(written).expect("the file can be removed");
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn client_without_the_token_is_told_that_commands_need_it() {
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let demo = demo(folder.path());
    let browser = Browser::start(Window::default());
    let page = Page::open(&browser, &format!("http://{}/", address(&demo)));
    page.wait_until("live events arrive", |state| state.live && state.events > 0);
    page.wait("the program offers commands", "return !document.getElementById('program').hidden");
    page.run("document.getElementById('program').click()");
    assert!(text(page, "controls-unavailable-reason").contains("token"), "the reason is shown");
    let disabled =
        page.run("return ['record-now', 'mark-name', 'mark-now'].map(id => document.getElementById(id).disabled)");
    assert_eq!(disabled, Value::from(vec![true; 3]));
}

/// The path under which a proxy, such as a notebook server's, serves the page.
const PREFIX: &str = "/user/me/proxy/7777";

/// Starts a proxy that serves `target` below [`PREFIX`] only. Returns its address and the requested
/// paths outside of the prefix.
fn below_a_prefix(target: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("the listener is bound");
    let outside = Arc::<Mutex<Vec<String>>>::default();
    let for_thread = Arc::clone(&outside);
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let outside = Arc::clone(&for_thread);
            // An error ends only its own connection.
            thread::spawn(move || drop(forward(client, target, &outside)));
        }
    });
    (address, outside)
}

fn forward(mut client: TcpStream, target: SocketAddr, outside: &Mutex<Vec<String>>) -> io::Result<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && client.read(&mut byte)? > 0 {
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head);
    let path = head.split(' ').nth(1).unwrap_or_default();
    let Some(below) = path.strip_prefix(PREFIX).filter(|below| below.starts_with('/')) else {
        outside.lock().expect("no thread panics with the lock").push(path.to_owned());
        return client.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    };
    let mut head = head.replacen(path, below, 1);
    if !head.to_ascii_lowercase().contains("\r\nupgrade:") {
        // One request a connection, so that only one path needs to be changed.
        head = head.replace("keep-alive", "close");
    }
    let mut server = TcpStream::connect(target)?;
    server.write_all(head.as_bytes())?;
    let (mut from, mut to) = (server.try_clone()?, client.try_clone()?);
    let back = thread::spawn(move || {
        let passed = io::copy(&mut from, &mut to);
        to.shutdown(Shutdown::Both).and(passed)
    });
    io::copy(&mut client, &mut server)?;
    server.shutdown(Shutdown::Both)?;
    back.join().map_or(Ok(()), |passed| passed.map(drop))
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn page_works_behind_a_path_prefix() {
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let demo = demo(folder.path());
    let (proxy, outside) = below_a_prefix(address(&demo));
    let query = demo.url().split_once('?').map_or("", |(_, query)| query);
    let browser = Browser::start(Window::default());
    let page = Page::open(&browser, &format!("http://{proxy}{PREFIX}/?{query}"));
    page.wait_until("live events arrive", |state| state.live && state.events > 100);
    assert_eq!(page.run("return location.pathname + location.search"), json!(format!("{PREFIX}/")));
    page.wait("the program offers commands", "return !document.getElementById('program').hidden");
    assert_eq!(text(page, "controls-unavailable-reason"), "", "the token was forwarded");
    page.run("document.getElementById('mark-name').value = 'here'; document.getElementById('mark-now').click()");
    page.wait("the mark is recorded", "return document.getElementById('control-result').dataset.kind === 'done'");
    let saved = page.run(
        "const saved = new Promise(done => document.addEventListener('click', event => {
             if (event.target.download) { event.preventDefault(); done(event.target.href); }
         }));
         document.getElementById('save').click();
         const load = url => fetch(url).then(answer => answer.arrayBuffer());
         return saved.then(url => load(url).then(bytes => [url, bytes.byteLength]))",
    );
    assert!(saved[0].as_str().is_some_and(|url| url.ends_with(&format!("{PREFIX}/trace.vram"))), "{saved}");
    assert!(saved[1].as_u64().is_some_and(|bytes| bytes > 1000), "{saved}");
    let outside = outside.lock().expect("no thread panics with the lock");
    // Browsers request this from every server.
    let ours: Vec<_> = outside.iter().filter(|path| *path != "/favicon.ico").collect();
    assert!(ours.is_empty(), "requests outside of the prefix: {ours:?}");
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn processes_that_join_a_hub_appear_on_the_page() {
    let hub = Program::start(["serve"]);
    let push = hub.url().replacen("http", "ws", 1);
    let rank = |rank: &str| {
        let variables = [("VRAMSCOPE_PUSH", push.as_str()), ("RANK", rank), ("LOCAL_RANK", rank)];
        Program::start_in(["demo", "--device", "host"], "127.0.0.1:0", &variables)
    };
    let browser = Browser::start(Window::default());
    let page = Page::open(&browser, hub.url());
    let names = "return [...document.getElementById('device').options].map(option => option.text)";
    let _zero = rank("0");
    page.wait_until("the first process is shown", |state| state.live && state.events > 100);
    assert_eq!(
        page.run("return document.getElementById('device').hidden"),
        json!(true),
        "a single device needs no chooser"
    );
    let _one = rank("1");
    page.wait("the second process is listed", "return document.getElementById('device').options.length === 2");
    let known = page.run(names);
    assert_eq!(known, json!(["rank 0 · host memory", "rank 1 · host memory"]));
    let check = |device: u16| {
        page.run(&format!(
            "const chooser = document.getElementById('device'); chooser.value = '{device}';
             chooser.dispatchEvent(new Event('change'))"
        ));
        let state = page.wait_until("its memory is shown", |state| state.device == device && state.allocated_bytes > 0);
        assert_eq!((state.lost_events, state.connection.as_str()), (0, "live"));
    };
    check(1);
    check(0);
}
