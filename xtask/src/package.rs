//! Packages every published crate and compiles the packages outside of the workspace, as a user of
//! crates.io does: the command with its page, and the README's examples.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{self, Result, cargo, command};
use crate::workspace;

/// Published crates, each after the published crates that it depends on.
const PUBLISHED: [&str; 16] = [
    "vramscope-trace",
    "vramscope-pool",
    "vramscope-formats",
    "vramscope-insight",
    "vramscope-draw",
    "vramscope-importer",
    "vramscope-analyzer",
    "vramscope-page",
    "vramscope-collector",
    "vramscope-fleet",
    "vramscope-query",
    "vramscope-pluggable",
    "vramscope-viewer",
    "vramscope-report",
    "vramscope-demo",
    "vramscope",
];

/// Packages that users compile by themselves: the command (`cargo install vramscope`), and the
/// library for PyTorch. All other published crates are dependencies of these two.
const COMPILED_ALONE: [&str; 2] = ["vramscope", "vramscope-pluggable"];

/// Files that packages must contain, as (file of the repository, file of the packages, packages).
const LICENSES: [(&str, &str, &[&str]); 4] = [
    ("LICENSE-MIT", "LICENSE-MIT", &PUBLISHED),
    ("LICENSE-APACHE", "LICENSE-APACHE", &PUBLISHED),
    ("crates/draw/assets/LICENSE-Inter.txt", "assets/LICENSE-Inter.txt", &["vramscope-draw"]),
    ("crates/draw/assets/LICENSE-Inter.txt", "LICENSE-Inter.txt", &["vramscope-page"]),
];

/// Packages the crates, unpacks the packages, checks their content, and compiles them.
pub(crate) fn check() -> Result<()> {
    let mut package = cargo();
    // `--no-verify`: the scratch workspace compiles the packages, and cargo would compile each of
    // them once more.
    package.args(["package", "--no-verify", "--allow-dirty"]);
    for name in PUBLISHED {
        package.args(["--package", name]);
    }
    shell::run(&mut package)?;
    let scratch = Scratch::unpack()?;
    for name in PUBLISHED {
        check_contents(name, &scratch.package(name))?;
    }
    scratch.write_programs()?;
    for program in &SCRATCH_PROGRAMS {
        scratch.check_dependencies(program)?;
        shell::run(scratch.cargo(program.command).args(["--quiet", "--package", program.name]))?;
    }
    // Checks each package alone, as users compile it: together, each would get the features that
    // the other needs.
    COMPILED_ALONE.iter().try_for_each(|name| shell::run(scratch.cargo("check").args(["--quiet", "--package", name])))
}

/// Checks that a package has the licence texts, and no tests, which need the workspace.
fn check_contents(name: &str, package: &Path) -> Result<()> {
    for (original, packaged, _) in LICENSES.iter().filter(|(_, _, packages)| packages.contains(&name)) {
        let text = |path: &Path| fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
        let packaged = package.join(packaged);
        if text(&workspace::root().join(original))? != text(&packaged)? {
            return Err(format!("{} differs from {original}", packaged.display()));
        }
    }
    let tests = package.join("tests");
    if tests.exists() { Err(format!("{} exists: exclude it in Cargo.toml", tests.display())) } else { Ok(()) }
}

/// A program outside of the workspace that uses one of the packages.
struct ScratchProgram {
    name: &'static str,
    /// The package that it depends on.
    package: &'static str,
    has_default_features: bool,
    main: MainSource,
    /// The cargo command that compiles it, and runs it if `run`.
    command: &'static str,
    /// A crate that must not be in its dependency tree.
    forbidden: Option<&'static str>,
}

/// The `main.rs` of a scratch program: an example of its package, or a text.
enum MainSource {
    Example(&'static str),
    Text(&'static str),
}

/// Fails if the packaged page is empty or lacks the viewer, which `cargo install` cannot build.
const CHECK_PAGE: &str = r#"
fn main() {
    let has = |path: &str| vramscope_page::files().iter().any(|file| file.path == path);
    let modules = ["viewer", "viewer_later", "importer", "fleet_page"].map(|name| format!("pkg/vramscope_{name}_bg.wasm"));
    let files = ["index.html", "fleet/index.html"].into_iter().chain(modules.iter().map(String::as_str));
    let is_complete = files.into_iter().all(has);
    assert!(is_complete, "the package lacks the page: run `cargo xtask build --release` first");
}
"#;

/// The programs outside of the workspace: the collector without default features and with them, and
/// the page.
const SCRATCH_PROGRAMS: [ScratchProgram; 3] = [
    ScratchProgram {
        name: "scratch-host",
        package: "vramscope-collector",
        has_default_features: false,
        main: MainSource::Example("host.rs"),
        command: "run",
        forbidden: Some("tokio"),
    },
    ScratchProgram {
        name: "scratch-server",
        package: "vramscope-collector",
        has_default_features: true,
        main: MainSource::Example("server.rs"),
        // A check reuses the dependencies that were checked for the collector's documentation; a
        // build would compile the server's dependencies once more.
        command: "check",
        forbidden: None,
    },
    ScratchProgram {
        name: "scratch-page",
        package: "vramscope-page",
        has_default_features: true,
        main: MainSource::Text(CHECK_PAGE),
        command: "run",
        forbidden: None,
    },
];

/// A workspace of the scratch programs and two packages. All published crates come from the
/// unpacked packages.
///
/// All other crates come from this repository's target folder: with its `Cargo.lock` and profiles,
/// cargo does not compile them again. With a target folder for this workspace alone, the first run
/// took 350 s instead of 130 s.
struct Scratch {
    folder: PathBuf,
    target: PathBuf,
    /// The version of all published crates.
    version: String,
}

impl Scratch {
    /// Creates an empty scratch workspace and unpacks the packages into it.
    fn unpack() -> Result<Self> {
        let target = workspace::target_dir()?;
        let scratch = Self { folder: target.join("scratch"), target, version: workspace::version()? };
        let packages = scratch.folder.join("packages");
        if scratch.folder.exists() {
            fs::remove_dir_all(&scratch.folder).map_err(|error| format!("{}: {error}", scratch.folder.display()))?;
        }
        fs::create_dir_all(&packages).map_err(|error| format!("{}: {error}", packages.display()))?;
        for name in PUBLISHED {
            let archive = scratch.target.join("package").join(format!("{name}-{}.crate", scratch.version));
            // `m` gives files the present time. Files in packages are dated 2006, so that cargo
            // would regard them as unchanged since the last run.
            shell::run(command("tar").arg("-xzmf").arg(&archive).arg("-C").arg(&packages))?;
        }
        Ok(scratch)
    }

    /// Returns the folder of an unpacked package.
    fn package(&self, name: &str) -> PathBuf {
        self.folder.join("packages").join(format!("{name}-{}", self.version))
    }

    /// Writes the workspace and its programs.
    fn write_programs(&self) -> Result<()> {
        let packages = COMPILED_ALONE.iter().map(|name| format!("packages/{name}-{}", self.version));
        let members: Vec<String> = packages.chain(SCRATCH_PROGRAMS.map(|program| program.name.to_owned())).collect();
        for program in &SCRATCH_PROGRAMS {
            let main = match program.main {
                MainSource::Example(example) => {
                    let path = self.package(program.package).join("examples").join(example);
                    fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?
                }
                MainSource::Text(text) => text.to_owned(),
            };
            let manifest = format!(
                "[package]\nname = \"{}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[dependencies]\n\
                 {} = {{ version = \"{}\", default-features = {} }}\n",
                program.name, program.package, self.version, program.has_default_features
            );
            self.write(&format!("{}/Cargo.toml", program.name), &manifest)?;
            self.write(&format!("{}/src/main.rs", program.name), &main)?;
        }
        let mut root = format!("[workspace]\nresolver = \"3\"\nmembers = {members:?}\n\n[patch.crates-io]\n");
        for name in PUBLISHED {
            root.push_str(&format!("{name} = {{ path = {:?} }}\n", self.package(name)));
        }
        let original = |name: &str| {
            let path = workspace::root().join(name);
            fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let manifest = original("Cargo.toml")?;
        root.push_str(manifest.find("\n[profile.").map_or("", |start| &manifest[start..]));
        self.write("Cargo.toml", &root)?;
        self.write("Cargo.lock", &original("Cargo.lock")?)
    }

    /// Writes a file of the workspace.
    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.folder.join(name);
        fs::create_dir_all(path.parent().unwrap_or(&self.folder))
            .and_then(|()| fs::write(&path, text))
            .map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Returns the cargo command `name` for this scratch workspace, with a target folder of its
    /// own.
    fn cargo(&self, name: &str) -> Command {
        let mut cargo = cargo();
        cargo.arg(name).arg("--target-dir").arg(&self.target).current_dir(&self.folder);
        cargo
    }

    /// Checks that a program does not depend on the crate that it forbids.
    fn check_dependencies(&self, program: &ScratchProgram) -> Result<()> {
        let Some(forbidden) = program.forbidden else { return Ok(()) };
        let tree = ["tree", "--edges", "normal", "--package", program.name];
        let tree = shell::output(cargo().args(tree).current_dir(&self.folder));
        let tree = tree.ok_or_else(|| format!("`cargo tree` failed in {}", self.folder.display()))?;
        if tree.lines().any(|line| line.split_whitespace().any(|word| word == forbidden)) {
            return Err(format!("{} depends on {forbidden}", program.name));
        }
        Ok(())
    }
}
