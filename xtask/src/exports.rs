//! Exports recordings with the built binary, and reads each export with the Python package of the
//! tool that defines its format.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::python_env;
use crate::shell::{self, Result, command};
use crate::workspace;

/// Recordings in `tests/data` to export.
const RECORDINGS: [&str; 7] = [
    "mlp_train.pickle.zst",
    "frag_a_expandable.pickle.zst",
    "ring.pickle.zst",
    "graphs.pickle.zst",
    "streams.pickle.gz",
    "mempool_expandable.pickle.gz",
    "nested_pools.pickle.gz",
];
/// Export formats: the value of `--to` and the output's file name.
const EXPORTS: [(&str, &str); 5] = [
    ("perfetto", "run.pftrace"),
    ("tensorboard", "run.tb"),
    ("csv", "run.csv"),
    ("parquet", "run.parquet"),
    ("memory-viz", SNAPSHOT),
];
/// The exported snapshot, which is compared with its source.
const SNAPSHOT: &str = "run.pickle";
/// Scripts that check a folder of exports.
const SCRIPTS: [&str; 4] = ["perfetto_trace.py", "tensorboard_events.py", "csv_tables.py", "parquet_tables.py"];

/// Creates a virtual environment with the packages of `tests/exports/requirements.txt`, unless it
/// exists with that list. Returns its Python.
pub(crate) fn python() -> Result<PathBuf> {
    python_env::environment_of_file("python", &workspace::root().join("tests/exports/requirements.txt"))
}

/// Downloads the accessibility checker axe-core, whose script a Python package contains. Returns
/// the path of the script.
pub(crate) fn axe_script() -> Result<PathBuf> {
    const PACKAGE: &str = "axe-playwright-python==0.1.8";
    let folder = workspace::target_dir()?.join(PACKAGE);
    let script = folder.join("axe_playwright_python/axe.min.js");
    if !script.exists() {
        // Installs the package without its dependencies, which are only needed to drive a browser.
        let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target"];
        shell::run(program(&python()?).args(install).arg(&folder).arg(PACKAGE))?;
    }
    Ok(script)
}

/// Returns a command for the program at a path.
fn program(program: &Path) -> Command {
    command(&program.to_string_lossy())
}

/// Exports the recordings with the command `binary` and runs the scripts on the results, and on the
/// scalars of a training.
pub(crate) fn check(binary: &Path) -> Result<()> {
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
        export(binary, &recording, &folder)?;
        // Python's standard library reads gzip, but not zstd.
        if name.ends_with(".gz") {
            snapshots.extend([recording, folder.join(SNAPSHOT)]);
        }
        folders.push(folder);
    }
    let scripts = workspace::root().join("tests/exports");
    for script in SCRIPTS {
        shell::run(program(&python).arg(scripts.join(script)).args(&folders))?;
    }
    let training = scripts.join("tensorboard_training.py");
    shell::run(program(&python).arg(training).arg(binary))?;
    shell::run(program(&python).arg(scripts.join("memory_viz.py")).args(&snapshots))
}

/// Exports a recording to a new folder in every format, with the output of `info --json`.
fn export(binary: &Path, recording: &Path, folder: &Path) -> Result<()> {
    let wrong = |error| format!("{}: {error}", folder.display());
    fs::create_dir_all(folder).map_err(wrong)?;
    let info = shell::output(program(binary).arg("info").arg(recording).arg("--json"));
    let info = info.ok_or_else(|| format!("`vramscope info {} --json` failed", recording.display()))?;
    fs::write(folder.join("info.json"), info).map_err(wrong)?;
    EXPORTS.iter().try_for_each(|(format, output)| {
        shell::run(program(binary).arg("export").arg(recording).args(["--to", format, "-o"]).arg(folder.join(output)))
    })
}
