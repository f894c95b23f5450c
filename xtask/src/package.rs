//! Packages every published crate and builds two programs against the packages, outside of the
//! workspace: the README's examples, as a user of crates.io would have them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::shell::{self, Result, cargo, command};
use crate::workspace;

/// Published crates, each after those that it depends on.
const PUBLISHED: [&str; 9] = [
    "vramscope-trace",
    "vramscope-pool",
    "vramscope-formats",
    "vramscope-page",
    "vramscope-collector",
    "vramscope-pluggable",
    "vramscope-viewer",
    "vramscope-demo",
    "vramscope",
];

/// Packages the crates, unpacks them, and builds and runs the scratch programs.
pub(crate) fn check() -> Result<()> {
    let mut package = cargo();
    // The scratch programs verify the packages; cargo would build each of them anew.
    package.args(["package", "--no-verify", "--allow-dirty"]);
    for name in PUBLISHED {
        package.args(["--package", name]);
    }
    shell::run(&mut package)?;
    let packages = workspace::target_dir()?.join("package");
    let unpacked = packages.join("unpacked");
    if unpacked.exists() {
        fs::remove_dir_all(&unpacked).map_err(|error| format!("{}: {error}", unpacked.display()))?;
    }
    fs::create_dir_all(&unpacked).map_err(|error| format!("{}: {error}", unpacked.display()))?;
    for name in PUBLISHED {
        let archive = packages.join(format!("{name}-{}.crate", workspace::version()?));
        shell::run(command("tar").arg("-xzf").arg(&archive).arg("-C").arg(&unpacked))?;
    }
    check_page(&unpacked)?;
    for program in &SCRATCH_PROGRAMS {
        run_scratch_program(program, &unpacked)?;
    }
    Ok(())
}

/// Checks that the packaged page contains the viewer: `cargo install vramscope` must include it.
fn check_page(unpacked: &Path) -> Result<()> {
    let wasm = folder_of("vramscope-page", unpacked)?.join("dist/pkg/vramscope_viewer_bg.wasm.br");
    if wasm.is_file() { Ok(()) } else { Err(format!("the packaged page lacks {}", wasm.display())) }
}

fn folder_of(name: &str, unpacked: &Path) -> Result<PathBuf> {
    Ok(unpacked.join(format!("{name}-{}", workspace::version()?)))
}

/// A program outside of the workspace that uses the packaged collector.
struct ScratchProgram {
    name: &'static str,
    /// The dependency's settings in `Cargo.toml`.
    dependency: &'static str,
    /// The collector's example that is its `main.rs`.
    example: &'static str,
    /// A crate that must not be in its dependency tree.
    forbidden: Option<&'static str>,
}

const SCRATCH_PROGRAMS: [ScratchProgram; 2] = [
    ScratchProgram {
        name: "scratch-host",
        dependency: "default-features = false",
        example: "host.rs",
        forbidden: Some("tokio"),
    },
    ScratchProgram {
        name: "scratch-server",
        dependency: "default-features = true",
        example: "server.rs",
        forbidden: None,
    },
];

fn run_scratch_program(program: &ScratchProgram, unpacked: &Path) -> Result<()> {
    let folder = workspace::target_dir()?.join("scratch").join(program.name);
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap_or(&folder))
            .and_then(|()| fs::write(&path, text))
            .map_err(|error| format!("{}: {error}", path.display()))
    };
    write("Cargo.toml", &manifest(program, unpacked)?)?;
    let example = folder_of("vramscope-collector", unpacked)?.join("examples").join(program.example);
    let source = fs::read_to_string(&example).map_err(|error| format!("{}: {error}", example.display()))?;
    write("src/main.rs", &source)?;
    // The versions that the workspace was tested with.
    let lock = workspace::root().join("Cargo.lock");
    fs::copy(&lock, folder.join("Cargo.lock")).map_err(|error| format!("{}: {error}", lock.display()))?;
    let target = workspace::target_dir()?.join("scratch-target");
    if let Some(forbidden) = program.forbidden {
        let tree = shell::output(cargo().args(["tree", "--edges", "normal"]).current_dir(&folder));
        let tree = tree.ok_or_else(|| format!("`cargo tree` failed in {}", folder.display()))?;
        if tree.lines().any(|line| line.split_whitespace().any(|word| word == forbidden)) {
            return Err(format!("{} depends on {forbidden}", program.name));
        }
    }
    shell::run(cargo().args(["run", "--quiet", "--target-dir"]).arg(target).current_dir(&folder))
}

/// The manifest of a scratch program. Crates that are not on crates.io yet come from the packages.
fn manifest(program: &ScratchProgram, unpacked: &Path) -> Result<String> {
    let mut text = format!(
        "[package]\nname = \"{}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[dependencies]\n\
         vramscope-collector = {{ version = \"{}\", {} }}\n\n[workspace]\n\n[patch.crates-io]\n",
        program.name,
        workspace::version()?,
        program.dependency
    );
    for name in PUBLISHED {
        text.push_str(&format!("{name} = {{ path = {:?} }}\n", folder_of(name, unpacked)?));
    }
    Ok(text)
}
