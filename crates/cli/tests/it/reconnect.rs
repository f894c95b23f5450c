//! Tests of `record` over unreliable connections and with tokens.

use std::fs;
use std::net::TcpListener;
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use vramscope_trace::{DecodedItem, Decoder, Recording};

use crate::process::{Server, vramscope, wait_until};
use crate::proxy::Proxy;

/// Returns the events of a recording.
fn events(bytes: &[u8]) -> Vec<DecodedItem> {
    let mut decoder = Decoder::new();
    decoder.push(bytes);
    let items = std::iter::from_fn(|| decoder.next_item().expect("a valid recording"));
    items.filter(|item| matches!(item, DecodedItem::Event(_))).collect()
}

#[test]
fn reconnecting_loses_and_repeats_no_event() {
    let folder = TempDir::new().expect("a temporary folder");
    let (file, copy) = (folder.path().join("demo.vram"), folder.path().join("copy.vram"));
    let arguments = ["demo".as_ref(), "--steps=60".as_ref(), "--record".as_ref(), file.as_os_str()];
    let mut demo = Server::start(arguments);
    let proxy = Proxy::start(&demo.url);
    let mut record = vramscope(["record".as_ref(), proxy.url.as_ref(), "-o".as_ref(), copy.as_os_str()]);
    let record = record.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    for cut in 1..=3 {
        let size = || fs::metadata(&copy).map_or(0, |file| file.len());
        let before = size();
        wait_until("the copy grows", || size() > before);
        std::thread::sleep(Duration::from_millis(300 * cut));
        proxy.cut();
    }
    let done = record.wait_with_output().expect("record ends with the training");
    let stderr = String::from_utf8(done.stderr).expect("the output is text");
    assert!(done.status.success(), "{stderr}");
    assert!(stderr.contains("reconnected; no events are missing"), "{stderr}");
    assert!(stderr.contains("; the recording has ended"), "{stderr}");
    assert!(!stderr.contains("missing, in"), "{stderr}");
    let (written, copied) =
        (fs::read(&file).expect("the file was written"), fs::read(&copy).expect("the file was written"));
    assert!(events(&written) == events(&copied));
    let (status, stderr) = demo.interrupt();
    assert!(status.success(), "{stderr}");
}

#[test]
fn record_ends_when_the_program_restarts() {
    let folder = TempDir::new().expect("a temporary folder");
    let copy = folder.path().join("copy.vram");
    let first = Server::start(["demo"]);
    let proxy = Proxy::start(&first.url);
    let mut record = vramscope(["record".as_ref(), proxy.url.as_ref(), "-o".as_ref(), copy.as_os_str()]);
    let record = record.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    wait_until("the copy grows", || fs::metadata(&copy).is_ok_and(|file| file.len() > 2000));
    drop(first);
    let mut second = Server::start(["demo"]);
    proxy.point_to(&second.url);
    let done = record.wait_with_output().expect("record ends by itself");
    let stderr = String::from_utf8(done.stderr).expect("the output is text");
    assert!(done.status.success(), "{stderr}");
    assert!(stderr.contains("the program was restarted"), "{stderr}");
    let mut recording = Recording::new();
    recording.push(&fs::read(&copy).expect("the file was written")).expect("a valid recording");
    recording.finish().expect("the recording is complete");
    assert!(recording.end_event() > 0);
    assert!(second.interrupt().0.success());
}

#[test]
fn recording_needs_the_right_token() {
    let folder = TempDir::new().expect("a temporary folder");
    let copy = folder.path().join("copy.vram");
    let mut demo = Server::start(["demo", "--token", "sec+ret/=="]);
    let without_token = demo.url.split('?').next().expect("the URL has an address").to_owned();
    let record = |url: &str, token: Option<&str>, time: &str| {
        let mut command = vramscope(["record".as_ref(), url.as_ref(), "-o".as_ref(), copy.as_os_str()]);
        command.args(["--for", time]).env_remove("VRAMSCOPE_TOKEN");
        token.map(|token| command.env("VRAMSCOPE_TOKEN", token));
        let done = command.output().expect("the binary runs");
        (done.status.code(), String::from_utf8(done.stderr).expect("the output is text"))
    };
    assert!(demo.url.ends_with("?token=sec%2Bret%2F%3D%3D"), "{}", demo.url);
    for (url, token) in [(without_token.as_str(), None), (&without_token, Some("wrong-token"))] {
        // The server waits up to five seconds for a token.
        let (code, stderr) = record(url, token, "30s");
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains("the token is wrong or missing") && !stderr.contains("wrong-token"), "{stderr}");
        assert!(!copy.exists());
    }
    for (url, token) in [(demo.url.as_str(), Some("other-server")), (&without_token, Some("sec+ret/=="))] {
        let (code, stderr) = record(url, token, "0.5s");
        assert_eq!(code, Some(0), "{stderr}");
        assert!(copy.exists() && !stderr.contains("ret"), "{stderr}");
        fs::remove_file(&copy).expect("the copy exists");
    }
    assert!(demo.interrupt().0.success());
}

#[test]
fn error_about_invalid_data_hides_the_token() {
    let folder = TempDir::new().expect("a temporary folder");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("the listener is bound");
    let server = std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("record connects");
        let mut socket = tungstenite::accept(stream).expect("record opens a WebSocket");
        socket.send(tungstenite::Message::binary(vec![0; 100])).expect("record reads");
        while socket.read().is_ok() {}
    });
    let url = format!("http://me:hidden@{address}/?token=secret");
    let mut command = vramscope(["record".as_ref(), url.as_ref(), "-o".as_ref(), folder.path().join("a").as_os_str()]);
    let done = command.output().expect("the binary runs");
    let stderr = String::from_utf8(done.stderr).expect("the output is text");
    server.join().expect("the server does not panic");
    assert!(
        done.status.code() == Some(2) && stderr.contains(&format!("http://{address}/: at byte 0: not a")),
        "{stderr}"
    );
    assert!(!stderr.contains("secret") && !stderr.contains("hidden"), "{stderr}");
}
