//! `report` and `export --to html`.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::process::{Finished, fixture, run};

fn snapshot(name: &str) -> String {
    fixture(&format!("{name}.pickle.zst")).to_str().expect("the path is Unicode").to_owned()
}

fn report(name: &str, output: &Path, rest: &[&str]) -> Finished {
    let (snapshot, output) = (snapshot(name), output.to_str().expect("the path is Unicode").to_owned());
    let mut arguments = vec!["report", &snapshot, "-o", &output];
    arguments.extend(rest);
    run(arguments)
}

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
        assert!(text.contains(">GPU 0</text>") && text.contains("train.py"), "{name}");
        assert!(report_bytes(name, &png, &[]).starts_with(b"\x89PNG\r\n\x1a\n"), "{name}");
    }
    assert!(
        report_bytes("graphs", &svg, &[]) == report_bytes("graphs", &svg, &["--device", "0"]),
        "the recording has one device"
    );
    assert_eq!(fs::read_dir(folder.path()).expect("the folder can be read").count(), 2, "no other file is left");
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

/// Unit tests cover the structure of the page, `tests/tests/browser.rs` runs it.
#[test]
fn html_export_embeds_the_recording() {
    let folder = TempDir::new().expect("a temporary folder");
    let output = folder.path().join("out.html");
    let snapshot = snapshot("mlp_train");
    let info = |path: &str| {
        let finished = run(["info", path, "--json"]);
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        let report: Value = serde_json::from_str(&finished.stdout).expect("stdout is JSON");
        report["devices"].clone()
    };
    for redact in [&[][..], &["--redact"]] {
        let mut arguments =
            vec!["export", &snapshot, "--to", "html", "-o", output.to_str().expect("the output is text")];
        arguments.extend(redact);
        let finished = run(arguments);
        if finished.code == Some(2) {
            // Only `cargo xtask build` builds the viewer.
            assert!(finished.stderr.contains("cargo xtask build"), "{}", finished.stderr);
            assert!(!output.exists());
            return;
        }
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(0), ""), "{}", finished.stderr);
        let page = fs::read_to_string(&output).expect("the page is text");
        assert!(page.contains("Content-Security-Policy"));
        assert_eq!(page.contains("data-name=\"mlp_train.vram\""), redact.is_empty());
        assert_eq!(page.contains("<title>mlp_train.vram"), redact.is_empty());
        assert_eq!(info(output.to_str().expect("the path is Unicode")), info(&snapshot));
    }
}
