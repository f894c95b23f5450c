//! Tests of `report` and `export --to html`.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::process::{Finished, fixture, run};

/// Returns the path of a snapshot in `tests/data`.
fn snapshot(name: &str) -> String {
    fixture(&format!("{name}.pickle.zst")).to_str().expect("the path is Unicode").to_owned()
}

/// Runs `report` on a snapshot with further arguments `rest`.
fn report(name: &str, output: &Path, rest: &[&str]) -> Finished {
    let (snapshot, output) = (snapshot(name), output.to_str().expect("the path is Unicode").to_owned());
    let mut arguments = vec!["report", &snapshot, "-o", &output];
    arguments.extend(rest);
    run(arguments)
}

/// Runs `report` on a snapshot and returns the picture.
#[track_caller]
fn report_bytes(name: &str, output: &Path, rest: &[&str]) -> Vec<u8> {
    let finished = report(name, output, rest);
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(0), ""), "{}", finished.stderr);
    fs::read(output).expect("the file was written")
}

#[test]
fn report_draws_svg_and_png() {
    let folder = TempDir::new().expect("a temporary folder");
    let (svg, png) = (folder.path().join("out.svg"), folder.path().join("out.png"));
    for name in ["tiny_inference", "frag_a_expandable", "ring", "graphs"] {
        let text = String::from_utf8(report_bytes(name, &svg, &[])).expect("SVG is text");
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"), "{name}");
        assert!(text.contains(&format!(">{name}.pickle.zst</text>")), "{name}");
        assert!(text.contains(">device 0</text>") && text.contains("train.py"), "{name}");
        assert!(report_bytes(name, &png, &[]).starts_with(b"\x89PNG\r\n\x1a\n"), "{name}");
    }
    assert!(
        report_bytes("graphs", &svg, &[]) == report_bytes("graphs", &svg, &["--device", "0"]),
        "the recording has one device"
    );
    assert_eq!(fs::read_dir(folder.path()).expect("the folder can be read").count(), 2, "no other file is left");
}

#[test]
fn report_of_two_recordings_draws_them_side_by_side() {
    let folder = TempDir::new().expect("a temporary folder");
    let (svg, png) = (folder.path().join("out.svg"), folder.path().join("out.png"));
    let other = snapshot("tiny_inference");
    let text = String::from_utf8(report_bytes("mlp_train", &svg, &[&other])).expect("SVG is text");
    for part in ["mlp_train.pickle.zst</text>", "tiny_inference.pickle.zst</text>", ">reserved</text>"] {
        assert!(text.contains(part), "no {part}");
    }
    assert!(text.len() < 30_000, "{} bytes", text.len());
    assert!(report_bytes("mlp_train", &png, &[&other]).starts_with(b"\x89PNG\r\n\x1a\n"));
    let redacted = String::from_utf8(report_bytes("mlp_train", &svg, &[&other, "--redact"])).expect("SVG is text");
    assert!(!redacted.contains("mlp_train") && !redacted.contains("tiny_inference"));
    let finished = report("mlp_train", &svg, &["no-such-file.vram"]);
    assert_eq!(finished.code, Some(2));
    assert!(finished.stderr.contains("no-such-file.vram"), "{}", finished.stderr);
}

#[test]
fn redacted_report_contains_no_name() {
    let folder = TempDir::new().expect("a temporary folder");
    let text = String::from_utf8(report_bytes("mlp_train", &folder.path().join("out.svg"), &["--redact"]));
    let text = text.expect("SVG is text");
    for name in ["mlp_train", "train.py", "_init_group", "adam"] {
        assert!(!text.contains(name), "the report contains {name}");
    }
    assert!(text.contains("file_1") && text.contains("function_"));
}

#[test]
fn report_on_an_unknown_device_is_an_error() {
    let folder = TempDir::new().expect("a temporary folder");
    let output = folder.path().join("out.svg");
    let finished = report("mlp_train", &output, &["--device", "3"]);
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), ""));
    assert!(finished.stderr.contains("device 3"), "{}", finished.stderr);
    assert!(!output.exists());
}

#[test]
fn report_does_not_overwrite_its_input() {
    let folder = TempDir::new().expect("a temporary folder");
    let path = folder.path().join("snapshot.svg");
    fs::copy(snapshot("mlp_train"), &path).expect("the file can be copied");
    let before = fs::read(&path).expect("the file exists");
    let finished = run(["report".as_ref(), path.as_os_str(), "-o".as_ref(), path.as_os_str()]);
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), ""));
    assert!(finished.stderr.contains("is the input"), "{}", finished.stderr);
    assert!(fs::read(&path).expect("the file exists") == before);
}

#[cfg(unix)]
#[test]
fn report_beyond_the_file_size_limit_leaves_no_file() {
    let folder = TempDir::new().expect("a temporary folder");
    let output = folder.path().join("out.svg");
    let mut command = std::process::Command::new("sh");
    command.args([
        "-c",
        "ulimit -f 8; exec \"$@\"",
        "sh",
        env!("CARGO_BIN_EXE_vramscope"),
        "report",
        &snapshot("mlp_train"),
        "-o",
    ]);
    let finished = Finished::from(command.arg(&output).output().expect("the shell runs"));
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), ""), "{}", finished.stderr);
    assert!(finished.stderr.contains("out.svg: File too large"), "{}", finished.stderr);
    assert_eq!(fs::read_dir(folder.path()).expect("the folder can be read").count(), 0, "no file is left");
}

/// Exports a recording as an HTML page. Returns false if the binary was built without the page,
/// which only `cargo xtask build` builds.
#[track_caller]
fn export_html(source: &Path, output: &Path, rest: &[&str]) -> bool {
    let start = ["export".as_ref(), source.as_os_str(), "--to".as_ref(), "html".as_ref(), "-o".as_ref()];
    let finished = run(start.into_iter().chain([output.as_os_str()]).chain(rest.iter().map(OsStr::new)));
    if finished.code == Some(2) && finished.stderr.contains("cargo xtask build") {
        assert!(!output.exists());
        eprintln!("SKIPPED: the binary was built without the page");
        return false;
    }
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(0), ""), "{}", finished.stderr);
    true
}

/// Returns the output of `info` for a file, without the name of the file.
#[track_caller]
fn info(path: &Path, rest: &[&str]) -> String {
    let finished = run(["info".as_ref(), path.as_os_str()].into_iter().chain(rest.iter().map(OsStr::new)));
    assert_eq!((finished.code, finished.stderr.as_str()), (Some(0), ""), "{}", path.display());
    let name = path.to_str().expect("the path is Unicode");
    finished.stdout.replace(name, "")
}

/// Unit tests cover the structure of the page, `tests/tests/it/browser` runs it.
#[test]
fn html_export_embeds_the_recording() {
    let folder = TempDir::new().expect("a temporary folder");
    let output = folder.path().join("out.html");
    let snapshot = fixture("mlp_train.pickle.zst");
    let devices = |path: &Path| {
        let report: Value = serde_json::from_str(&info(path, &["--json"])).expect("the output is JSON");
        report["devices"].clone()
    };
    for redact in [&[][..], &["--redact"]] {
        if !export_html(&snapshot, &output, redact) {
            return;
        }
        let page = fs::read_to_string(&output).expect("the page is text");
        assert!(page.contains("Content-Security-Policy"));
        assert_eq!(page.contains("data-name=\"mlp_train.vram\""), redact.is_empty());
        assert_eq!(page.contains("<title>mlp_train.vram"), redact.is_empty());
        assert_eq!(devices(&output), devices(&snapshot));
    }
}

#[test]
fn html_export_has_the_same_info_as_its_source() {
    let folder = TempDir::new().expect("a temporary folder");
    let (snapshot, source) = (fixture("frag_a_expandable.pickle.zst"), folder.path().join("source.vram"));
    let import = run(["import".as_ref(), snapshot.as_os_str(), "-o".as_ref(), source.as_os_str()]);
    assert_eq!(import.code, Some(0), "{}", import.stderr);
    let expected = [info(&source, &[]), info(&source, &["--json"])];
    assert!(expected[0].contains("peak") && expected[1].contains("\"peak_allocated_bytes\""), "{expected:?}");
    // The content decides, not the name.
    for name in ["run.html", "run.HTML", "run.html.gz", "run.html.zst", "run.vram", "run"] {
        let page = folder.path().join(name);
        if !export_html(&source, &page, &[]) {
            return;
        }
        assert_eq!([info(&page, &[]), info(&page, &["--json"])], expected, "{name}");
    }
    // A page is an input of the export like any recording.
    let (first, second) = (folder.path().join("run.html"), folder.path().join("again.html"));
    assert!(export_html(&first, &second, &[]));
    let text = fs::read_to_string(&second).expect("the page is text");
    assert!(text.contains("data-name=\"run.vram\""), "the name of the recording has no .html");
    assert_eq!(info(&second, &["--json"]), expected[1]);
}
