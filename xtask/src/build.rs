//! Builds the viewer for WebAssembly, the compressed page, and the binary that embeds it.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

use wasm_bindgen_cli_support::Bindgen;

use crate::import_names;
use crate::page::{self, Effort};
use crate::shell::{self, Result, cargo};
use crate::split::{self, Method, Split};
use crate::tools::{self, Tool};
use crate::workspace;

/// A cargo profile, defined in the workspace's `Cargo.toml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Profile {
    Dev,
    Release,
    /// Optimizes the WebAssembly of viewer, importer and fleet page for `Release`, for size.
    Page,
    /// Optimizes the analyzer's WebAssembly for `Release`, for speed.
    Analyzer,
    /// Compiles faster than `Release` and runs nearly as fast; `cargo xtask demo` uses it.
    Quick,
}

impl Profile {
    /// Returns cargo's arguments that select the profile.
    pub(crate) fn flags(self) -> Vec<String> {
        match self {
            Self::Dev => Vec::new(),
            Self::Release => vec!["--release".to_owned()],
            // With this low inline threshold, the page is 6 KB smaller than with 25, and drawing an
            // animation frame of the benchmark `big` takes up to 10% longer.
            Self::Page => wasm_flags("page", "'-Cllvm-args=-inline-threshold=0', "),
            Self::Analyzer => wasm_flags("analyzer", ""),
            Self::Quick => vec!["--profile=quick".to_owned()],
        }
    }

    /// Returns the name of the profile's folder below cargo's target folder.
    pub(crate) fn folder(self) -> &'static str {
        match self {
            Self::Dev => "debug",
            Self::Release => "release",
            Self::Page => "page",
            Self::Analyzer => "analyzer",
            Self::Quick => "quick",
        }
    }
}

/// Returns cargo's arguments for a profile of WebAssembly, with further flags of the compiler.
/// Panic messages contain no paths of this machine.
fn wasm_flags(profile: &str, rust_flags: &str) -> Vec<String> {
    let sources = registry_sources();
    vec![
        format!("--profile={profile}"),
        format!("--config=target.wasm32-unknown-unknown.rustflags=[{rust_flags}'--remap-path-prefix={sources}=']"),
    ]
}

/// Returns the folder in which cargo keeps the sources of dependencies.
fn registry_sources() -> String {
    let default = || std::env::home_dir().unwrap_or_default().join(".cargo");
    let home = std::env::var_os("CARGO_HOME").map_or_else(default, PathBuf::from);
    home.join("registry/src").to_string_lossy().into_owned()
}

/// Builds the page and the binary that embeds it, with all features. Returns the binary's path.
pub(crate) fn binary(profile: Profile) -> Result<PathBuf> {
    page(profile)?;
    shell::run(cargo().args(["build", "--package", "vramscope"]).args(profile.flags()))?;
    binary_path(profile)
}

/// A package of the page that is compiled to WebAssembly.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WasmModule {
    package: &'static str,
    /// The name of its generated files.
    name: &'static str,
    /// Its profile in a release.
    release_profile: Profile,
    /// Whether a release has a second module, which the page loads later.
    is_split: bool,
}

/// The page's modules.
const MODULES: [WasmModule; 4] = [
    WasmModule {
        package: "vramscope-viewer",
        name: "vramscope_viewer",
        release_profile: Profile::Page,
        is_split: true,
    },
    WasmModule {
        package: "vramscope-importer",
        name: "vramscope_importer",
        release_profile: Profile::Page,
        is_split: false,
    },
    WasmModule {
        package: "vramscope-analyzer",
        name: "vramscope_analyzer",
        release_profile: Profile::Analyzer,
        is_split: false,
    },
    WasmModule {
        package: "vramscope-fleet-page",
        name: "vramscope_fleet_page",
        release_profile: Profile::Page,
        is_split: false,
    },
];

impl WasmModule {
    /// Returns cargo's arguments that compile the module, with the development profile.
    ///
    /// The crate type is not in the package's Cargo.toml: native builds would link an unused
    /// library, which fails on Windows (mingw) for the number of symbols.
    pub(crate) fn build_arguments(self) -> [&'static str; 8] {
        ["rustc", "--package", self.package, "--lib", "--crate-type", "cdylib", "--target", tools::WASM_TARGET]
    }

    /// Generates the module's JavaScript from its WebAssembly, in the folder `pkg`.
    fn generate(self, profile: Profile, is_release: bool, pkg: &Path) -> Result<()> {
        let target = workspace::target_dir()?;
        let wasm = target.join(tools::WASM_TARGET).join(profile.folder()).join(self.name).with_extension("wasm");
        let generated = target.join("www-pkg").join(self.name);
        shell::print(&format!("$ wasm-bindgen --target web {}", wasm.display()));
        let is_split = is_release && self.is_split;
        let generate = || {
            Bindgen::new()
                .input_path(&wasm)
                .web(true)?
                .typescript(false)
                // Names of functions are a quarter of the file. The split removes them, too.
                .remove_name_section(profile != Profile::Dev && !is_split)
                .remove_producers_section(true)
                // Unlike the command, the library omits the wasm file's default path unless told
                // not to; the page's init() needs it.
                .omit_default_module_path(false)
                .generate(&generated)
        };
        generate().map_err(|error| format!("wasm-bindgen on {}: {error:#}", wasm.display()))?;
        if is_release {
            import_names::shorten(&generated, self.name).map_err(|error| error.to_string())?;
        }
        if self.is_split {
            self.split(&generated, is_release).map_err(|error| format!("{}: {error}", generated.display()))?;
        }
        copy_changed_files(&generated, pkg).map_err(|error| format!("{}: {error}", pkg.display()))
    }

    /// Splits the generated WebAssembly in `folder` in two files; if this is no release, the second
    /// one is an empty module.
    fn split(self, folder: &Path, is_release: bool) -> Result<()> {
        let path = folder.join(format!("{}_bg.wasm", self.name));
        let later_path = folder.join(format!("{}_later_bg.wasm", self.name));
        let text = |error: io::Error| error.to_string();
        if !is_release {
            return fs::write(later_path, EMPTY_MODULE).map_err(text);
        }
        let list = fs::read_to_string(workspace::root().join(VIEWS)).map_err(text)?;
        let first_views = first_views(&list);
        let wasm = fs::read(&path).map_err(text)?;
        let Split { first, later, moved } = split::split(&wasm, |name| view_method(name, &first_views), stays)?;
        shell::print(&format!("{}: {moved} functions are loaded later", self.name));
        fs::write(&path, first).map_err(text)?;
        fs::write(&later_path, later).map_err(text)
    }
}

/// A WebAssembly module without content.
const EMPTY_MODULE: &[u8] = b"\0asm\x01\0\0\0";

/// The list of the page's views.
const VIEWS: &str = "viewer/src/views/mod.rs";
/// The methods of a view that compute and draw. The viewer calls them only when they are loaded
/// (`Session::with_view`, `Session::pictured`), and all other methods at any time.
const LATER_METHODS: [&str; 10] =
    ["click", "content", "draw", "draw_highlights", "find_match", "hit", "hover", "rows", "update_picture", "work"];

/// Crates whose functions stay in the first module, because many run for every event or allocation:
/// sorting all allocations takes 1.6 times as long from the second module.
const STAYING_CRATES: [&str; 3] = ["vramscope_trace::", "vramscope_insight::", "vramscope_pool::"];

/// Returns true for the demangled name of a function of one of the [`STAYING_CRATES`].
fn stays(name: &str) -> bool {
    let name = name.trim_start_matches('<');
    STAYING_CRATES.iter().any(|path| name.starts_with(path))
}

/// Returns the modules of the views that a new session shows, from the [list of views](VIEWS).
fn first_views(list: &str) -> Vec<&str> {
    let entries = list.lines().filter_map(|line| line.trim_start().strip_prefix("first::<"));
    entries.filter_map(|entry| Some(entry.split_once("::")?.0)).collect()
}

/// Returns which method of a view a function is, by its name without hash.
fn view_method(name: &str, first_views: &[&str]) -> Option<Method> {
    if name.starts_with("vramscope_viewer::view::View::") {
        return Some(Method::Other);
    }
    let implementation = name.strip_prefix("<vramscope_viewer::views::")?;
    let (view, method) = implementation.split_once(" as vramscope_viewer::view::View>::")?;
    // A closure in a method: the compiler may have merged it with one of any other function.
    if method.contains("::") {
        return None;
    }
    let is_first = view.split_once("::").is_some_and(|(module, _)| first_views.contains(&module));
    Some(match method {
        "content" if is_first => Method::Unique,
        _ if is_first || !LATER_METHODS.contains(&method) => Method::Other,
        _ => Method::Later,
    })
}

/// Compiles the page's modules to WebAssembly in `www/pkg` and compresses the page into `www/dist`.
pub(crate) fn page(profile: Profile) -> Result<()> {
    Tool::WasmTarget.ensure()?;
    let is_release = profile == Profile::Release;
    let profile_of = |module: WasmModule| if is_release { module.release_profile } else { profile };
    let mut profiles = MODULES.map(profile_of).to_vec();
    profiles.sort();
    profiles.dedup();
    // Compiling a module as one unit ends with a minute on one core. Modules of different profiles
    // are compiled in parallel, because cargo locks a folder for each profile.
    shell::at_once(profiles, |profile| {
        let mut modules = MODULES.into_iter().filter(|module| profile_of(*module) == profile);
        modules.try_for_each(|module| shell::run(cargo().args(module.build_arguments()).args(profile.flags())))
    })?;
    generate_page(profile_of, is_release)
}

/// Builds the page with the development profile. `compile` compiles a module.
pub(crate) fn page_with(compile: impl FnMut(WasmModule) -> Result<()>) -> Result<()> {
    MODULES.into_iter().try_for_each(compile)?;
    generate_page(|_| Profile::Dev, false)
}

/// Generates the page from its compiled modules.
fn generate_page(profile_of: impl Fn(WasmModule) -> Profile + Sync, is_release: bool) -> Result<()> {
    let www = workspace::root().join("www");
    let pkg = &www.join("pkg");
    shell::at_once(MODULES, |module| module.generate(profile_of(module), is_release, pkg))?;
    let effort = if is_release { Effort::Smallest } else { Effort::Fast };
    page::compress(&www, effort).map_err(|error| format!("{}: {error}", www.display()))
}

/// Copies the files whose content differs, so that unchanged ones cause no rebuild.
fn copy_changed_files(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (bytes, copy) = (fs::read(entry.path())?, to.join(entry.file_name()));
        if fs::read(&copy).ok().as_ref() != Some(&bytes) {
            fs::write(&copy, bytes)?;
        }
    }
    Ok(())
}

/// Returns the path at which cargo puts the `vramscope` binary; it may not be built yet.
pub(crate) fn binary_path(profile: Profile) -> Result<PathBuf> {
    let name = format!("vramscope{}", env::consts::EXE_SUFFIX);
    Ok(workspace::target_dir()?.join(profile.folder()).join(name))
}

/// Builds the demo and replaces this process by it, so that it gets this process's stdout and
/// Ctrl-C. Returns only errors.
///
/// The demo is built without exports and TLS, which a first run does not need.
pub(crate) fn demo(arguments: &[&str]) -> Result<Infallible> {
    page(Profile::Quick)?;
    let build = ["build", "--package", "vramscope", "--no-default-features", "--features", "demo"];
    shell::run(cargo().args(build).args(Profile::Quick.flags()))?;
    let binary = binary_path(Profile::Quick)?;
    let mut demo = Command::new(&binary);
    demo.arg("demo").args(arguments);
    Err(format!("cannot run {}: {}", binary.display(), replace_process(demo)))
}

/// Replaces this process by the command. Returns only if that fails, with the error.
#[cfg(unix)]
fn replace_process(mut command: Command) -> io::Error {
    std::os::unix::process::CommandExt::exec(&mut command)
}

/// Runs the command and exits with its status. Returns only if the command cannot start, with the
/// error.
#[cfg(not(unix))]
fn replace_process(mut command: Command) -> io::Error {
    match command.status() {
        Ok(status) => std::process::exit(status.code().unwrap_or(1)),
        Err(error) => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_of_views_are_recognized() {
        let method = |view: &str, method: &str| {
            let name = format!("<vramscope_viewer::views::{view} as vramscope_viewer::view::View>::{method}");
            view_method(&name, &first_views("[\n    first::<sites::Sites>(),\n    later::<list::List>(),\n]"))
        };
        assert_eq!(method("sites::Sites", "content"), Some(Method::Unique));
        assert_eq!(method("sites::Sites", "draw"), Some(Method::Other));
        assert_eq!(method("list::List", "content"), Some(Method::Later));
        assert_eq!(method("list::List", "content::{{closure}}"), None);
        assert_eq!(method("list::List", "options"), Some(Method::Other));
        let other = |name: &str| view_method(name, &["sites"]);
        assert_eq!(other("vramscope_viewer::view::View::draw"), Some(Method::Other));
        assert_eq!(other("<vramscope_viewer::views::list::List as core::clone::Clone>::clone"), None);
        assert_eq!(other("vramscope_viewer::views::list::content"), None);
        assert!(stays("vramscope_insight::peak::explain_peak") && stays("<vramscope_trace::Recording>::series"));
        assert!(!stays("<vramscope_viewer::views::list::List as vramscope_viewer::view::View>::draw"));
    }
}
