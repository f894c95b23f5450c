//! Public reports about GPU memory: the first line of `diagnose`, or one more command, answers.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::process::run;

/// Number of reports that must be answered, of 20.
const MIN_ANSWERED: usize = 18;

/// Returns the path of a file of `tests/reports`.
fn report_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reports").join(name)
}

/// Runs a command on a recording and returns what it prints.
fn output(command: &str, recording: &Path, options: &[&str]) -> String {
    let mut arguments: Vec<&OsStr> = vec![command.as_ref(), recording.as_os_str()];
    arguments.extend(options.iter().map(OsStr::new));
    let finished = run(arguments);
    assert!(matches!(finished.code, Some(0 | 1 | 3)), "{command}: {}", finished.stderr);
    finished.stdout
}

/// The answer that a report must have.
struct Expected<'a>(&'a Value);

impl Expected<'_> {
    /// Returns true if a text has one of the words of a field.
    fn names(&self, field: &str, text: &str) -> bool {
        let words = self.0[field].as_array().expect("a list");
        let text = text.to_lowercase();
        words.iter().any(|word| text.contains(&word.as_str().expect("text").to_lowercase()))
    }

    /// Returns the command that answers: the first line of `diagnose` with cause and place, or else
    /// one more command that names the place and says what the answer says.
    fn answered_by(&self, recording: &Path) -> Option<&'static str> {
        let report: Value = serde_json::from_str(&output("diagnose", recording, &["--json"])).expect("JSON");
        let verdict = &report["verdict"];
        let first = format!("{} {}", verdict["summary"], verdict["site"]);
        if self.names("causes", verdict["cause"].as_str().expect("text")) && self.names("at", &first) {
            return Some("the first line");
        }
        let explains = |text: &str| self.names("at", text) && self.names("says", text);
        let finds = |finding: &Value| {
            self.names("causes", finding["id"].as_str().expect("text"))
                && explains(&format!("{} {}", finding["summary"], finding["site"]))
        };
        // The rows below the heading; the first holds most.
        let largest = |text: &str| text.lines().nth(2).is_some_and(explains);
        match () {
            () if report["findings"].as_array().expect("a list").iter().any(finds) => Some("diagnose"),
            () if explains(&output("autopsy", recording, &[])) => Some("autopsy"),
            () if largest(&output("table", recording, &["--by", "function"])) => Some("table --by function"),
            () => None,
        }
    }
}

#[test]
fn public_reports_are_answered_by_the_first_line_or_one_more_command() {
    let text = std::fs::read_to_string(report_file("expected.json")).expect("the file exists");
    let expected: BTreeMap<String, Value> = serde_json::from_str(&text).expect("it is JSON");
    let mut unanswered = Vec::new();
    for (name, expected) in &expected {
        let recording = report_file("recordings").join(format!("{name}.pickle.gz"));
        match Expected(expected).answered_by(&recording) {
            Some(command) => println!("{name}: {command}"),
            None => unanswered.push(name),
        }
    }
    println!("{} of {} answered; not: {unanswered:?}", expected.len() - unanswered.len(), expected.len());
    assert_eq!(expected.len(), 20);
    assert!(expected.len() - unanswered.len() >= MIN_ANSWERED, "not answered: {unanswered:?}");
}
