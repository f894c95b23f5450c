//! Writes every message of the workspace to `target/messages.txt`, so that a person can read
//! them in one go: errors, warnings, labels, command-line help, the page's texts, and reasons of
//! assertions.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use vramscope_tests::fixtures::workspace_root;
use vramscope_tests::rules::{MessageKind, messages, page_messages};

/// Scripts of the page; their string literals have the form of Rust's.
const SCRIPTS: [&str; 2] = ["www/main.js", "www/loader.js"];

/// Returns the files that contain messages, in alphabetical order: Rust files below every `src`
/// folder and of the crate `vramscope-page`, its `index.html`, and [`SCRIPTS`]. Test files are
/// left out: their messages are for contributors.
fn source_files(root: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = SCRIPTS.iter().chain(&["www/index.html"]).map(|name| root.join(name)).collect();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            let is_skipped = ["target", "pkg", "tests", "tests.rs"].contains(&name.as_str()) || name.starts_with('.');
            if is_skipped {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if name.ends_with(".rs")
                && path.components().any(|part| ["src", "www"].iter().any(|name| part.as_os_str() == *name))
            {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

#[test]
fn all_messages_are_written_to_one_file() {
    let root = workspace_root();
    let mut sections: BTreeMap<MessageKind, String> = BTreeMap::new();
    let mut count = 0;
    for path in source_files(root) {
        let source = fs::read_to_string(&path).expect("source files are UTF-8");
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        let found = if name.ends_with(".html") { page_messages(&source) } else { messages(&source) };
        for message in found {
            let section = sections.entry(message.kind).or_default();
            let text = message.text.replace('\n', "\n    ");
            let _ = writeln!(section, "{name}:{}\n    {text}", message.line);
            count += 1;
        }
    }
    assert!(count > 300, "only {count} messages found");
    let text: String = sections.iter().map(|(kind, text)| format!("# {kind:?}\n\n{text}\n")).collect();
    let folder = root.join("target");
    fs::create_dir_all(&folder).expect("the target folder can be created");
    fs::write(folder.join("messages.txt"), text).expect("target/messages.txt can be written");
    println!("{count} messages are in target/messages.txt");
}
