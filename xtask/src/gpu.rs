//! `cargo xtask gpu`: a folder with everything that `tests/gpu/run.sh` needs on a machine that has
//! a GPU but no Rust.

use std::fs;
use std::path::{Path, PathBuf};

use crate::build::{self, Profile};
use crate::executables::{self, Executable};
use crate::shell::{self, Result, cargo};
use crate::workspace;

/// The programs that run on the GPU machine: package, destination folder, and cargo's arguments for
/// the package's targets.
const TARGETS: [(&str, &str, &[&str]); 6] = [
    ("vramscope-collector", "tests", &["--test", "it"]),
    ("vramscope-collector", "tests", &["--example", "cudarc"]),
    ("vramscope-pluggable", "tests", &["--lib", "--test", "it"]),
    ("vramscope-demo", "tests", &["--lib", "--test", "it"]),
    ("vramscope-demo", "examples", &["--example", "gpt"]),
    ("vramscope-collector", "benches", &["--bench", "record", "--bench", "speed", "--bench", "step"]),
];
/// File extensions that are copied from `tests/gpu`.
const SCRIPTS: [&str; 3] = ["sh", "py", "cpp"];
/// File name of the pluggable allocator that PyTorch loads.
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
        let found = executables::build(&[command, &["--package", package], targets].concat())?;
        let name = |executable: &Executable| format!("{}-{}", executable.package, executable.name);
        built.extend(found.into_iter().map(|executable| (kind, name(&executable), executable.path)));
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
