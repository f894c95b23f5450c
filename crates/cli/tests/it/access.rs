//! Tests of tokens, commands of the page, and listening addresses.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

use tempfile::TempDir;
use vramscope_trace::{DecodedItem, Decoder, Event, EventKind, Recording};

use crate::process::{Server, fixture, interrupt, vramscope, wait, wait_until};

/// Returns the names of a recording's marks.
fn marks(bytes: &[u8]) -> Vec<String> {
    let (mut recording, mut decoder) = (Recording::new(), Decoder::new());
    recording.push(bytes).expect("a valid recording");
    decoder.push(bytes);
    let items = std::iter::from_fn(|| decoder.next_item().expect("a valid recording"));
    let names = items.filter_map(|item| match item {
        DecodedItem::Event(Event { kind: EventKind::Mark { name, .. }, .. }) => Some(name),
        _ => None,
    });
    names.map(|name| recording.definitions().string(name).to_owned()).collect()
}

#[test]
fn page_can_record_mark_and_empty_the_cache() {
    let folder = TempDir::new().expect("a temporary folder");
    let mut command = vramscope(["demo", "--listen", "127.0.0.1:0"]);
    command.current_dir(folder.path());
    let mut demo = Server::start_listening(command);
    let token = demo.token().expect("commands take a token").to_owned();
    let (head, body) = demo.get("/commands");
    assert!(head.contains(" 200 "), "{head}");
    assert_eq!(body, b"{\"allowed\":false,\"commands\":[\"record\",\"mark\",\"empty-cache\"]}\n");
    assert!(demo.request("POST", "/commands/record", "").0.contains(" 401 "));
    let command = |name: &str, body: &str| {
        let (head, body) = demo.request("POST", &format!("/commands/{name}?token={token}"), body);
        let body = String::from_utf8(body).expect("the response is text");
        assert!(head.contains(" 200 ") && body.starts_with("{\"done\":\""), "{head} {body}");
        body
    };
    command("mark", "{\"name\": \"<b>here</b>\"}");
    assert!(command("empty-cache", "").contains("B released to the device"));
    let body = command("record", "");
    let files: Vec<_> =
        fs::read_dir(folder.path()).expect("the folder can be read").flatten().map(|file| file.path()).collect();
    let [file] = files.as_slice() else { panic!("{files:?}") };
    let name = file.file_name().and_then(|name| name.to_str()).expect("the name is Unicode");
    assert!(body.contains(name) && name.starts_with("vramscope-20") && name.ends_with("Z.vram"), "{body}");
    let marks = marks(&fs::read(file).expect("the recording exists"));
    assert!(marks.contains(&"<b>here</b>".to_owned()), "{marks:?}");
    let (status, stderr) = demo.interrupt();
    assert!(status.success() && !stderr.contains(&token), "{stderr}");
}

#[test]
fn given_token_protects_everything() {
    let mut command = vramscope(["demo", "--listen", "127.0.0.1:0"]);
    command.env("VRAMSCOPE_TOKEN", "top/secret");
    let mut demo = Server::start_listening(command);
    assert_eq!(demo.token(), Some("top%2Fsecret"));
    for path in ["/", "/metrics", "/trace.vram", "/index.html", "/?token=wrong"] {
        let (head, body) = demo.get(path);
        assert!(head.contains(" 401 ") && !String::from_utf8_lossy(&body).contains("top"), "{path}: {head}");
    }
    assert!(demo.get("/healthz").0.contains(" 200 "));
    for path in ["/", "/index.html"] {
        let (head, _) = demo.get(&format!("{path}?token=top%2Fsecret"));
        assert!(head.contains(" 303 ") && head.contains("location: ./\r\n"), "{head}");
    }
    let metrics = || String::from_utf8(demo.get("/metrics?token=top%2Fsecret").1).expect("the output is text");
    let expected =
        ["vramscope_recording{program=\"vramscope demo\"} 1", "vramscope_memory_reserved_bytes{device=\"0\""];
    // The recorder updates the metrics once a second.
    wait_until("the metrics show the recording", || expected.iter().all(|line| metrics().contains(line)));
    assert!(metrics().contains("\nvramscope_viewers 0\n"), "{}", metrics());
    let (status, stderr) = demo.interrupt();
    assert!(status.success() && !stderr.contains("secret"), "{stderr}");
}

#[test]
fn token_is_printed_once() {
    let folder = TempDir::new().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name);
    // Returns everything that a command prints, after it has printed `last`.
    let output_of = |mut command: Command, last: &str| {
        let out = fs::File::create(path("output")).expect("the file is writable");
        command.args(["--listen", "127.0.0.1:0", "--no-open", "--token", "secret"]);
        command.stderr(out.try_clone().expect("a file can be cloned")).stdout(out);
        let mut child = command.spawn().expect("the binary starts");
        let printed = || fs::read_to_string(path("output")).expect("the output is text");
        wait_until("the last line is printed", || printed().contains(last));
        interrupt(&child);
        assert!(wait(&mut child).success());
        assert_eq!(printed().matches("secret").count(), 1, "{}", printed());
        printed()
    };
    let files = ["first.pickle.zst", "second\nlistening: http:\u{1b}[2J.pickle.zst"].map(path);
    for file in &files {
        fs::copy(fixture("tiny_inference.pickle.zst"), file).expect("the file is writable");
    }
    let mut view = vramscope(["view"]);
    view.args(&files);
    let all = output_of(view, "files/1/");
    let first: Vec<_> = all.lines().map(|line| line.split(' ').next().unwrap_or_default()).collect();
    assert_eq!(first, ["listening:", "first.vram:", "second\\nlistening:"], "{all}");
    assert!(all.contains("/?trace=files/0/first.vram\n"), "{all}");
    output_of(vramscope(["demo", "--steps=1"]), "trained 1 step; serving http://127.0.0.1:");
    output_of(vramscope(["serve"]), "for each process to show here");
}

#[test]
fn next_free_port_is_used_and_printed() {
    let mut first = Server::start(["demo"]);
    let taken: SocketAddr = first.address().parse().expect("the URL has an address");
    let mut second = Server::start_listening(vramscope(["demo", "--listen", &taken.to_string()]));
    let next: SocketAddr = second.address().parse().expect("the URL has an address");
    assert!(next.ip() == taken.ip() && next.port() > taken.port(), "{next} after {taken}");
    let (_, stderr) = second.interrupt();
    let expected = format!("port {} is in use; listening on port {} instead", taken.port(), next.port());
    assert!(stderr.contains(&expected), "{stderr}");
    assert!(first.interrupt().0.success());
}

#[test]
fn public_address_gets_a_token_and_a_warning() {
    let mut demo = Server::start_listening(vramscope(["demo", "--listen", "0.0.0.0:0"]));
    assert!(demo.token().is_some_and(|token| token.len() == 22), "{}", demo.url);
    assert!(!demo.address().starts_with("0.0.0.0"), "{}", demo.url);
    let (_, stderr) = demo.interrupt();
    assert!(stderr.contains("warning: listening on a public address without TLS"), "{stderr}");
}

#[test]
fn proxy_without_a_token_is_a_warning() {
    let check = |token: &str, expected: usize| {
        let mut command = vramscope(["demo", "--allow-host", "hub.example.org"]);
        command.env("VRAMSCOPE_TOKEN", token);
        let (_, stderr) = Server::start_command(command).interrupt();
        assert_eq!(stderr.matches("warning: everyone who reaches the proxy can watch").count(), expected, "{stderr}");
    };
    check("", 1);
    check("secret", 0);
}

#[test]
fn any_host_name_is_accepted_with_the_token_only() {
    let mut demo = Server::start_command(vramscope(["demo", "--allow-host", "*"]));
    let token = demo.token().expect("a token is generated").to_owned();
    let check = |path: &str, expected: &str| {
        let mut stream = TcpStream::connect(demo.address()).expect("the server listens");
        let head = format!("GET {path} HTTP/1.1\r\nHost: hub.example.org\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("the request fits in the socket's buffer");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("the server answers and closes");
        assert!(response.starts_with(expected), "{path}: {response}");
    };
    check("/metrics", "HTTP/1.1 401 ");
    check(&format!("/metrics?token={token}"), "HTTP/1.1 200 ");
    let (_, stderr) = demo.interrupt();
    assert!(!stderr.contains("warning"), "{stderr}");
}

#[test]
fn view_ends_when_its_stdin_is_closed() {
    let mut view = vramscope(["view", "--no-open", "--listen", "127.0.0.1:0", "--until-stdin-closes"]);
    view.arg(fixture("tiny_inference.pickle.zst"));
    let mut child = view.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the command starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("stdout is piped")).read_line(&mut line).expect("a line is printed");
    assert!(line.starts_with("listening: http://127.0.0.1:"), "{line}");
    assert!(child.try_wait().expect("the child exists").is_none(), "it runs while stdin is open");
    drop(child.stdin.take());
    assert!(child.wait().expect("the child exists").success());
}
