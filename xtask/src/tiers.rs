//! Chooses the steps of `cargo xtask test`: with `--full` all steps; otherwise the steps that every
//! change must pass, and each other step whose files changed.

use crate::shell::{self, Result, command};

/// The environment variable with the git revision from which changes count. Its default is the
/// newest common ancestor of this branch and `origin/main`.
pub(crate) const BASE_VARIABLE: &str = "VRAMSCOPE_TEST_BASE";

/// The branch that changes are merged into.
const MAIN_BRANCH: &str = "origin/main";

/// The tier of tests to run, and the changed files.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Tiers {
    /// Every step.
    Full,
    /// The short tier, and the steps about the changed files, whose paths are relative to the root.
    Short { changed: Vec<String> },
}

impl Tiers {
    /// Returns the tiers that the arguments of `cargo xtask test` name; prints what changed.
    pub(crate) fn from_arguments(arguments: &[&str]) -> Result<Self> {
        match arguments {
            [] => {
                let base = base()?;
                let changed = changed_files(&base)?;
                eprintln!("the short tier, and the steps about {} files that changed since {base}", changed.len());
                Ok(Self::Short { changed })
            }
            ["--full"] => Ok(Self::Full),
            other => Err(format!("unknown arguments: {}; `--full` runs every step", other.join(" "))),
        }
    }

    /// Returns true if a step of the full tier runs. `about` has the files that the step checks:
    /// folders and files relative to the root or, with `/` first, a part of any path.
    pub(crate) fn run_step_about(&self, about: &[&str]) -> bool {
        match self {
            Self::Full => true,
            Self::Short { changed } => {
                let is_about = |path: &String| about.iter().any(|pattern| matches_path(path, pattern));
                changed.iter().any(is_about)
            }
        }
    }
}

/// Returns true if `path`, relative to the root, is in the folder `pattern` or is the file
/// `pattern`. If `pattern` begins with `/`, returns true if `path` contains it.
fn matches_path(path: &str, pattern: &str) -> bool {
    if pattern.starts_with('/') { format!("/{path}").contains(pattern) } else { path.starts_with(pattern) }
}

/// Runs git and returns its output.
fn git(arguments: &[&str]) -> Result<String> {
    let output = shell::output(command("git").args(arguments));
    output.ok_or_else(|| format!("`git {}` failed", arguments.join(" ")))
}

/// Returns the revision from which changes count. On the main branch itself, this is the commit
/// before the newest one.
fn base() -> Result<String> {
    if let Ok(base) = std::env::var(BASE_VARIABLE) {
        return Ok(base);
    }
    let head = git(&["rev-parse", "HEAD"])?;
    let common = git(&["merge-base", "HEAD", MAIN_BRANCH]).ok();
    let before = || git(&["rev-parse", "--verify", "--quiet", "HEAD~1"]).unwrap_or_else(|_| head.clone());
    Ok(common.filter(|common| *common != head).unwrap_or_else(before))
}

/// Returns the files that differ from a revision, and untracked files.
fn changed_files(base: &str) -> Result<Vec<String>> {
    // Without renames, the old path of a file counts as well.
    let differing = git(&["diff", "--name-only", "--no-renames", base])?;
    let unknown = git(&["ls-files", "--others", "--exclude-standard"])?;
    Ok(differing.lines().chain(unknown.lines()).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_runs_if_one_of_the_files_it_checks_changed() {
        let check = |changed: &[&str], about: &[&str], expected: bool| {
            let tiers = Tiers::Short { changed: changed.iter().map(|path| (*path).to_owned()).collect() };
            assert_eq!(tiers.run_step_about(about), expected, "{changed:?}, {about:?}");
            assert!(Tiers::Full.run_step_about(about));
        };
        check(&[], &["crates/cli/"], false);
        check(&["crates/cli/src/main.rs"], &["crates/cli/"], true);
        check(&["crates/client/src/main.rs"], &["crates/cli/"], false);
        check(&["docs/a.md", "Cargo.lock"], &["deny.toml", "Cargo.lock"], true);
        check(&["docs/Cargo.lock"], &["Cargo.lock"], false);
        check(&["collector/benches/step/main.rs"], &["/benches/"], true);
        check(&["benches/step.rs"], &["/benches/"], true);
        check(&["collector/Cargo.toml", "Cargo.toml"], &["/Cargo.toml"], true);
    }

    #[test]
    fn unknown_arguments_are_refused() {
        assert_eq!(Tiers::from_arguments(&["--full"]), Ok(Tiers::Full));
        assert!(Tiers::from_arguments(&["--ful"]).is_err());
    }
}
