//! Tests of `pack`.

use std::fs;

use serde_json::Value;
use tempfile::TempDir;

use crate::process::{fixture, run};

/// A table whose buffers fit in 12 bytes.
const TABLE: &str = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n";

#[test]
fn table_is_placed_within_the_capacity() {
    let folder = TempDir::new().expect("a folder can be created");
    let (input, output) = (folder.path().join("in.csv"), folder.path().join("out.csv"));
    fs::write(&input, TABLE).expect("the table can be written");
    let arguments = ["pack".as_ref(), input.as_os_str(), "-o".as_ref(), output.as_os_str()];
    let check = |capacity: &str, code: i32, last_line: &str| {
        let finished = run([&arguments[..], &["--capacity".as_ref(), capacity.as_ref()]].concat());
        assert_eq!(finished.code, Some(code), "{}", finished.stderr);
        assert_eq!(finished.stdout.lines().last().map(str::trim_end), Some(last_line), "{}", finished.stdout);
    };
    let full = "█".repeat(40);
    check("12", 0, &format!("  capacity            {full} 12 B  the placement fits"));
    check("11", 1, &format!("  capacity            {} 11 B  no placement fits", "█".repeat(37)));
    let placed = fs::read_to_string(&output).expect("the placement was written");
    let lines: Vec<&str> = placed.lines().collect();
    assert_eq!(lines[0], "id,lower,upper,size,offset");
    for (line, given) in lines[1..].iter().zip(TABLE.lines().skip(1)) {
        let offset = line.strip_prefix(given).and_then(|rest| rest.strip_prefix(',')).expect("an offset was added");
        assert!(["0", "4", "8"].contains(&offset), "{line}");
    }
    let finished = run([&arguments[..], &["--json".as_ref()]].concat());
    let report: Value = serde_json::from_str(&finished.stdout).expect("the text is JSON");
    let expected = serde_json::json!({
        "buffers": 5, "peak_live_bytes": 12, "height_bytes": 12, "lower_bound_bytes": 12, "optimal": true,
        "capacity_bytes": null,
    });
    assert_eq!(report, expected);
}

#[test]
fn alignments_are_respected() {
    let folder = TempDir::new().expect("a folder can be created");
    let (input, output) = (folder.path().join("in.csv"), folder.path().join("out.csv"));
    fs::write(&input, "id,lower,upper,size,alignment\na,0,2,5,8\nb,0,2,3,4\nc,1,3,9,16\n").expect("it can be written");
    let finished = run(["pack".as_ref(), input.as_os_str(), "-o".as_ref(), output.as_os_str()]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let placed = fs::read_to_string(&output).expect("the placement was written");
    for line in placed.lines().skip(1) {
        let fields: Vec<u64> = line.split(',').skip(3).map(|field| field.parse().expect("a number")).collect();
        assert_eq!(fields[2] % fields[1], 0, "{line}");
    }
}

#[test]
fn recording_is_placed_below_its_reserved_peak() {
    let folder = TempDir::new().expect("a folder can be created");
    let output = folder.path().join("out.csv.gz");
    let input = fixture("mlp_train.pickle.zst");
    let arguments = ["pack".as_ref(), input.as_os_str(), "-o".as_ref(), output.as_os_str(), "--json".as_ref()];
    let finished = run(arguments);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let report: Value = serde_json::from_str(&finished.stdout).expect("the text is JSON");
    assert_eq!((&report["device"], &report["buffers"]), (&0.into(), &435.into()));
    let bytes = |name: &str| report[name].as_u64().expect("a number");
    assert!(bytes("peak_live_bytes") <= bytes("height_bytes"));
    assert!(bytes("height_bytes") < bytes("recorded_reserved_bytes"));
    assert!(fs::metadata(&output).is_ok_and(|file| file.len() > 100));
}

#[test]
fn errors_name_the_remedy() {
    let folder = TempDir::new().expect("a folder can be created");
    let table = folder.path().join("table.csv");
    let check = |text: &str, rest: &[&str], expected: &str| {
        fs::write(&table, text).expect("the table can be written");
        let rest = rest.iter().map(|one| std::ffi::OsStr::new(*one));
        let finished = run(["pack".as_ref(), table.as_os_str()].into_iter().chain(rest));
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), ""), "{finished:?}");
        assert!(finished.stderr.contains(expected), "no {expected:?} in {}", finished.stderr);
        assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    };
    check("id,lower,upper,size\na,0,1,x\n", &[], "line 2");
    check(TABLE, &["--device", "1"], "--device is for recordings");
    check(TABLE, &["-o", "-", "--json"], "name a file");
    check("id,lower,upper,size,alignment\na,0,1,1,1048576\nb,0,1,1,3\n", &[], "choose powers of two");
    let devices = fixture("two_devices.pickle.gz");
    let finished = run(["pack".as_ref(), devices.as_os_str()]);
    assert_eq!(finished.code, Some(2));
    assert!(finished.stderr.contains("choose one with --device"), "{}", finished.stderr);
    // Every other command's error names `pack`, which reads tables.
    fs::write(&table, TABLE).expect("the table can be written");
    let finished = run(["info".as_ref(), table.as_os_str()]);
    assert_eq!(finished.code, Some(2));
    assert!(finished.stderr.contains("vramscope pack"), "{}", finished.stderr);
}
