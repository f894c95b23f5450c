//! Detects and installs external tools.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{self, Result, cargo, command, is_on_path};
use crate::workspace;

/// A tool that a fresh machine may lack, such as clippy or Chromium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    /// The standard library for `wasm32-unknown-unknown`.
    WasmTarget,
    /// `cargo fmt`.
    Rustfmt,
    /// `cargo clippy`.
    Clippy,
    /// Chromium and chromedriver.
    Chromium,
    /// Python 3 with venv.
    Python,
    /// `wasm-pack`.
    WasmPack,
    /// `cargo fuzz`.
    CargoFuzz,
    /// `wasm-bindgen-test-runner`, of the version that the viewer is built with.
    TestRunner,
    /// The standard library for `x86_64-pc-windows-gnu`.
    WindowsTarget,
    /// The C compiler for `x86_64-pc-windows-gnu`.
    Mingw,
    /// `cargo deny`.
    CargoDeny,
    /// g++, the C++ compiler.
    Gxx,
    /// `unzip`.
    Unzip,
}

/// The target triple of the viewer, which runs in a browser.
pub(crate) const WASM_TARGET: &str = "wasm32-unknown-unknown";

/// The target triple for checking that the command compiles for Windows.
pub(crate) const WINDOWS_TARGET: &str = "x86_64-pc-windows-gnu";

/// Program names of Chromium's and Chrome's headless shell.
const HEADLESS_SHELLS: [&str; 2] = ["chromium-headless-shell", "chrome-headless-shell"];

/// Program names of Chromium and Chrome.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

impl Tool {
    /// Installs the tool if it is missing. The error names the command to run by hand.
    pub(crate) fn ensure(self) -> Result<()> {
        if self.is_installed()? {
            return Ok(());
        }
        shell::print(&format!("{} is missing", self.name()));
        let by_hand = |reason: String| format!("{reason}\n  Install {} by hand: {}", self.name(), self.by_hand());
        self.install().map_err(by_hand)?;
        if self.is_installed()? { Ok(()) } else { Err(by_hand("It was installed but cannot be found.".to_owned())) }
    }

    /// Returns the tool's name for messages.
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
            Self::WindowsTarget => "the x86_64-pc-windows-gnu target",
            Self::Mingw => "mingw-w64",
            Self::CargoDeny => "cargo-deny",
            Self::Gxx => "g++",
            Self::Unzip => "unzip",
        }
    }

    /// Returns true if the tool is installed in a usable version.
    fn is_installed(self) -> Result<bool> {
        Ok(match self {
            Self::WasmTarget => has_target(WASM_TARGET),
            Self::WindowsTarget => has_target(WINDOWS_TARGET),
            Self::Mingw => is_on_path("x86_64-w64-mingw32-gcc"),
            Self::CargoDeny => is_on_path("cargo-deny"),
            Self::Gxx => is_on_path("g++"),
            Self::Unzip => is_on_path("unzip"),
            Self::Rustfmt => shell::output(cargo().args(["fmt", "--version"])).is_some(),
            Self::Clippy => shell::output(cargo().args(["clippy", "--version"])).is_some(),
            Self::Chromium => is_on_path("chromedriver") && BROWSERS.into_iter().any(is_installed_browser),
            // Debian packages ensurepip separately. DuckDB and protobuf need this version.
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

    /// Returns the commands that install the tool, to be run in order.
    fn commands(self) -> Result<Vec<Command>> {
        let rustup = |arguments: [&str; 3]| {
            let mut rustup = command("rustup");
            rustup.args(arguments);
            vec![rustup]
        };
        // Builds without optimizations and without line tables take half the time; cargo-deny still
        // checks in 2 s. In one folder, cargo compiles once what several tools need.
        let target_dir = workspace::target_dir()?.join("tools");
        let cargo_install = |arguments: &[&str]| {
            let mut install = cargo();
            install.arg("install").args(arguments).arg("--debug").arg("--target-dir").arg(&target_dir);
            install.env("CARGO_PROFILE_DEV_DEBUG", "0");
            vec![install]
        };
        Ok(match self {
            Self::WasmTarget => rustup(["target", "add", WASM_TARGET]),
            Self::WindowsTarget => rustup(["target", "add", WINDOWS_TARGET]),
            Self::Mingw => apt_install(&["gcc-mingw-w64-x86-64"]),
            Self::Gxx => apt_install(&["g++"]),
            Self::Unzip => apt_install(&["unzip"]),
            Self::CargoDeny => cargo_install(&["cargo-deny", "--locked"]),
            Self::Rustfmt => rustup(["component", "add", "rustfmt"]),
            Self::Clippy => rustup(["component", "add", "clippy"]),
            Self::Chromium => apt_install(&["chromium", "chromium-driver"]),
            Self::Python => apt_install(&["python3", "python3-venv"]),
            Self::WasmPack => cargo_install(&["wasm-pack", "--locked"]),
            Self::CargoFuzz => cargo_install(&["cargo-fuzz", "--locked"]),
            Self::TestRunner => {
                let version = workspace::locked_version("wasm-bindgen")?;
                // Without --locked, because it does not build with its published lock file.
                cargo_install(&["wasm-bindgen-cli", "--version", &version])
            }
        })
    }

    /// Installs the tool; fails if that needs root or a system with `apt-get`.
    fn install(self) -> Result<()> {
        let is_debian_package = matches!(self, Self::Chromium | Self::Python | Self::Mingw | Self::Gxx | Self::Unzip);
        if is_debian_package && !can_install_packages() {
            return Err("It can only be installed automatically by root on a system with apt-get.".to_owned());
        }
        self.commands()?.iter_mut().try_for_each(shell::run)
    }

    /// Returns the commands by which a user installs the tool.
    fn by_hand(self) -> String {
        match (self, self.commands()) {
            (Self::Chromium, _) => {
                "`apt-get update && apt-get install chromium chromium-driver` as root (Debian), or Chrome \
                                    and the chromedriver of its version, both on the PATH"
                    .to_owned()
            }
            (Self::Python, _) => "`apt-get update && apt-get install python3 python3-venv` as root (Debian)".to_owned(),
            (Self::Mingw, _) => "`apt-get update && apt-get install gcc-mingw-w64-x86-64` as root (Debian)".to_owned(),
            (Self::Gxx, _) => "`apt-get update && apt-get install g++` as root (Debian)".to_owned(),
            (Self::Unzip, _) => "`apt-get update && apt-get install unzip` as root (Debian)".to_owned(),
            (_, Ok(commands)) => commands.iter().map(shell::shown).collect::<Vec<_>>().join(" && "),
            (_, Err(error)) => error,
        }
    }
}

/// Returns true if the Rust compiler has the standard library of a target.
fn has_target(target: &str) -> bool {
    shell::output(command("rustc").args(["--print", "target-libdir", "--target", target]))
        .is_some_and(|folder| Path::new(&folder).is_dir())
}

/// Installs Chromium's headless shell, if possible. Not every Debian-like system packages it;
/// without it, tests use Chromium.
pub(crate) fn try_to_install_headless_shell() {
    if headless_shell().is_none() && can_install_packages() {
        // Installs all three together, because chromedriver only controls a shell of its version.
        let mut commands = apt_install(&["chromium", "chromium-driver", HEADLESS_SHELLS[0]]);
        if let Err(error) = commands.iter_mut().try_for_each(shell::run) {
            shell::print(&format!("tests use Chromium instead of its headless shell: {error}"));
        }
    }
}

/// Returns the path of a headless shell that chromedriver can control: it has chromedriver's
/// version.
pub(crate) fn headless_shell() -> Option<PathBuf> {
    let version = |name: &str| version_in(&shell::output(command(name).arg("--version"))?);
    let of_driver = version("chromedriver")?;
    let mut shells = HEADLESS_SHELLS.into_iter().filter_map(|name| Some((name, shell::find_program(name)?)));
    shells.find(|(name, _)| version(name).as_ref() == Some(&of_driver)).map(|(_, path)| path)
}

/// Returns the version in a line such as `ChromeDriver 156.0.8078.108 (730482a9)`.
fn version_in(line: &str) -> Option<String> {
    line.split_whitespace().find(|word| word.starts_with(|first: char| first.is_ascii_digit())).map(str::to_owned)
}

/// Returns true if Debian packages can be installed.
fn can_install_packages() -> bool {
    is_on_path("apt-get") && is_root()
}

/// Returns the commands that install Debian packages.
fn apt_install(packages: &[&str]) -> Vec<Command> {
    let apt_get = |arguments: &[&str]| {
        let mut apt_get = command("apt-get");
        apt_get.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        apt_get
    };
    let mut install = apt_get(&["install", "-y", "--no-install-recommends"]);
    install.args(packages);
    vec![apt_get(&["update"]), install]
}

/// Returns true if this process runs as root.
fn is_root() -> bool {
    shell::output(command("id").arg("-u")).as_deref() == Some("0")
}

/// Returns true if the browser of this name is installed. On macOS and Windows chromedriver finds
/// the browser, which is not on the PATH.
fn is_installed_browser(name: &str) -> bool {
    cfg!(any(target_os = "macos", windows)) || is_on_path(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn browser_and_its_driver_print_the_version_differently() {
        let version = Some("156.0.8078.108".to_owned());
        assert_eq!(version_in("ChromeDriver 156.0.8078.108 (730482a9-refs/branch-heads/8078@{#2244})"), version);
        assert_eq!(version_in("Chromium 156.0.8078.108 built on Debian GNU/Linux 12 (bookworm)"), version);
        assert_eq!(version_in("Google Chrome for Testing"), None);
    }
}
