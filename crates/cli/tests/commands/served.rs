//! Who may do what with a program that serves, and where it listens.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use tempfile::TempDir;
use vramscope_trace::{Decoder, Event, EventKind, Item, Recording};

use crate::program::{Server, fixture, interrupt, vramscope, wait, wait_until};

/// The names of a recording's marks.
fn marks(bytes: &[u8]) -> Vec<String> {
    let (mut recording, mut decoder) = (Recording::new(), Decoder::new());
    recording.push(bytes).expect("a recording");
    decoder.push(bytes);
    let items = std::iter::from_fn(|| decoder.next_item().expect("a recording"));
    let names = items.filter_map(|item| match item {
        Item::Event(Event { kind: EventKind::Mark { name, .. }, .. }) => Some(name),
        _ => None,
    });
    names.map(|name| recording.definitions().string(name).to_owned()).collect()
}

#[test]
fn the_page_can_record_mark_and_empty_the_cache() {
    let folder = TempDir::new().expect("a folder");
    let mut command = vramscope(["demo", "--listen", "127.0.0.1:0"]);
    command.current_dir(folder.path());
    let mut demo = Server::of(command);
    let token = demo.token().expect("commands take a token").to_owned();
    let (head, body) = demo.get("/commands");
    assert!(head.contains(" 200 "), "{head}");
    assert_eq!(body, b"{\"allowed\":false,\"commands\":[\"record\",\"mark\",\"empty-cache\"]}\n");
    assert!(demo.ask("POST", "/commands/record", "").0.contains(" 401 "));
    let command = |name: &str, body: &str| {
        let (head, said) = demo.ask("POST", &format!("/commands/{name}?token={token}"), body);
        let said = String::from_utf8(said).expect("text");
        assert!(head.contains(" 200 ") && said.starts_with("{\"done\":\""), "{head} {said}");
        said
    };
    command("mark", "{\"name\": \"<b>here</b>\"}");
    assert!(command("empty-cache", "").contains("iB went back to the device"));
    let said = command("record", "");
    let files: Vec<_> = fs::read_dir(folder.path()).expect("the folder").flatten().map(|file| file.path()).collect();
    let [file] = files.as_slice() else { panic!("{files:?}") };
    let name = file.file_name().and_then(|name| name.to_str()).expect("a name");
    assert!(said.contains(name) && name.starts_with("vramscope-20") && name.ends_with("Z.vram"), "{said}");
    let marks = marks(&fs::read(file).expect("the recording"));
    assert!(marks.contains(&"<b>here</b>".to_owned()), "{marks:?}");
    let (status, said) = demo.interrupt();
    assert!(status.success() && !said.contains(&token), "{said}");
}

#[test]
fn a_token_that_was_given_is_wanted_for_everything() {
    let mut command = vramscope(["demo", "--listen", "127.0.0.1:0"]);
    command.env("VRAMSCOPE_TOKEN", "top/secret");
    let mut demo = Server::of(command);
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
    let metrics = || String::from_utf8(demo.get("/metrics?token=top%2Fsecret").1).expect("text");
    let wanted = ["vramscope_recording{program=\"vramscope demo\"} 1", "vramscope_memory_reserved_bytes{device=\"0\""];
    // The recorder says what there is once a second.
    wait_until("the metrics say what is recorded", || wanted.iter().all(|line| metrics().contains(line)));
    assert!(metrics().contains("\nvramscope_viewers 0\n"), "{}", metrics());
    let (status, said) = demo.interrupt();
    assert!(status.success() && !said.contains("secret"), "{said}");
}

#[test]
fn a_token_is_said_once() {
    let folder = TempDir::new().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    // All that such a command says, once it has said `last`.
    let said = |mut command: Command, last: &str| {
        let out = fs::File::create(path("said")).expect("a file");
        command.args(["--listen", "127.0.0.1:0", "--no-open", "--token", "secret"]);
        command.stderr(out.try_clone().expect("the same")).stdout(out);
        let mut child = command.spawn().expect("the binary starts");
        let said = || fs::read_to_string(path("said")).expect("text");
        wait_until("all is said", || said().contains(last));
        interrupt(&child);
        assert!(wait(&mut child).success());
        assert_eq!(said().matches("secret").count(), 1, "{}", said());
        said()
    };
    let files = ["first.pickle.zst", "second\nlistening: http:\u{1b}[2J.pickle.zst"].map(path);
    for file in &files {
        fs::copy(fixture("tiny_inference.pickle.zst"), file).expect("a copy");
    }
    let mut view = vramscope(["view"]);
    view.args(&files);
    let all = said(view, "files/1/");
    let first: Vec<_> = all.lines().map(|line| line.split(' ').next().unwrap_or_default()).collect();
    assert_eq!(first, ["listening:", "first.vram:", "second\\nlistening:"], "{all}");
    assert!(all.contains("/?trace=files/0/first.vram\n"), "{all}");
    said(vramscope(["demo", "--steps=1"]), "1 step is done; http://127.0.0.1:");
    said(vramscope(["serve"]), "in their environment are shown here");
}

#[test]
fn the_next_port_is_said_where_one_is_taken() {
    let mut first = Server::start(["demo"]);
    let taken: SocketAddr = first.address().parse().expect("an address");
    let mut second = Server::of(vramscope(["demo", "--listen", &taken.to_string()]));
    let next: SocketAddr = second.address().parse().expect("an address");
    assert!(next.ip() == taken.ip() && next.port() > taken.port(), "{next} after {taken}");
    let (_, said) = second.interrupt();
    let expected = format!("port {} is taken, so this is {}", taken.port(), next.port());
    assert!(said.contains(&expected), "{said}");
    assert!(first.interrupt().0.success());
}

#[test]
fn what_other_machines_reach_has_a_token_and_says_so() {
    let mut demo = Server::of(vramscope(["demo", "--listen", "0.0.0.0:0"]));
    assert!(demo.token().is_some_and(|token| token.len() == 22), "{}", demo.url);
    assert!(!demo.address().starts_with("0.0.0.0"), "{}", demo.url);
    let (_, said) = demo.interrupt();
    assert!(said.contains("other machines can reach this"), "{said}");
}

#[test]
fn what_a_proxy_lets_in_is_said_where_no_token_is_wanted() {
    let check = |token: &str, expected: usize| {
        let mut command = vramscope(["demo", "--allow-host", "hub.example.org"]);
        command.env("VRAMSCOPE_TOKEN", token);
        let (_, said) = Server::start_command(command).interrupt();
        assert_eq!(said.matches("whoever comes through a proxy may watch").count(), expected, "{said}");
    };
    check("", 1);
    check("secret", 0);
}
