//! The outside tools: how to see that one is there, how to install it, what to say where that cannot be done.

use std::path::Path;
use std::process::Command;

use crate::shell::{self, Result, cargo, command, is_on_path};
use crate::workspace;

/// Something that the workspace's toolchain needs and that a fresh machine may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    /// The standard library for `wasm32-unknown-unknown`.
    WasmTarget,
    /// `cargo fmt`.
    Rustfmt,
    /// `cargo clippy`.
    Clippy,
    /// Chromium and the program that drives it.
    Chromium,
    /// Python 3 with what makes virtual environments.
    Python,
    /// `wasm-pack`.
    WasmPack,
    /// `cargo fuzz`.
    CargoFuzz,
    /// `wasm-bindgen-test-runner`, of the version that the viewer is built with.
    TestRunner,
}

/// What the viewer is compiled for.
pub(crate) const WASM_TARGET: &str = "wasm32-unknown-unknown";

/// The names that Chromium and Chrome go by.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

impl Tool {
    /// Makes sure that the tool is there. The error says what to run by hand.
    pub(crate) fn ensure(self) -> Result<()> {
        if self.is_there()? {
            return Ok(());
        }
        eprintln!("{} is missing", self.name());
        let by_hand = |reason: String| format!("{reason}\n  Install {} by hand: {}", self.name(), self.by_hand());
        self.install().map_err(by_hand)?;
        if self.is_there()? { Ok(()) } else { Err(by_hand("It was installed and still cannot be found.".to_owned())) }
    }

    fn name(self) -> &'static str {
        match self {
            Self::WasmTarget => "the wasm32-unknown-unknown target",
            Self::Rustfmt => "rustfmt",
            Self::Clippy => "clippy",
            Self::Chromium => "Chromium with chromedriver",
            Self::Python => "Python 3.11 or newer with venv",
            Self::WasmPack => "wasm-pack",
            Self::CargoFuzz => "cargo-fuzz",
            Self::TestRunner => "wasm-bindgen-test-runner",
        }
    }

    fn is_there(self) -> Result<bool> {
        Ok(match self {
            Self::WasmTarget => {
                shell::output(command("rustc").args(["--print", "target-libdir", "--target", WASM_TARGET]))
                    .is_some_and(|folder| Path::new(&folder).is_dir())
            }
            Self::Rustfmt => shell::output(cargo().args(["fmt", "--version"])).is_some(),
            Self::Clippy => shell::output(cargo().args(["clippy", "--version"])).is_some(),
            Self::Chromium => is_on_path("chromedriver") && BROWSERS.into_iter().any(is_installed_browser),
            // Debian has ensurepip in a package of its own. Older Pythons are those that DuckDB and protobuf are no longer made for.
            Self::Python => {
                let check = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))";
                shell::output(command("python3").args(["-c", check])).is_some()
            }
            Self::WasmPack => is_on_path("wasm-pack"),
            Self::CargoFuzz => is_on_path("cargo-fuzz"),
            Self::TestRunner => {
                let wanted = workspace::locked_version("wasm-bindgen")?;
                shell::output(command("wasm-bindgen-test-runner").arg("--version"))
                    .is_some_and(|found| found.split_whitespace().last() == Some(wanted.as_str()))
            }
        })
    }

    /// The commands that install it, of which each needs the one before.
    fn commands(self) -> Result<Vec<Command>> {
        let rustup = |arguments: [&str; 3]| {
            let mut rustup = command("rustup");
            rustup.args(arguments);
            vec![rustup]
        };
        let cargo_install = |arguments: &[&str]| {
            let mut install = cargo();
            install.arg("install").args(arguments);
            vec![install]
        };
        Ok(match self {
            Self::WasmTarget => rustup(["target", "add", WASM_TARGET]),
            Self::Rustfmt => rustup(["component", "add", "rustfmt"]),
            Self::Clippy => rustup(["component", "add", "clippy"]),
            Self::Chromium => apt_install(["chromium", "chromium-driver"]),
            Self::Python => apt_install(["python3", "python3-venv"]),
            Self::WasmPack => cargo_install(&["wasm-pack", "--locked"]),
            Self::CargoFuzz => cargo_install(&["cargo-fuzz", "--locked"]),
            Self::TestRunner => {
                let version = workspace::locked_version("wasm-bindgen")?;
                // Not --locked: with the lock file that this package was published with it does not build.
                cargo_install(&["wasm-bindgen-cli", "--version", &version])
            }
        })
    }

    fn install(self) -> Result<()> {
        if matches!(self, Self::Chromium | Self::Python) && !(is_on_path("apt-get") && is_root()) {
            return Err("Only root on a system with apt-get can install it from here.".to_owned());
        }
        self.commands()?.iter_mut().try_for_each(shell::run)
    }

    fn by_hand(self) -> String {
        match (self, self.commands()) {
            (Self::Chromium, _) => {
                "`apt-get update && apt-get install chromium chromium-driver` as root (Debian), or Chrome \
                                    and the chromedriver of its version, both on the PATH"
                    .to_owned()
            }
            (Self::Python, _) => "`apt-get update && apt-get install python3 python3-venv` as root (Debian)".to_owned(),
            (_, Ok(commands)) => commands.iter().map(shell::shown).collect::<Vec<_>>().join(" && "),
            (_, Err(error)) => error,
        }
    }
}

fn apt_install(packages: [&str; 2]) -> Vec<Command> {
    let apt_get = |arguments: &[&str]| {
        let mut apt_get = command("apt-get");
        apt_get.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        apt_get
    };
    let mut install = apt_get(&["install", "-y", "--no-install-recommends"]);
    install.args(packages);
    vec![apt_get(&["update"]), install]
}

fn is_root() -> bool {
    shell::output(command("id").arg("-u")).as_deref() == Some("0")
}

/// On a Mac and on Windows the browser is not on the PATH; chromedriver finds it in its usual place.
fn is_installed_browser(name: &str) -> bool {
    cfg!(any(target_os = "macos", windows)) || is_on_path(name)
}
