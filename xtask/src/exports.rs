//! The exports in the tools that they are for: recordings are exported by the built binary, and read by the Python packages of those
//! tools.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::build::{self, Profile};
use crate::shell::{self, Result, command};
use crate::workspace;

/// The recordings of `tests/data` that are exported.
const RECORDINGS: [&str; 7] = [
    "mlp_train.pickle.zst",
    "frag_a_expandable.pickle.zst",
    "ring.pickle.zst",
    "graphs.pickle.zst",
    "streams.pickle.gz",
    "mempool_expandable.pickle.gz",
    "nested_pools.pickle.gz",
];
/// The formats with what is made of each: what is passed to `--to`, and the output's name.
const EXPORTS: [(&str, &str); 5] = [
    ("perfetto", "run.pftrace"),
    ("tensorboard", "run.tb"),
    ("csv", "run.csv"),
    ("parquet", "run.parquet"),
    ("memory-viz", SNAPSHOT),
];
/// Compared with what it was made of.
const SNAPSHOT: &str = "run.pickle";
/// The scripts that take a folder of exports.
const SCRIPTS: [&str; 4] = ["perfetto_trace.py", "tensorboard_events.py", "csv_tables.py", "parquet_tables.py"];

/// A folder with the Python packages that `tests/exports/requirements.txt` names, made where it is not there or is of another list.
pub(crate) fn python() -> Result<PathBuf> {
    let folder = workspace::target_dir()?.join("python");
    let wanted = workspace::root().join("tests/exports/requirements.txt");
    let list = fs::read_to_string(&wanted).map_err(|error| format!("{}: {error}", wanted.display()))?;
    // Written last: a folder without it was not finished.
    let installed = folder.join("installed.txt");
    let python = folder.join(if cfg!(windows) { "Scripts/python" } else { "bin/python" });
    if fs::read_to_string(&installed).is_ok_and(|installed| installed == list) {
        return Ok(python);
    }
    shell::run(command("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"];
    shell::run(at(&python).args(install).arg(&wanted))?;
    fs::write(&installed, list).map_err(|error| format!("{}: {error}", installed.display()))?;
    Ok(python)
}

/// A program at a path.
fn at(program: &Path) -> Command {
    command(&program.to_string_lossy())
}

/// Exports the recordings and runs the scripts on them.
pub(crate) fn check() -> Result<()> {
    let python = python()?;
    let all = workspace::target_dir()?.join("exports");
    if all.exists() {
        fs::remove_dir_all(&all).map_err(|error| format!("{}: {error}", all.display()))?;
    }
    let data = workspace::root().join("tests/data");
    let mut folders = Vec::new();
    let mut snapshots = Vec::new();
    for name in RECORDINGS {
        let folder = all.join(name.split('.').next().unwrap_or(name));
        let recording = data.join(name);
        export(&recording, &folder)?;
        // Python itself unpacks gzip, and not zstd.
        if name.ends_with(".gz") {
            snapshots.extend([recording, folder.join(SNAPSHOT)]);
        }
        folders.push(folder);
    }
    let scripts = workspace::root().join("tests/exports");
    for script in SCRIPTS {
        shell::run(at(&python).arg(scripts.join(script)).args(&folders))?;
    }
    shell::run(at(&python).arg(scripts.join("memory_viz.py")).args(&snapshots))
}

/// Exports a recording to a new folder in every format, beside what `info` says of it.
fn export(recording: &Path, folder: &Path) -> Result<()> {
    let wrong = |error| format!("{}: {error}", folder.display());
    fs::create_dir_all(folder).map_err(wrong)?;
    let binary = build::binary_path(Profile::Release)?;
    let info = shell::output(at(&binary).arg("info").arg(recording).arg("--json"));
    let info = info.ok_or_else(|| format!("`vramscope info {} --json` failed", recording.display()))?;
    fs::write(folder.join("info.json"), info).map_err(wrong)?;
    EXPORTS.iter().try_for_each(|(format, output)| {
        shell::run(at(&binary).arg("export").arg(recording).args(["--to", format, "-o"]).arg(folder.join(output)))
    })
}
