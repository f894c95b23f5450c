//! `cargo xtask gpu`: a folder with everything that a machine with a GPU needs, and no Rust, to run `tests/gpu/run.sh`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::build::{self, Profile};
use crate::shell::{self, Result, cargo};
use crate::workspace;

/// What has something to do on a GPU, or beside one: a package, what cargo is to build of it, and of which kind that is.
const TARGETS: [(&str, &str, &[&str]); 4] = [
    (
        "vramscope-collector",
        "tests",
        &["--test", "cuda", "--test", "cuda_streams", "--test", "devices", "--test", "host_pool"],
    ),
    ("vramscope-collector", "tests", &["--example", "cudarc"]),
    ("vramscope-pluggable", "tests", &["--lib", "--test", "library"]),
    ("vramscope-collector", "benches", &["--bench", "record", "--bench", "speed", "--bench", "step"]),
];
/// What is copied out of `tests/gpu`.
const SCRIPTS: [&str; 3] = ["sh", "py", "cpp"];
/// The library that PyTorch loads.
const LIBRARY: &str = "libvramscope_pluggable.so";

/// Builds for release and gathers what was built, stripped of symbols, in `target/gpu`.
pub(crate) fn gather() -> Result<()> {
    let binary = build::everything(Profile::Release)?;
    shell::run(cargo().args(["build", "--release", "--package", "vramscope-pluggable"]))?;
    let mut built = Vec::new();
    for (package, kind, targets) in TARGETS {
        let command: &[&str] = if kind == "benches" { &["bench"] } else { &["test", "--release"] };
        let found = executables(&[command, &["--no-run", "--package", package], targets].concat())?;
        built.extend(found.into_iter().map(|(name, path)| (kind, name, path)));
    }
    let target = workspace::target_dir()?;
    let folder = target.join("gpu");
    let wrong = |error| format!("{}: {error}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(wrong)?;
    }
    for inner in ["tests", "benches"] {
        fs::create_dir_all(folder.join(inner)).map_err(wrong)?;
    }
    // Tests name their data by the path that they were built at.
    fs::write(folder.join("built-at.txt"), format!("{}\n", workspace::root().display())).map_err(wrong)?;
    let mut copied = vec![copy(&binary, &folder.join("vramscope"))?];
    copied.push(copy(&target.join(Profile::Release.folder()).join(LIBRARY), &folder.join(LIBRARY))?);
    for (kind, name, path) in built {
        copied.push(copy(&path, &folder.join(kind).join(name))?);
    }
    let mut strip = shell::command("strip");
    shell::run(strip.arg("--strip-all").args(&copied))?;
    copied.extend(scripts(&folder)?);
    tell_sizes(&folder, &copied)
}

fn copy(from: &Path, to: &Path) -> Result<PathBuf> {
    fs::copy(from, to).map_err(|error| format!("{} to {}: {error}", from.display(), to.display()))?;
    Ok(to.to_owned())
}

fn scripts(folder: &Path) -> Result<Vec<PathBuf>> {
    let from = workspace::root().join("tests").join("gpu");
    let entries = fs::read_dir(&from).map_err(|error| format!("{}: {error}", from.display()))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_script =
        |path: &PathBuf| path.extension().is_some_and(|extension| SCRIPTS.iter().any(|script| extension == *script));
    paths.filter(is_script).map(|path| copy(&path, &folder.join(path.file_name().unwrap_or_default()))).collect()
}

/// What a cargo command builds that can be run, each with a name that says what it is.
fn executables(arguments: &[&str]) -> Result<Vec<(String, PathBuf)>> {
    let mut command = cargo();
    command.args(arguments);
    eprintln!("$ {}", shell::shown(&command));
    let messages = stdout(command.args(["--message-format", "json-render-diagnostics"]))?;
    let mut found: Vec<_> = messages.lines().filter_map(executable).collect();
    found.sort();
    if found.is_empty() { Err("cargo built nothing that can be run".to_owned()) } else { Ok(found) }
}

fn stdout(command: &mut Command) -> Result<String> {
    let output = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("`{}` failed: {}", shell::shown(command), output.status));
    }
    String::from_utf8(output.stdout).map_err(|_| "cargo printed what is no text".to_owned())
}

/// The name and the path that a message of cargo tells of.
fn executable(message: &str) -> Option<(String, PathBuf)> {
    let message: Value = serde_json::from_str(message).ok()?;
    let path = PathBuf::from(message["executable"].as_str()?);
    // path+file:///the/folder#vramscope-pool@0.1.0
    let package = message["package_id"].as_str()?.rsplit(['#', '/']).next()?.split('@').next()?.to_owned();
    let target = &message["target"];
    let is_library =
        target["kind"].as_array()?.iter().any(|kind| ["lib", "rlib", "cdylib"].iter().any(|lib| kind == lib));
    let name = if is_library { "unit" } else { target["name"].as_str()? };
    Some((format!("{package}-{name}"), path))
}

fn tell_sizes(folder: &Path, copied: &[PathBuf]) -> Result<()> {
    let mut total = 0;
    for path in copied {
        let bytes = fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?.len();
        total += bytes;
        eprintln!("{:9.1} KiB  {}", bytes as f64 / 1024.0, path.strip_prefix(folder).unwrap_or(path).display());
    }
    eprintln!(
        "{:9.1} MiB  in {}; there: bash tests/gpu/run.sh all",
        total as f64 / f64::from(1 << 20),
        folder.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_run_has_a_name_that_says_what_it_is() {
        let check = |kind: &str, target: &str, expected: Option<&str>| {
            let message = format!(
                r#"{{"reason":"compiler-artifact","package_id":"path+file:///a/b/pool#vramscope-pool@0.1.0",
                    "target":{{"kind":["{kind}"],"name":"{target}"}},"executable":"/t/{target}-12ab"}}"#
            );
            let found = executable(&message).map(|(name, path)| (name, path.display().to_string()));
            assert_eq!(found, expected.map(|name| (name.to_owned(), format!("/t/{target}-12ab"))));
        };
        check("test", "model", Some("vramscope-pool-model"));
        check("rlib", "vramscope_pool", Some("vramscope-pool-unit"));
        assert_eq!(executable(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(executable(r#"{"executable":null}"#), None);
        assert_eq!(executable("no JSON"), None);
    }
}
