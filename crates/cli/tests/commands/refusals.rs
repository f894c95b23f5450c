//! What cannot be done is said in one line, with exit status 2, and leaves nothing behind.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::program::{fixture, run};

#[track_caller]
fn check(arguments: &[&str], said: &[&str]) {
    check_os(&arguments.iter().map(OsString::from).collect::<Vec<_>>(), said);
}

#[track_caller]
fn check_os(arguments: &[OsString], said: &[&str]) {
    let finished = run(arguments);
    assert_eq!(finished.code, Some(2), "{arguments:?}: {finished:?}");
    assert_eq!(finished.stdout, "", "{arguments:?}");
    assert_eq!(finished.stderr.lines().count(), 1, "{arguments:?}: {}", finished.stderr);
    for part in said {
        assert!(finished.stderr.contains(part), "{arguments:?}: no {part:?} in {}", finished.stderr);
    }
}

#[test]
fn bad_usage() {
    check(&[], &["which command", "vramscope --help"]);
    check(&["nonsense"], &["nonsense"]);
    check(&["info"], &["FILE"]);
    check(&["info", "a", "b"], &["b"]);
    check(&["import", "a"], &["--output"]);
    check(&["view"], &["FILE"]);
    check(&["diff", "a.vram"], &["<B>"]);
    check(&["report", "a.vram"], &["--output"]);
    check(&["report", "a.vram", "-o", "a.gif"], &["a.gif", ".svg or .png"]);
    check(&["demo", "--steps", "many"], &["--steps", "many"]);
    check(&["demo", "--device", "abacus"], &["abacus"]);
    check(&["demo", "--listen", "nonsense"], &["nonsense"]);
    check(&["demo", "--no-open", "--listen", "192.0.2.1:0"], &["cannot listen on 192.0.2.1:0"]);
    check(&["demo", "--no-open", "--listen", "127.0.0.1:0", "--token", "a secret"], &["--token", "letters, digits"]);
    check(&["demo", "--no-open", "--listen", "127.0.0.1:0", "--allow-host", "http://a"], &["--allow-host", "http://a"]);
    check(&["demo", "--tls-cert", "a.pem"], &["--tls-key"]);
    check(&["demo", "--no-open", "--tls-cert", "no.pem", "--tls-key", "no.key"], &["no.pem: No such file"]);
    check(&["record", "http://127.0.0.1:1/", "-o", "x.vram", "--for", "never"], &["never"]);
}

#[test]
fn what_is_not_built_yet_is_not_pretended() {
    check(&["demo", "--device", "cuda", "--no-open"], &["cuda"]);
    check(&["diagnose", "x"], &["diagnose"]);
    let help = run(["--help"]);
    assert_eq!(help.code, Some(0));
    let commands =
        ["demo", "view", "record", "serve", "import", "info", "verify", "simulate", "export", "report", "diff"];
    for command in commands {
        assert!(help.stdout.contains(&format!("  {command} ")), "{}", help.stdout);
    }
}

#[test]
fn nobody_to_follow() {
    let folder = TempDir::new().expect("a folder");
    let out = folder.path().join("out.vram");
    let record = |url: &str| {
        ["record", url, "-o"].map(OsString::from).into_iter().chain([out.clone().into()]).collect::<Vec<_>>()
    };
    // Port 1 of this machine: nobody listens there.
    check_os(&record("http://127.0.0.1:1/"), &["http://127.0.0.1:1/", "refused"]);
    check_os(&record("https://127.0.0.1:1/"), &["https://127.0.0.1:1/", "refused"]);
    check_os(&record("not an address"), &["not an address"]);
    assert!(!out.exists());
}

/// Inputs that are none, and what is said of each.
fn bad_inputs() -> Vec<(&'static str, Vec<u8>, &'static [&'static str])> {
    let snapshot = fs::read(fixture("mlp_train.pickle.zst")).expect("a fixture");
    let half = snapshot[..snapshot.len() / 2].to_vec();
    let mut changed = snapshot;
    let middle = changed.len() / 2;
    changed[middle..middle + 64].fill(0x55);
    // Protocol 2, then lists in lists, and no end.
    let deep = [&b"\x80\x02"[..], &[b']'; 200_000]].concat();
    let class = b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.".to_vec();
    let deep_json = "[".repeat(200_000).into_bytes();
    vec![
        ("empty.vram", Vec::new(), &["empty.vram", "empty"]),
        ("notes.txt", b"this is no recording".to_vec(), &["notes.txt", "byte 0"]),
        ("a.pickle", b"\x80\x02".to_vec(), &["a.pickle", "byte 2"]),
        ("half.pickle.zst", half, &["half.pickle.zst", "byte "]),
        ("changed.pickle.zst", changed, &["changed.pickle.zst", "byte "]),
        ("deep.pickle", deep, &["deep.pickle", "byte "]),
        ("class.pickle", class, &["class.pickle", "byte "]),
        ("deep.json", deep_json, &["deep.json", "byte "]),
        ("other.json", b"{\"a\": 1}".to_vec(), &["other.json"]),
        ("damaged.gz", b"\x1f\x8b\x08\x00nonsense".to_vec(), &["damaged.gz", "byte "]),
        ("binary.vram", b"\x89VRAM\r\n\x1a\x01\x00\x00\x00\xff\xff\xff\xff".repeat(20), &["binary.vram", "byte 12"]),
    ]
}

#[test]
fn unusable_input() {
    let folder = TempDir::new().expect("a folder");
    let out = folder.path().join("out.vram");
    fs::write(&out, "precious").expect("a small file");
    for (name, bytes, said) in bad_inputs() {
        let input = folder.path().join(name);
        fs::write(&input, bytes).expect("a small file");
        check_os(&["info".into(), input.clone().into()], said);
        check_os(&["info".into(), input.clone().into(), "--json".into()], said);
        check_os(&["import".into(), input.clone().into(), "-o".into(), out.clone().into()], said);
        check_os(&["view".into(), input.clone().into(), "--no-open".into()], said);
        fs::remove_file(input).expect("just written");
    }
    assert_eq!(fs::read_to_string(&out).expect("still there"), "precious", "a failed import changes nothing");
    assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 1, "a failed import leaves nothing");
    let missing = folder.path().join("missing.vram");
    check_os(&["info".into(), missing.into()], &["missing.vram", "No such file"]);
    check_os(&["info".into(), folder.path().into()], &["directory"]);
}

/// Of a file that is something else, nobody waits for the end, and it need not fit in memory.
#[test]
fn a_file_of_something_else_is_not_read() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("weights.pt");
    let mut file = fs::File::create(&path).expect("a file");
    std::io::Write::write_all(&mut file, b"PK\x03\x04").expect("a small one");
    // Nothing but its length is on the disk.
    file.set_len(5 << 30).expect("a long one");
    check_os(&["info".into(), path.into()], &["weights.pt", "at byte 0: neither"]);
}

#[test]
fn an_output_that_cannot_be_written() {
    let input = fixture("tiny_inference.pickle.zst");
    let import = |out: &Path| ["import".into(), input.clone().into(), "-o".into(), out.into()];
    check_os(&import(Path::new("/nowhere/at/all.vram")), &["/nowhere/at/all.vram"]);
    check_os(&import(Path::new("/")), &["/"]);
    check_os(&import(Path::new("/dev/null")), &["/dev/null"]);
    // Written over its input, a snapshot would be gone, and with it what a recording does not hold.
    let folder = tempfile::TempDir::new().expect("a folder");
    let copy = folder.path().join("copy.pickle.zst");
    fs::copy(&input, &copy).expect("copied");
    check_os(
        &["import".into(), copy.clone().into(), "-o".into(), copy.clone().into()],
        &["copy.pickle.zst", "is the input"],
    );
    assert_eq!(fs::read(&copy).expect("still there"), fs::read(&input).expect("there"));
}
