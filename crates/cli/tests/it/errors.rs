//! Tests that errors are one line with exit code 2 and leave no file behind.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::process::{Finished, fixture, run, vramscope};

/// Runs the command and checks that its error line contains all texts in `expected`.
#[track_caller]
fn check(arguments: &[&str], expected: &[&str]) {
    check_os(&arguments.iter().map(OsString::from).collect::<Vec<_>>(), expected);
}

/// Runs the command as [`check`] does, with arguments that may not be Unicode.
#[track_caller]
fn check_os(arguments: &[OsString], expected: &[&str]) {
    let finished = run(arguments);
    assert_eq!(finished.code, Some(2), "{arguments:?}: {finished:?}");
    assert_eq!(finished.stdout, "", "{arguments:?}");
    assert_eq!(finished.stderr.lines().count(), 1, "{arguments:?}: {}", finished.stderr);
    for part in expected {
        assert!(finished.stderr.contains(part), "{arguments:?}: no {part:?} in {}", finished.stderr);
    }
}

#[test]
fn usage_errors_are_one_line() {
    check(&[], &["no command", "vramscope --help"]);
    check(&["nonsense"], &["nonsense", "(try vramscope --help)"]);
    check(&["--nonsense", "info"], &["--nonsense", "(try vramscope --help)"]);
    check(&["info"], &["FILE", "(try vramscope info --help)"]);
    check(&["diff", "--json", "a", "b", "c"], &["(try vramscope diff --help)"]);
    check(&["info", "a", "b"], &["b"]);
    check(&["import", "a"], &["--output"]);
    check(&["view"], &["FILE"]);
    check(&["diff", "a.vram"], &["<B>"]);
    check(&["report", "a.vram"], &["--output"]);
    check(&["report", "a.vram", "-o", "a.gif"], &["a.gif", ".svg or .png"]);
    check(&["demo", "--steps", "many"], &["--steps", "many", "expected a whole number"]);
    check(&["report", "a.vram", "-o", "a.svg", "--device", "gpu"], &["--device", "expected a whole number"]);
    check(&["demo", "--device", "abacus"], &["abacus"]);
    check(&["demo", "--listen", "nonsense"], &["nonsense", "expected an address such as 127.0.0.1:7791"]);
    let size = "expected bytes or a size such as 5GiB";
    check(&["verify", "a.vram", "--limit-bytes", "many"], &["--limit-bytes", size]);
    check(&["simulate", "a.vram", "--alloc-conf", "", "--capacity", "40X"], &["--capacity", size]);
    check(&["serve", "--keep", "1h"], &["--record"]);
    check(&["demo", "--record", "a.vram.zst", "--no-open", "--listen", "127.0.0.1:0"], &["a.vram.zst", "compress"]);
    check(&["demo", "--no-open", "--listen", "192.0.2.1:0"], &["cannot listen on 192.0.2.1:0"]);
    check(&["demo", "--no-open", "--listen", "127.0.0.1:0", "--token", "a secret"], &["--token", "token"]);
    check(&["demo", "--no-open", "--listen", "127.0.0.1:0", "--allow-host", "http://a"], &["--allow-host", "http://a"]);
    check(&["demo", "--tls-cert", "a.pem"], &["--tls-key"]);
    check(&["demo", "--no-open", "--tls-cert", "no.pem", "--tls-key", "no.key"], &["no.pem", "No such file"]);
    check(&["record", "http://127.0.0.1:1/", "-o", "x.vram", "--for", "never"], &["never"]);
    check(&["query", "SELECT 1"], &["--from", "(try vramscope query --help)"]);
    check(&["query", "--from", "file:///a"], &["SQL"]);
    check(&["query", "SELECT 1", "--from", "file:///a", "--json", "--csv"], &["--json", "--csv"]);
    check(&["query", "SELECT 1", "--from", "file:///a", "--limit", "0"], &["--limit"]);
}

#[cfg(not(feature = "query"))]
#[test]
fn query_in_a_build_without_sql_says_so() {
    check(&["query", "SELECT 1", "--from", "file:///a"], &["built without SQL", "--features query"]);
}

#[test]
fn live_recording_is_not_written_to_standard_output() {
    let folder = TempDir::new().expect("a temporary folder");
    for command in ["demo", "serve"] {
        let mut command = vramscope([command, "--record", "-", "--no-open", "--listen", "127.0.0.1:0"]);
        let finished = Finished::from(command.current_dir(folder.path()).output().expect("the binary runs"));
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), ""), "{}", finished.stderr);
        assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
        for part in ["--record needs a file", "run.vram", "vramscope record URL -o -"] {
            assert!(finished.stderr.contains(part), "no {part:?} in {}", finished.stderr);
        }
    }
    assert_eq!(fs::read_dir(folder.path()).expect("the folder exists").count(), 0, "no file named - is left");
}

#[test]
fn unimplemented_features_are_errors() {
    check(&["demo", "--device", "cuda", "--no-open"], &["cuda"]);
    check(&["query", "x"], &["query"]);
    let help = run(["--help"]);
    assert_eq!(help.code, Some(0));
    let commands =
        ["demo", "view", "record", "serve", "import", "info", "verify", "simulate", "export", "report", "diff"];
    for command in commands {
        assert!(help.stdout.contains(&format!("  {command} ")), "{}", help.stdout);
    }
}

#[test]
fn unreachable_server_is_an_error() {
    let folder = TempDir::new().expect("a temporary folder");
    let out = folder.path().join("out.vram");
    let record = |url: &str| {
        ["record", url, "-o"].map(OsString::from).into_iter().chain([out.clone().into()]).collect::<Vec<_>>()
    };
    // Nothing listens on port 1.
    check_os(&record("http://127.0.0.1:1/"), &["http://127.0.0.1:1/", "refused", "is the program running?"]);
    check_os(&record("https://127.0.0.1:1/"), &["https://127.0.0.1:1/", "refused", "is the program running?"]);
    check_os(&record("not an address"), &["not an address"]);
    assert!(!out.exists());
}

/// Returns unusable inputs, each with parts of its error message.
fn unusable_inputs() -> Vec<(&'static str, Vec<u8>, &'static [&'static str])> {
    let snapshot = fs::read(fixture("mlp_train.pickle.zst")).expect("the test file exists");
    let half = snapshot[..snapshot.len() / 2].to_vec();
    let mut changed = snapshot;
    let middle = changed.len() / 2;
    changed[middle..middle + 64].fill(0x55);
    // Protocol 2, then endlessly nested lists.
    let deep = [&b"\x80\x02"[..], &[b']'; 200_000]].concat();
    let class = b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.".to_vec();
    let deep_json = "[".repeat(200_000).into_bytes();
    vec![
        ("empty.vram", Vec::new(), &["empty.vram", "empty"]),
        ("notes.txt", b"this is no recording".to_vec(), &["notes.txt", "byte 0", "HTML export"]),
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
fn unusable_inputs_are_errors() {
    let folder = TempDir::new().expect("a temporary folder");
    let out = folder.path().join("out.vram");
    fs::write(&out, "precious").expect("the file is writable");
    for (name, bytes, expected) in unusable_inputs() {
        let input = folder.path().join(name);
        fs::write(&input, bytes).expect("the file is writable");
        check_os(&["info".into(), input.clone().into()], expected);
        check_os(&["info".into(), input.clone().into(), "--json".into()], expected);
        check_os(&["import".into(), input.clone().into(), "-o".into(), out.clone().into()], expected);
        check_os(&["view".into(), input.clone().into(), "--no-open".into()], expected);
        fs::remove_file(input).expect("the file exists");
    }
    assert_eq!(
        fs::read_to_string(&out).expect("the file exists"),
        "precious",
        "a failed import does not change the output"
    );
    assert_eq!(
        fs::read_dir(folder.path()).expect("the folder can be read").count(),
        1,
        "a failed import leaves no file"
    );
    let missing = folder.path().join("missing.vram");
    check_os(&["info".into(), missing.into()], &["missing.vram", "No such file"]);
    check_os(&["info".into(), folder.path().into()], &["is a directory; name a file"]);
}

/// An unknown file may be too large for memory.
#[test]
fn unknown_file_is_not_read_to_its_end() {
    let folder = TempDir::new().expect("a temporary folder");
    let path = folder.path().join("weights.pt");
    let mut file = fs::File::create(&path).expect("the file is writable");
    std::io::Write::write_all(&mut file, b"PK\x03\x04").expect("the file is writable");
    // A sparse file takes no disk space.
    file.set_len(5 << 30).expect("the file can be extended");
    check_os(&["info".into(), path.into()], &["weights.pt", "at byte 0: this is a ZIP archive: unpack it first"]);
}

#[test]
fn unwritable_outputs_are_errors() {
    let input = fixture("tiny_inference.pickle.zst");
    let import = |out: &Path| ["import".into(), input.clone().into(), "-o".into(), out.into()];
    check_os(&import(Path::new("/nowhere/at/all.vram")), &["/nowhere/at/all.vram", "there is no folder /nowhere/at"]);
    check_os(&import(Path::new("/")), &["/: is a directory; name a file"]);
    check_os(&import(Path::new("/dev/null")), &["/dev/null: is not a regular file"]);
    // A snapshot contains more than its recording, so it must not be overwritten.
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let copy = folder.path().join("copy.pickle.zst");
    fs::copy(&input, &copy).expect("the file can be copied");
    check_os(
        &["import".into(), copy.clone().into(), "-o".into(), copy.clone().into()],
        &["copy.pickle.zst", "is the input"],
    );
    assert_eq!(fs::read(&copy).expect("the file exists"), fs::read(&input).expect("the file exists"));
}
