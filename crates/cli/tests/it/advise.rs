//! Tests of `advise`.

use serde_json::Value;
use tempfile::TempDir;
use vramscope_trace::{Encoder, RecordingInfo};

use crate::process::{Finished, fixture, run};

/// Returns the path of a snapshot in `tests/data`.
fn snapshot(name: &str) -> String {
    fixture(name).to_str().expect("the path is Unicode").to_owned()
}

/// Parses the output of a command that must have succeeded.
#[track_caller]
fn json(finished: &Finished) -> Value {
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert_eq!(finished.stdout.lines().count(), 1, "stdout has one JSON object: {}", finished.stderr);
    serde_json::from_str(&finished.stdout).expect("the text is JSON")
}

/// Returns the keys of a JSON object.
fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("the value is an object").keys().map(String::as_str).collect()
}

/// Returns the number in a field of a JSON object.
fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{key} in {value}"))
}

/// Returns the figures that `simulate` predicts for settings.
fn simulated(path: &str, conf: &str, options: &[&str]) -> Value {
    let arguments = ["simulate", path, "--alloc-conf", conf, "--json"];
    json(&run(arguments.iter().chain(options)))["devices"][0]["simulated"].clone()
}

#[test]
fn predictions_equal_those_of_simulate() {
    let path = snapshot("frag_a_expandable.pickle.zst");
    let limit = ["--limit-bytes", "1GiB"];
    let finished = run(["advise", &path, "--json"].iter().chain(&limit));
    let report = json(&finished);
    assert_eq!(keys(&report), ["devices"]);
    let device = &report["devices"][0];
    let expected = [
        "alloc_conf",
        "best",
        "capacity_bytes",
        "capacity_is_estimate",
        "device",
        "floor_bytes",
        "packed_bytes",
        "recorded",
        "simpler",
        "smallest",
        "smallest_recorded",
        "stops_at_gap",
        "tried",
        "unverified_from",
        "worthwhile",
    ];
    assert_eq!(keys(device), expected);
    let figures =
        ["device_allocations", "ooms", "peak_allocated_bytes", "peak_fragmentation", "peak_reserved_bytes", "retries"];
    assert_eq!(keys(&device["recorded"]), figures);
    assert_eq!(device["alloc_conf"], "expandable_segments:True");
    assert_eq!((number(device, "capacity_bytes"), &device["capacity_is_estimate"]), (1 << 30, &false.into()));

    let tried = device["tried"].as_array().expect("a list");
    assert!((8..=20).contains(&tried.len()), "{} settings", tried.len());
    let rank =
        |trial: &Value| (number(&trial["predicted"], "ooms"), number(&trial["predicted"], "peak_reserved_bytes"));
    assert!(tried.windows(2).all(|pair| rank(&pair[0]) <= rank(&pair[1])), "{tried:?}");
    assert_eq!(device["best"]["alloc_conf"], tried[0]["alloc_conf"]);
    assert_eq!(device["best"]["predicted"], tried[0]["predicted"]);
    for trial in tried {
        assert_eq!(keys(trial), ["alloc_conf", "predicted"]);
        let conf = trial["alloc_conf"].as_str().expect("text");
        assert_eq!(trial["predicted"], simulated(&path, conf, &limit), "{conf}");
    }

    // With 2 MiB less than the smallest capacity, a request fails.
    let smallest = &device["smallest"];
    let (bytes, conf) = (number(smallest, "capacity_bytes"), smallest["alloc_conf"].as_str().expect("text"));
    assert_eq!(simulated(&path, conf, &["--capacity", &bytes.to_string()]), smallest["predicted"]);
    let less = (bytes - (2 << 20)).to_string();
    assert!(number(&simulated(&path, conf, &["--capacity", &less]), "ooms") > 0);
    assert_eq!(smallest["card"], "RTX 3060 12GB");
    assert!(number(device, "floor_bytes") <= bytes);

    let again = run(["advise", &path, "--json"].iter().chain(&limit));
    assert_eq!(again.stdout, finished.stdout, "the answer does not depend on the order of runs");
}

#[test]
fn capacity_from_failed_requests_is_called_an_estimate() {
    let path = snapshot("frag_a_expandable.pickle.zst");
    let report = json(&run(["advise", &path, "--json"]));
    assert_eq!(report["devices"][0]["capacity_is_estimate"], true);
    let text = run(["advise", &path]).stdout;
    assert!(text.contains(" at most, by the requests that failed\n"), "{text}");
}

#[test]
fn every_device_gets_an_answer() {
    let report = json(&run(["advise", &snapshot("two_devices.pickle.gz"), "--json"]));
    let devices = report["devices"].as_array().expect("a list");
    assert_eq!(devices.iter().map(|device| number(device, "device")).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn text_has_settings_to_paste_and_the_least_memory() {
    let path = fixture("../../examples/pytorch/recordings/variable_lengths-default.vram");
    let finished = run(["advise".as_ref(), path.as_os_str()]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let paste = finished.stdout.lines().find(|line| line.starts_with("PYTORCH_CUDA_ALLOC_CONF="));
    assert!(paste.is_some_and(|line| line.contains("expandable_segments:True")), "{}", finished.stdout);
    for part in ["saves", "of the reserved peak", "live requests", "(recorded)"] {
        assert!(finished.stdout.contains(part), "no {part:?} in {}", finished.stdout);
    }
    let lines = finished.stderr.lines().collect::<Vec<_>>();
    assert!(lines.len() == 1 && lines[0].contains("runs of"), "{lines:?}");

    let path = fixture("../../examples/pytorch/recordings/variable_lengths-expandable_segments.vram");
    let report = json(&run(["advise".as_ref(), path.as_os_str(), "--json".as_ref()]));
    let device = &report["devices"][0];
    assert_eq!(device["alloc_conf"], "expandable_segments:True");
    let text = run(["advise".as_ref(), path.as_os_str()]).stdout;
    assert_eq!(text.contains("The recorded settings are the best"), device["worthwhile"] == false, "{text}");
}

#[test]
fn recordings_without_requests_are_errors() {
    let folder = TempDir::new().expect("a temporary folder");
    let empty = folder.path().join("empty.vram");
    let mut encoder = Encoder::new(&RecordingInfo::default());
    encoder.flush();
    let bytes: Vec<u8> = encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect();
    std::fs::write(&empty, bytes).expect("the file is writable");
    for (path, reason) in [
        (empty.to_str().expect("the path is Unicode").to_owned(), "no requests"),
        (snapshot("state_only.pickle.gz"), "no requests"),
        ("nowhere.vram".to_owned(), "nowhere.vram"),
        (snapshot("README.md"), "README.md"),
    ] {
        let finished = run(["advise", &path, "--json"]);
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), ""), "{path}: {}", finished.stderr);
        let last = finished.stderr.lines().last().unwrap_or_default();
        assert!(last.contains(reason), "{}", finished.stderr);
    }
}

/// The command waits for its input, a pipe that stays empty.
#[cfg(unix)]
#[test]
fn ctrl_c_ends_the_command() {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    let mut child = crate::process::vramscope(["advise", "/dev/stdin"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    // Waiting for the command would close its input, and the end of the input could come first.
    let mut input = child.stdin.take();
    // The start of a JSON snapshot, and more than a pipe holds: the command reads by then, and
    // handles the signal.
    let start = format!("{{{}", " ".repeat(1 << 17));
    input.as_mut().expect("it is piped").write_all(start.as_bytes()).expect("the command reads");
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(killed.expect("kill runs").success());
    assert_eq!(child.wait().expect("the command ends").code(), Some(130));
    drop(input);
}
