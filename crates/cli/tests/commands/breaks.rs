//! `record` over a connection that breaks.

use std::fs;
use std::net::TcpListener;
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use vramscope_trace::{Decoder, Item, Recording};

use crate::program::{Server, vramscope, wait_until};
use crate::proxy::Proxy;

fn events(bytes: &[u8]) -> Vec<Item> {
    let mut decoder = Decoder::new();
    decoder.push(bytes);
    let items = std::iter::from_fn(|| decoder.next_item().expect("a recording"));
    items.filter(|item| matches!(item, Item::Event(_))).collect()
}

#[test]
fn record_goes_on_after_breaks_with_neither_a_gap_nor_a_repetition() {
    let folder = TempDir::new().expect("a folder");
    let (file, copy) = (folder.path().join("demo.vram"), folder.path().join("copy.vram"));
    let arguments = ["demo".as_ref(), "--steps=60".as_ref(), "--record".as_ref(), file.as_os_str()];
    let mut demo = Server::start(arguments);
    let proxy = Proxy::to(&demo.url);
    let mut record = vramscope(["record".as_ref(), proxy.url.as_ref(), "-o".as_ref(), copy.as_os_str()]);
    let record = record.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    for cut in 1..=3 {
        let size = || fs::metadata(&copy).map_or(0, |file| file.len());
        let before = size();
        wait_until("the copy grows again", || size() > before);
        std::thread::sleep(Duration::from_millis(300 * cut));
        proxy.cut();
    }
    let done = record.wait_with_output().expect("it ends when the training does");
    let said = String::from_utf8(done.stderr).expect("text");
    assert!(done.status.success(), "{said}");
    assert!(said.contains("the connection is back, and nothing is missing"), "{said}");
    assert!(said.contains("; the recording has ended"), "{said}");
    assert!(!said.contains("missing, in"), "{said}");
    let (written, copied) = (fs::read(&file).expect("recorded"), fs::read(&copy).expect("recorded"));
    assert!(events(&written) == events(&copied));
    let (status, said) = demo.interrupt();
    assert!(status.success(), "{said}");
}

#[test]
fn record_ends_where_the_program_is_started_again() {
    let folder = TempDir::new().expect("a folder");
    let copy = folder.path().join("copy.vram");
    let first = Server::start(["demo"]);
    let proxy = Proxy::to(&first.url);
    let mut record = vramscope(["record".as_ref(), proxy.url.as_ref(), "-o".as_ref(), copy.as_os_str()]);
    let record = record.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    wait_until("something is recorded", || fs::metadata(&copy).is_ok_and(|file| file.len() > 2000));
    drop(first);
    let mut second = Server::start(["demo"]);
    proxy.point_to(&second.url);
    let done = record.wait_with_output().expect("it ends by itself");
    let said = String::from_utf8(done.stderr).expect("text");
    assert!(done.status.success(), "{said}");
    assert!(said.contains("the program was started again"), "{said}");
    let mut recording = Recording::new();
    recording.push(&fs::read(&copy).expect("recorded")).expect("a recording");
    recording.finish().expect("a whole one");
    assert!(recording.end_event() > 0);
    assert!(second.interrupt().0.success());
}

#[test]
fn a_server_that_wants_a_token_is_recorded_with_it_and_not_without() {
    let folder = TempDir::new().expect("a folder");
    let copy = folder.path().join("copy.vram");
    let mut demo = Server::start(["demo", "--token", "sec+ret/=="]);
    let bare = demo.url.split('?').next().expect("an address").to_owned();
    let record = |url: &str, token: Option<&str>, time: &str| {
        let mut command = vramscope(["record".as_ref(), url.as_ref(), "-o".as_ref(), copy.as_os_str()]);
        command.args(["--for", time]).env_remove("VRAMSCOPE_TOKEN");
        token.map(|token| command.env("VRAMSCOPE_TOKEN", token));
        let done = command.output().expect("the binary runs");
        (done.status.code(), String::from_utf8(done.stderr).expect("text"))
    };
    assert!(demo.url.ends_with("?token=sec%2Bret%2F%3D%3D"), "{}", demo.url);
    for (url, token) in [(bare.as_str(), None), (&bare, Some("not-this-one"))] {
        // Whoever has said no token yet is given five seconds to say it.
        let (code, said) = record(url, token, "30s");
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("the token is wrong, or is missing") && !said.contains("not-this-one"), "{said}");
        assert!(!copy.exists());
    }
    for (url, token) in [(demo.url.as_str(), Some("of-something-else")), (&bare, Some("sec+ret/=="))] {
        let (code, said) = record(url, token, "0.5s");
        assert_eq!(code, Some(0), "{said}");
        assert!(copy.exists() && !said.contains("ret"), "{said}");
        fs::remove_file(&copy).expect("it is there");
    }
    assert!(demo.interrupt().0.success());
}

#[test]
fn what_is_no_recording_is_said_without_the_token() {
    let folder = TempDir::new().expect("a folder");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let server = std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("somebody comes");
        let mut socket = tungstenite::accept(stream).expect("a WebSocket");
        socket.send(tungstenite::Message::binary(vec![0; 100])).expect("somebody listens");
        while socket.read().is_ok() {}
    });
    let url = format!("http://me:hidden@{address}/?token=secret");
    let mut command = vramscope(["record".as_ref(), url.as_ref(), "-o".as_ref(), folder.path().join("a").as_os_str()]);
    let done = command.output().expect("the binary runs");
    let said = String::from_utf8(done.stderr).expect("text");
    server.join().expect("no panic");
    assert!(done.status.code() == Some(2) && said.contains(&format!("http://{address}/: at byte 0: not a")), "{said}");
    assert!(!said.contains("secret") && !said.contains("hidden"), "{said}");
}
