//! `cargo xtask gpu`: a folder with everything that `tests/gpu/run.sh` needs on a machine that has
//! a GPU but no Rust.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::build::{self, Profile};
use crate::shell::{self, Result, cargo};
use crate::workspace;

/// What runs on the GPU machine: package, folder, and the targets that cargo builds.
const TARGETS: [(&str, &str, &[&str]); 6] = [
    (
        "vramscope-collector",
        "tests",
        &["--test", "cuda", "--test", "cuda_streams", "--test", "devices", "--test", "host_pool"],
    ),
    ("vramscope-collector", "tests", &["--example", "cudarc"]),
    ("vramscope-pluggable", "tests", &["--lib", "--test", "library"]),
    ("vramscope-demo", "tests", &["--lib", "--test", "techniques"]),
    ("vramscope-demo", "examples", &["--example", "gpt"]),
    ("vramscope-collector", "benches", &["--bench", "record", "--bench", "speed", "--bench", "step"]),
];
/// File extensions that are copied from `tests/gpu`.
const SCRIPTS: [&str; 3] = ["sh", "py", "cpp"];
/// The pluggable allocator that PyTorch loads.
const LIBRARY: &str = "libvramscope_pluggable.so";

/// Builds for release and copies the stripped binaries to `target/gpu`.
pub(crate) fn collect() -> Result<()> {
    let binary = build::binary(Profile::Release)?;
    shell::run(cargo().args(["build", "--release", "--package", "vramscope-pluggable"]))?;
    let mut built = Vec::new();
    for (package, kind, targets) in TARGETS {
        let command: &[&str] = match kind {
            "benches" => &["bench", "--no-run"],
            "examples" => &["build", "--release"],
            _ => &["test", "--release", "--no-run"],
        };
        let found = executables(&[command, &["--package", package], targets].concat())?;
        built.extend(found.into_iter().map(|(name, path)| (kind, name, path)));
    }
    let target = workspace::target_dir()?;
    let folder = target.join("gpu");
    let io_error = |error| format!("{}: {error}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(io_error)?;
    }
    for inner in ["tests", "benches", "examples"] {
        fs::create_dir_all(folder.join(inner)).map_err(io_error)?;
    }
    // Tests refer to their data by the path at build time.
    fs::write(folder.join("built-at.txt"), format!("{}\n", workspace::root().display())).map_err(io_error)?;
    let mut copied = vec![copy(&binary, &folder.join("vramscope"))?];
    copied.push(copy(&target.join(Profile::Release.folder()).join(LIBRARY), &folder.join(LIBRARY))?);
    for (kind, name, path) in built {
        copied.push(copy(&path, &folder.join(kind).join(name))?);
    }
    let mut strip = shell::command("strip");
    shell::run(strip.arg("--strip-all").args(&copied))?;
    copied.extend(scripts(&folder)?);
    print_sizes(&folder, &copied)
}

/// Copies a file and returns the copy's path.
fn copy(from: &Path, to: &Path) -> Result<PathBuf> {
    fs::copy(from, to).map_err(|error| format!("{} to {}: {error}", from.display(), to.display()))?;
    Ok(to.to_owned())
}

/// Copies the scripts of `tests/gpu` to a folder and returns the copies' paths.
fn scripts(folder: &Path) -> Result<Vec<PathBuf>> {
    let from = workspace::root().join("tests").join("gpu");
    let entries = fs::read_dir(&from).map_err(|error| format!("{}: {error}", from.display()))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_script =
        |path: &PathBuf| path.extension().is_some_and(|extension| SCRIPTS.iter().any(|script| extension == *script));
    paths.filter(is_script).map(|path| copy(&path, &folder.join(path.file_name().unwrap_or_default()))).collect()
}

/// Runs a cargo build. Returns the executables with a name made of package and target.
fn executables(arguments: &[&str]) -> Result<Vec<(String, PathBuf)>> {
    let mut command = cargo();
    command.args(arguments);
    eprintln!("$ {}", shell::shown(&command));
    let messages = stdout(command.args(["--message-format", "json-render-diagnostics"]))?;
    let mut found: Vec<_> = messages.lines().filter_map(executable).collect();
    found.sort();
    if found.is_empty() { Err("cargo built no executable".to_owned()) } else { Ok(found) }
}

/// Runs a cargo command and returns its stdout; stderr is shown.
fn stdout(command: &mut Command) -> Result<String> {
    let output = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("`{}` failed: {}", shell::shown(command), output.status));
    }
    String::from_utf8(output.stdout).map_err(|_| "the output of cargo is not UTF-8".to_owned())
}

/// Parses a JSON message of cargo. Returns name and path if it reports an executable.
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

/// Prints the size of each copied file, and the total with the command to run next.
fn print_sizes(folder: &Path, copied: &[PathBuf]) -> Result<()> {
    let mut total = 0;
    for path in copied {
        let bytes = fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?.len();
        total += bytes;
        eprintln!("{:9.1} KiB  {}", bytes as f64 / 1024.0, path.strip_prefix(folder).unwrap_or(path).display());
    }
    eprintln!(
        "{:9.1} MiB  in {}; on the GPU machine run: bash tests/gpu/run.sh all",
        total as f64 / f64::from(1 << 20),
        folder.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_are_named_by_package_and_target() {
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
