//! The rules for code and texts that a program can check.
//!
//! The environment variable `VRAMSCOPE_RULES_ROOT` names another checkout to check instead.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use vramscope_tests::fixtures;
use vramscope_tests::rules::{
    Cycle, Language, MAX_CODE_COLUMNS, MAX_PROSE_COLUMNS, Scope, contains_word, import_cycles, long_lines, riddles,
    script_cycles, sibling_imports,
};

/// Packages that are not published.
const PRIVATE: [&str; 5] =
    ["vramscope-fleet-page", "vramscope-tests", "vramscope-fuzz", "vramscope-ring-model", "xtask"];

/// Most lines of a file of code.
const MAX_FILE_LINES: usize = 500;

/// `README.md` has fewer lines than this.
const MAX_README_LINES: usize = 150;

/// A file of code or prose.
struct Source {
    /// The path from the root of the checkout, with `/` between its parts.
    path: String,
    text: String,
}

/// Returns the root of the checkout that is checked.
fn root() -> PathBuf {
    env::var_os("VRAMSCOPE_RULES_ROOT").map_or_else(|| fixtures::workspace_root().to_owned(), PathBuf::from)
}

impl Source {
    /// Iterates over the numbered lines, each cut off at its first `//`.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.text.lines().enumerate();
        lines.map(|(index, line)| (index + 1, line.split_once("//").map_or(line, |(code, _)| code)))
    }

    fn is_code(&self) -> bool {
        ["rs", "js", "html", "css"].iter().any(|end| self.path.rsplit_once('.').is_some_and(|(_, is)| is == *end))
    }

    /// Returns true for a file that only tests use.
    fn is_test(&self) -> bool {
        self.path.ends_with("/tests.rs") || self.path.contains("/tests/")
    }

    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    fn is_in(&self, folder: &str) -> bool {
        self.path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
    }

    /// Returns `path:line` for each line of code that `offends`.
    fn offenses(&self, offends: impl Fn(&str) -> bool) -> Vec<String> {
        self.code().filter(|(_, code)| offends(code)).map(|(line, _)| format!("{}:{line}", self.path)).collect()
    }
}

/// Returns every file of code and prose, in order of path, without what is built or downloaded.
fn files() -> Vec<Source> {
    let mut sources = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the checkout is readable").flatten() {
            let path = entry.path();
            let name = entry.file_name();
            let is_built = name == "target" || name == "pkg" || name.to_string_lossy().starts_with('.');
            if path.is_dir() && !is_built {
                folders.push(path);
            } else if path.is_file() && Language::of(&name.to_string_lossy()).is_some() {
                let text = fs::read_to_string(&path).expect("code and prose are UTF-8");
                sources.push(Source { path: from_root(&path), text });
            }
        }
    }
    assert!(sources.len() > 20, "only {} files found", sources.len());
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}

/// Returns every file of code.
fn sources() -> Vec<Source> {
    files().into_iter().filter(Source::is_code).collect()
}

/// Returns a path relative to the root, with `/` between its parts.
fn from_root(path: &Path) -> String {
    let root = root();
    let path = path.strip_prefix(&root).unwrap_or(path);
    path.components().map(|part| part.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/")
}

/// Returns the workspace's packages as `cargo metadata` describes them.
fn packages() -> Vec<Value> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments = ["metadata", "--no-deps", "--format-version", "1", "--offline"];
    let output = Command::new(cargo).args(arguments).current_dir(root()).output().expect("cargo starts");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    metadata["packages"].as_array().expect("cargo metadata lists packages").clone()
}

/// Returns the names of a package's dependencies, without those for development.
fn dependencies(package: &Value) -> Vec<String> {
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    let shipped = dependencies.filter(|dependency| dependency["kind"] != "dev");
    shipped.filter_map(|dependency| dependency["name"].as_str().map(str::to_owned)).collect()
}

/// Returns the root files of a package's libraries and binaries.
fn crate_roots(package: &Value) -> BTreeSet<String> {
    let targets = package["targets"].as_array().into_iter().flatten();
    let shipped = targets.filter(|target| {
        let kinds = target["kind"].as_array().into_iter().flatten().filter_map(Value::as_str);
        kinds.into_iter().any(|kind| ["lib", "rlib", "cdylib", "bin"].contains(&kind))
    });
    shipped.filter_map(|target| Some(from_root(&PathBuf::from(target["src_path"].as_str()?)))).collect()
}

/// Returns a file's text.
fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Fails with the rule and everything that breaks it.
#[track_caller]
fn check(rule: &str, offenders: impl IntoIterator<Item = String>) {
    let offenders: Vec<String> = offenders.into_iter().collect();
    assert!(offenders.is_empty(), "{rule}; {} offenders:\n  {}", offenders.len(), offenders.join("\n  "));
}

/// Reads which crates each crate may import from the code map in the text of ARCHITECTURE.md.
fn may_import(text: &str) -> BTreeMap<&str, Vec<&str>> {
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    let columns = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    columns.map(|columns| (columns[2], columns[4].split(", ").collect())).collect()
}

#[test]
fn crates_import_only_the_crates_they_may() {
    let packages = packages();
    let own: BTreeSet<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    let code_map = read("ARCHITECTURE.md");
    let allowed = may_import(&code_map);
    let offenders = packages.iter().flat_map(|package| {
        let name = package["name"].as_str().unwrap_or_default();
        let allowed = allowed.get(name).cloned().unwrap_or_default();
        let imports = dependencies(package).into_iter().filter(|import| own.contains(import.as_str()));
        let offends = |import: &String| !allowed.contains(&import.trim_start_matches("vramscope-"));
        imports.filter(offends).map(|import| format!("{name} imports {import}")).collect::<Vec<_>>()
    });
    check("a crate imports only the crates that ARCHITECTURE.md lists for it", offenders);
    let is_crate = |name: &&str| *name == "—" || own.contains(*name) || own.contains(&*format!("vramscope-{name}"));
    let listed = allowed.into_iter().flat_map(|(name, imports)| [vec![name], imports].concat());
    let unknown = listed.filter(|name| !is_crate(name)).map(str::to_owned);
    check("ARCHITECTURE.md lists only crates of the workspace", unknown);
}

#[test]
fn every_crate_root_starts_with_its_documentation() {
    let roots = packages().iter().flat_map(crate_roots).collect::<Vec<_>>();
    assert!(roots.len() > 8, "cargo metadata names the root files");
    let is_documented = |file: &String| read(file).starts_with("//! ");
    check("a crate's root starts with its documentation", roots.into_iter().filter(|file| !is_documented(file)));
}

#[test]
fn unsafe_code_is_forbidden_outside_collector_demo_and_libraries_for_pytorch() {
    let unbound = ["collector/", "crates/demo/", "crates/pluggable/", "crates/hook/"];
    let is_bound = |file: &String| !unbound.iter().any(|folder| file.starts_with(folder));
    let roots = packages().iter().flat_map(crate_roots).filter(is_bound).collect::<Vec<_>>();
    let forbids = |file: &String| read(file).lines().any(|line| line == "#![forbid(unsafe_code)]");
    check(
        "only the collector, the demo's kernels and the libraries inside PyTorch's process may contain unsafe code",
        roots.into_iter().filter(|file| !forbids(file)),
    );
}

/// Returns the lines with `unsafe` that have no `SAFETY` comment shortly above.
fn unexplained_unsafe(source: &Source) -> Vec<usize> {
    let lines: Vec<&str> = source.text.lines().collect();
    let is_unsafe = |code: &str| {
        ["unsafe {", "unsafe impl", "unsafe fn", "unsafe extern"].iter().any(|form| code.contains(form))
            && contains_word(code, "unsafe")
    };
    let is_explained = |line: usize| {
        // The documentation of an `unsafe fn` may be longer than a comment.
        let reach = if lines[line - 1].contains("unsafe fn") { 20 } else { 5 };
        let above = &lines[line.saturating_sub(reach + 1)..line];
        above.iter().any(|line| line.contains("SAFETY:") || line.contains("# Safety"))
    };
    source.code().filter(|(line, code)| is_unsafe(code) && !is_explained(*line)).map(|(line, _)| line).collect()
}

#[test]
fn every_unsafe_block_has_a_safety_comment() {
    let rust = sources().into_iter().filter(|source| source.is_rust() && !source.is_in("tests"));
    let offenders = rust
        .flat_map(|source| unexplained_unsafe(&source).into_iter().map(move |line| format!("{}:{line}", source.path)));
    check("every unsafe has a SAFETY comment above it", offenders);
}

#[test]
fn unsafe_block_without_safety_comment_is_found() {
    let find = |text: &str| unexplained_unsafe(&Source { path: "x.rs".to_owned(), text: text.to_owned() });
    let no_lines: [usize; 0] = [];
    assert_eq!(find("let x = unsafe { f() };"), [1]);
    assert_eq!(find("// SAFETY: f has no conditions\nlet x = unsafe { f() };"), no_lines);
    assert_eq!(find("// about X\n\nunsafe impl Send for X {}"), [3]);
    assert_eq!(find("/// # Safety\n/// p is valid\nunsafe fn f(p: *const u8) {}"), no_lines);
    assert_eq!(find("// an unsafe { } in a comment"), no_lines);
}

#[test]
fn files_of_code_have_at_most_500_lines() {
    let long = sources().into_iter().filter(|source| source.text.lines().count() > MAX_FILE_LINES);
    check("a file of code has at most 500 lines", long.map(|source| source.path));
}

#[test]
fn markup_is_never_made_from_strings() {
    // Assembled here, so that this file passes.
    let forbidden = [
        "inner HTML",
        "outer HTML",
        "insertAdjacent HTML",
        "document.wri te",
        "set_inner _html",
        "insert_adjacent _html",
    ]
    .map(|name| name.replace(' ', ""));
    let offenders = sources()
        .into_iter()
        .flat_map(|source| source.offenses(|code| forbidden.iter().any(|name| code.contains(name.as_str()))));
    check("text from outside is set as text and never parsed as markup", offenders);
}

#[test]
fn no_unfinished_code_is_committed() {
    let marks = ["TO DO", "FIX ME", "XX X", "todo !", "unimplemented !", "dbg !"].map(|mark| mark.replace(' ', ""));
    let is_marked = |line: &str| marks.iter().any(|mark| line.contains(mark.as_str()));
    let offenders = sources().into_iter().flat_map(|source| {
        let marked = source.text.lines().enumerate().filter(|(_, line)| is_marked(line));
        marked.map(|(index, _)| format!("{}:{}", source.path, index + 1)).collect::<Vec<_>>()
    });
    check("committed code is finished", offenders);
}

#[test]
fn pure_crates_use_no_clock_files_or_threads() {
    let outside =
        ["std::time", "std::fs", "std::net", "std::thread", "std::env", "std::process", "Instant::now", "SystemTime"];
    let pure = |source: &Source| {
        source.is_rust()
            && ["crates/trace/src", "crates/pool/src", "crates/formats/src", "crates/insight/src"]
                .iter()
                .any(|folder| source.is_in(folder))
    };
    let offenders = sources()
        .into_iter()
        .filter(pure)
        .flat_map(|source| source.offenses(|code| outside.iter().any(|name| code.contains(name))));
    check("trace, pool, formats and insight take clocks, files and threads as arguments", offenders);
}

#[test]
fn only_the_modules_of_the_browser_use_web_sys() {
    let is_web_module = |source: &Source| {
        ["viewer/src/web", "crates/fleet-page/src/web"].iter().any(|folder| source.is_in(folder))
            || ["viewer/src/web.rs", "crates/importer/src/worker.rs"].contains(&&*source.path)
    };
    let offenders = sources()
        .into_iter()
        .filter(|source| {
            source.is_rust() && !is_web_module(source) && !source.is_in("viewer/tests") && !source.is_in("tests")
        })
        .flat_map(|source| source.offenses(|code| contains_word(code, "web_sys")));
    check("only the web modules of viewer and fleet page and the importer's worker use web_sys", offenders);
}

/// Returns the targets of a document's links into the checkout, without their fragments.
fn local_links(markdown: &str) -> Vec<&str> {
    let targets = markdown.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    let paths =
        targets.filter(|target| !target.contains("://")).map(|target| target.split('#').next().unwrap_or(target));
    paths.filter(|path| !path.is_empty()).collect()
}

#[test]
fn links_in_documents_have_targets() {
    assert_eq!(local_links("[a](b.md#c) [d](https://e.f) ![g](h/i.png) [j](#k)"), ["b.md", "h/i.png"]);
    let folders = [root().to_owned(), root().join("docs")];
    let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).expect("the documents are readable").flatten());
    let broken = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "md"))
        .flat_map(|path| {
            let text = fs::read_to_string(&path).expect("documents are UTF-8");
            let folder = path.parent().unwrap_or(&path).to_owned();
            let is_broken = |link: &&str| !folder.join(link).exists();
            local_links(&text)
                .into_iter()
                .filter(is_broken)
                .map(|link| format!("{}: {link}", from_root(&path)))
                .collect::<Vec<_>>()
        });
    check("links in documents have targets", broken.collect::<Vec<_>>());
}

/// An ignored file exists here but in no clone: its tests would pass here alone.
#[test]
fn no_file_of_a_crate_is_ignored_by_git() {
    let arguments = ["ls-files", "--others", "--ignored", "--exclude-standard", "-z"];
    // Only the folders of code, not those of build outputs.
    let folders = crate_folders()
        .into_iter()
        .flat_map(|at| ["src", "tests", "data", "benches", "examples"].map(|name| format!("{at}/{name}")));
    let listed = Command::new("git").args(arguments).arg("--").args(folders).current_dir(root()).output();
    let Some(output) = listed.ok().filter(|output| output.status.success()) else {
        println!("SKIPPED: not a git checkout");
        return;
    };
    let listed = String::from_utf8(output.stdout).expect("paths are UTF-8");
    check("no file of a crate is ignored by git", listed.split_terminator('\0').map(str::to_owned));
}

/// Returns the folders with a crate, relative to the root.
fn crate_folders() -> Vec<String> {
    let manifests = packages().into_iter().filter_map(|package| {
        let manifest = PathBuf::from(package["manifest_path"].as_str()?);
        Some(from_root(manifest.parent()?))
    });
    let mut folders: Vec<String> = manifests.collect();
    folders.sort();
    folders
}

/// Returns a text for a cycle in `folder`: its files, and lines with the names that make it.
fn describe(folder: &str, cycle: &Cycle) -> String {
    format!("{folder}: {}\n      {}", cycle.files.join(", "), cycle.links.join("\n      "))
}

/// Returns a text for each import cycle of the workspace.
fn cycles(scope: Scope) -> Vec<String> {
    let in_crate = |folder: String| {
        let cycles = import_cycles(&root().join(&folder), scope);
        cycles.into_iter().map(move |cycle| describe(&folder, &cycle))
    };
    crate_folders().into_iter().flat_map(in_crate).collect()
}

/// On commit 98e7b02 this reports 16 cycles.
#[test]
fn imports_between_sibling_modules_form_no_cycle() {
    check("imports between sibling modules form no cycle", cycles(Scope::Siblings));
}

/// On commit 98e7b02 this reports 22 groups.
#[test]
fn imports_between_files_form_no_cycle() {
    check("imports between the files of a crate form no cycle", cycles(Scope::All));
}

#[test]
fn imports_between_scripts_form_no_cycle() {
    let cycles = ["www", "www/fleet"]
        .into_iter()
        .flat_map(|folder| script_cycles(&root().join(folder)).into_iter().map(move |cycle| describe(folder, &cycle)));
    check("imports between the page's scripts form no cycle", cycles);
}

#[test]
fn commands_do_not_import_each_other() {
    let found = sibling_imports(&root().join("crates/cli"), "src/commands");
    check("a module of crates/cli/src/commands imports no other; what they share is beside the folder", found);
}

#[test]
fn only_the_list_of_views_names_a_view() {
    let folders = fs::read_dir(root().join("viewer/src/views")).expect("the folder exists").flatten();
    let names: Vec<String> = folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    let named = files().into_iter().filter(|file| file.path.starts_with("viewer/src/")).flat_map(|file| {
        let others = names.iter().filter(|name| !file.path.contains(&format!("/views/{name}/")));
        let found = others.filter(|name| file.text.contains(&format!("views::{name}::")));
        found.map(|name| format!("{}: {name}", file.path)).collect::<Vec<_>>()
    });
    check("viewer/src/views/mod.rs alone imports from the folder of a view", named.collect::<Vec<_>>());
}

#[test]
fn lines_are_short_enough() {
    let long = files().into_iter().flat_map(|file| {
        let language = Language::of(&file.path).expect("only files of a known language are listed");
        let lines = long_lines(&file.text, language);
        lines.into_iter().map(move |line| format!("{}:{line}", file.path))
    });
    check(
        &format!("prose and comments have at most {MAX_PROSE_COLUMNS} columns, code {MAX_CODE_COLUMNS}"),
        long.collect::<Vec<_>>(),
    );
}

#[test]
fn readme_is_short_enough() {
    let lines = read("README.md").lines().count();
    assert!(lines < MAX_README_LINES, "README.md has {lines} lines; fewer than {MAX_README_LINES} are allowed");
}

#[test]
fn texts_name_who_acts() {
    let found = files().into_iter().flat_map(|file| {
        let language = Language::of(&file.path).expect("only files of a known language are listed");
        riddles(&file.text, language).into_iter().map(move |found| format!("{}:{found}", file.path))
    });
    check("comments, strings and documents name who acts; docs/style.md explains", found.collect::<Vec<_>>());
}

/// Returns the lines of a library's source that print, without its tests.
fn printing_lines(source: &Source) -> Vec<usize> {
    let macros = ["print", "println", "eprint", "eprintln", "dbg"].map(|name| format!("{name}!"));
    let code = source.code().take_while(|(_, line)| line.trim() != "#[cfg(test)]");
    let is_printing = |line: &str| {
        macros.iter().any(|print| {
            line.match_indices(print.as_str()).any(|(at, _)| {
                !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') && !line[..at].contains('"')
            })
        })
    };
    code.filter(|(_, line)| is_printing(line)).map(|(line, _)| line).collect()
}

#[test]
fn libraries_never_print() {
    let crates = ["trace", "pool", "formats", "demo", "draw", "report"].map(|name| format!("crates/{name}/src"));
    let is_in_library = |source: &Source| {
        crates.iter().map(String::as_str).chain(["collector/src", "viewer/src"]).any(|folder| source.is_in(folder))
    };
    let is_library = |source: &Source| source.is_rust() && !source.is_test() && is_in_library(source);
    let found = sources()
        .into_iter()
        .filter(is_library)
        .flat_map(|source| printing_lines(&source).into_iter().map(move |line| format!("{}:{line}", source.path)));
    check("a library reports through tracing and errors, and never prints", found.collect::<Vec<_>>());
}

#[test]
fn printing_is_found() {
    let find = |text: &str| printing_lines(&Source { path: "x.rs".to_owned(), text: text.to_owned() });
    assert_eq!(find("println!(\"x\");"), [1]);
    assert_eq!(find("let x = 1;\n    eprint!(\"x\");"), [2]);
    let no_lines: [usize; 0] = [];
    assert_eq!(find("// println!()\nmy_println!()"), no_lines);
    assert_eq!(find("#[cfg(test)]\nmod tests { println!() }"), no_lines);
}

/// Returns the metadata that a package lacks for publishing.
fn missing_metadata(package: &Value) -> Vec<&'static str> {
    let is_missing = |key: &&str| match &package[*key] {
        Value::String(text) => text.is_empty(),
        Value::Array(entries) => entries.is_empty(),
        _ => true,
    };
    let keys = ["description", "license", "repository", "keywords", "categories", "readme", "documentation"];
    let mut missing: Vec<&str> = keys.into_iter().filter(is_missing).collect();
    // `publish = false` is an empty list of registries.
    if package["publish"].as_array().is_some_and(Vec::is_empty) {
        missing.push("publish");
    }
    missing
}

#[test]
fn public_crates_have_complete_metadata() {
    let packages = packages();
    let public = packages.iter().filter(|package| !PRIVATE.iter().any(|name| package["name"] == *name));
    let incomplete = public.filter_map(|package| {
        let missing = missing_metadata(package);
        (!missing.is_empty()).then(|| format!("{}: {}", package["name"], missing.join(", ")))
    });
    check("a public crate has all metadata for publishing", incomplete.collect::<Vec<_>>());
}

#[test]
fn missing_metadata_is_named() {
    let package = serde_json::json!({
        "description": "Reads recordings.", "license": "MIT", "repository": "https://example.org", "keywords": [],
        "categories": ["memory-management"], "readme": null, "publish": [],
    });
    assert_eq!(missing_metadata(&package), ["keywords", "readme", "documentation", "publish"]);
}
