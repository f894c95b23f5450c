//! `report`, and `export --to html`.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::program::{Finished, fixture, run};

fn snapshot(name: &str) -> String {
    fixture(&format!("{name}.pickle.zst")).to_str().expect("its path is text").to_owned()
}

fn report(name: &str, output: &Path, rest: &[&str]) -> Finished {
    let (snapshot, output) = (snapshot(name), output.to_str().expect("its path is text").to_owned());
    let mut arguments = vec!["report", &snapshot, "-o", &output];
    arguments.extend(rest);
    run(arguments)
}

#[track_caller]
fn reported(name: &str, output: &Path, rest: &[&str]) -> Vec<u8> {
    let finished = report(name, output, rest);
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(0), ""), "{}", finished.stderr);
    fs::read(output).expect("it was written")
}

#[test]
fn a_report_is_a_picture() {
    let folder = TempDir::new().expect("a folder");
    let (svg, png) = (folder.path().join("out.svg"), folder.path().join("out.png"));
    for name in ["tiny_inference", "frag_a_expandable", "ring", "graphs"] {
        let text = String::from_utf8(reported(name, &svg, &[])).expect("SVG is text");
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"), "{name}");
        assert!(text.contains(&format!(">{name}.pickle.zst</text>")), "{name}");
        assert!(text.contains(">GPU 0</text>") && text.contains("train.py"), "{name}");
        assert!(reported(name, &png, &[]).starts_with(b"\x89PNG\r\n\x1a\n"), "{name}");
    }
    assert!(reported("graphs", &svg, &[]) == reported("graphs", &svg, &["--device", "0"]), "it has one device");
    assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 2, "nothing is left beside them");
}

#[test]
fn a_redacted_report_has_no_names() {
    let folder = TempDir::new().expect("a folder");
    let text = String::from_utf8(reported("mlp_train", &folder.path().join("out.svg"), &["--redact"]));
    let text = text.expect("SVG is text");
    for name in ["mlp_train", "train.py", "_init_group", "adam"] {
        assert!(!text.contains(name), "{name} is in it");
    }
    assert!(text.contains("file_1") && text.contains("function_"));
}

#[test]
fn a_report_on_nothing_is_refused() {
    let folder = TempDir::new().expect("a folder");
    let output = folder.path().join("out.svg");
    let finished = report("mlp_train", &output, &["--device", "3"]);
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), ""));
    assert!(finished.stderr.contains("nothing is recorded of device 3"), "{}", finished.stderr);
    assert!(!output.exists());
}

/// Written over its input, a snapshot would be gone, whatever it is called.
#[test]
fn a_report_does_not_take_the_place_of_its_input() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("snapshot.svg");
    fs::copy(snapshot("mlp_train"), &path).expect("copied");
    let before = fs::read(&path).expect("there");
    let finished = run(["report".as_ref(), path.as_os_str(), "-o".as_ref(), path.as_os_str()]);
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), ""));
    assert!(finished.stderr.contains("is the input"), "{}", finished.stderr);
    assert!(fs::read(&path).expect("still there") == before);
}

#[cfg(unix)]
#[test]
fn a_report_that_is_too_large_for_its_place_leaves_nothing() {
    let folder = TempDir::new().expect("a folder");
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
    let finished = Finished::from(command.arg(&output).output().expect("there is a shell"));
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), ""), "{}", finished.stderr);
    assert!(finished.stderr.contains("out.svg: File too large"), "{}", finished.stderr);
    assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 0, "nothing is left");
}

/// How the page is put together is tested beside it, and that it works in `tests/tests/browser.rs`.
#[test]
fn a_page_holds_the_recording() {
    let folder = TempDir::new().expect("a folder");
    let output = folder.path().join("out.html");
    let snapshot = snapshot("mlp_train");
    for redact in [&[][..], &["--redact"]] {
        let mut arguments = vec!["export", &snapshot, "--to", "html", "-o", output.to_str().expect("text")];
        arguments.extend(redact);
        let finished = run(arguments);
        if finished.code == Some(2) {
            // The viewer is built by `cargo xtask build`, not by cargo.
            assert!(finished.stderr.contains("cargo xtask build"), "{}", finished.stderr);
            assert!(!output.exists());
            return;
        }
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(0), ""), "{}", finished.stderr);
        let page = fs::read_to_string(&output).expect("a page is text");
        assert!(page.contains("Content-Security-Policy"));
        assert_eq!(page.contains("data-name=\"mlp_train.vram\""), redact.is_empty());
        assert_eq!(page.contains("<title>mlp_train.vram"), redact.is_empty());
    }
}
