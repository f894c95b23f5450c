//! Builds executables with cargo, and runs the executables of tests without cargo.
//!
//! `cargo test` waits while another cargo compiles into its target folder, even if it has nothing
//! to compile itself. Running a test's executable directly does not wait.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use serde_json::Value;

use crate::passed::PASSED_BEFORE;
use crate::shell::{self, Result, cargo};

/// An executable of the workspace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Executable {
    /// The package that it belongs to.
    pub(crate) package: String,
    /// The name of its target; `unit` for the unit tests of a library.
    pub(crate) name: String,
    /// The kind of its target, such as `test` or `bin`.
    pub(crate) kind: String,
    /// True if it runs tests.
    pub(crate) is_test: bool,
    pub(crate) path: PathBuf,
    /// The folder of its package.
    pub(crate) folder: PathBuf,
}

/// Number of executables that run at once. More than one, because many tests mostly wait for a
/// network or a process, and because the last test of an executable leaves cores free.
const AT_ONCE: usize = 2;

/// The kind of a library's unit tests.
pub(crate) const LIBRARY: &str = "lib";

/// Runs a cargo build and returns the executables, sorted by package and name.
pub(crate) fn build(arguments: &[&str]) -> Result<Vec<Executable>> {
    let mut command = cargo();
    from_messages(&shell::cargo_messages(command.args(arguments))?)
}

/// Returns the executables that cargo's messages report, sorted by package and name.
pub(crate) fn from_messages(messages: &[Value]) -> Result<Vec<Executable>> {
    let mut found: Vec<_> = messages.iter().filter_map(Executable::from_message).collect();
    found.sort();
    if found.is_empty() { Err("cargo built no executable".to_owned()) } else { Ok(found) }
}

/// Returns the executable of a package's target.
pub(crate) fn find<'a>(all: &'a [Executable], package: &str, kind: &str, name: &str) -> Result<&'a Executable> {
    let is_wanted =
        |one: &&Executable| (one.package.as_str(), one.kind.as_str(), one.name.as_str()) == (package, kind, name);
    all.iter().find(is_wanted).ok_or_else(|| format!("cargo built no {kind} {name} of {package}"))
}

/// The purpose of an executable, by which executables are selected to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Tests.
    Tests,
    /// Benchmarks. Without an argument to measure, they run each case once.
    Benchmarks,
}

/// Runs all executables with a purpose, [`AT_ONCE`] at a time, and prints the output of each when
/// it ends. A failure does not stop the other executables. `run` gets an executable and a function
/// that runs it, and returns false if it did not need to run.
pub(crate) fn run_all(
    all: &[Executable],
    purpose: Purpose,
    run: impl Fn(&Executable, &mut dyn FnMut() -> Result<()>) -> Result<bool> + Sync,
) -> Result<()> {
    let wanted: Vec<&Executable> = all.iter().filter(|executable| executable.purpose() == Some(purpose)).collect();
    let next = AtomicUsize::new(0);
    let (sender, results) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            let (sender, next, wanted, run) = (sender.clone(), &next, &wanted, &run);
            scope.spawn(move || {
                while let Some(executable) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut output = format!("{}: {PASSED_BEFORE}", executable.label());
                    let result = run(executable, &mut || {
                        let result;
                        (output, result) = shell::run_captured(&mut executable.command());
                        result
                    });
                    // The receiver lives until all workers have ended.
                    let _ = sender.send((output, result));
                }
            });
        }
        drop(sender);
        let mut failures = Vec::new();
        for (output, result) in results {
            shell::print(&output);
            failures.extend(result.err());
        }
        if failures.is_empty() { Ok(()) } else { Err(failures.join("; ")) }
    })
}

impl Executable {
    /// Returns the executable that a message of cargo reports.
    fn from_message(message: &Value) -> Option<Self> {
        let path = PathBuf::from(message["executable"].as_str()?);
        // path+file:///the/folder#vramscope-pool@0.1.0
        let package = message["package_id"].as_str()?.rsplit(['#', '/']).next()?.split('@').next()?.to_owned();
        let folder = PathBuf::from(message["manifest_path"].as_str()?).parent()?.to_owned();
        let target = &message["target"];
        let kinds: Vec<&str> = target["kind"].as_array()?.iter().filter_map(Value::as_str).collect();
        let is_library = kinds.iter().any(|kind| ["lib", "rlib", "cdylib"].contains(kind));
        let (kind, name) = match kinds.first() {
            _ if is_library => (LIBRARY, "unit"),
            kind => (*kind?, target["name"].as_str()?),
        };
        let is_test = message["profile"]["test"].as_bool()?;
        Some(Self { package, name: name.to_owned(), kind: kind.to_owned(), is_test, path, folder })
    }

    /// Returns its package, kind and name.
    pub(crate) fn label(&self) -> String {
        format!("{} {} {}", self.package, self.kind, self.name)
    }

    /// Returns the executable's purpose; `None` for programs.
    fn purpose(&self) -> Option<Purpose> {
        match self.kind.as_str() {
            "bench" => Some(Purpose::Benchmarks),
            _ => self.is_test.then_some(Purpose::Tests),
        }
    }

    /// Returns a command that runs the executable in the folder of its package, as cargo does.
    pub(crate) fn command(&self) -> Command {
        let mut command = shell::command(&self.path.to_string_lossy());
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn executables_are_named_by_package_and_target() {
        let check = |kind: &str, target: &str, expected: (&str, &str)| {
            let message = format!(
                r#"{{"reason":"compiler-artifact","package_id":"path+file:///a/b/pool#vramscope-pool@0.1.0",
                    "manifest_path":"/a/b/pool/Cargo.toml","target":{{"kind":["{kind}"],"name":"{target}"}},
                    "profile":{{"test":true}},"executable":"/t/{target}-12ab"}}"#
            );
            let expected = Executable {
                package: "vramscope-pool".to_owned(),
                kind: expected.0.to_owned(),
                name: expected.1.to_owned(),
                is_test: true,
                path: format!("/t/{target}-12ab").into(),
                folder: "/a/b/pool".into(),
            };
            let message = serde_json::from_str(&message).expect("valid JSON");
            assert_eq!(Executable::from_message(&message), Some(expected));
        };
        check("test", "model", ("test", "model"));
        check("bin", "fleet", ("bin", "fleet"));
        check("rlib", "vramscope_pool", ("lib", "unit"));
        check("cdylib", "vramscope_pool", ("lib", "unit"));
        for other in [json!({"reason": "build-finished", "success": true}), json!({"executable": null})] {
            assert_eq!(Executable::from_message(&other), None);
        }
    }

    fn executable(kind: &str, path: &str) -> Executable {
        Executable {
            package: "one".to_owned(),
            name: "fleet".to_owned(),
            kind: kind.to_owned(),
            is_test: true,
            path: path.into(),
            folder: "/".into(),
        }
    }

    #[test]
    fn benchmarks_are_not_run_as_tests() {
        assert_eq!(executable("bench", "/bench").purpose(), Some(Purpose::Benchmarks));
        assert_eq!(executable("lib", "/unit").purpose(), Some(Purpose::Tests));
        assert_eq!(Executable { is_test: false, ..executable("bin", "/bin") }.purpose(), None);
    }

    #[test]
    fn executable_is_found_by_package_kind_and_name() {
        let all = [executable("bin", "/bin"), executable("test", "/test")];
        assert_eq!(find(&all, "one", "test", "fleet"), Ok(&all[1]));
        assert!(find(&all, "one", "test", "other").is_err());
    }
}
