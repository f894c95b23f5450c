//! The rules of the house that a program can check.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use vramscope_tests::fixtures::workspace_root;

/// Which of the house's crates each crate may import. A crate that is not here may import none.
const MAY_IMPORT: [(&str, &[&str]); 9] = [
    ("vramscope-pool", &["trace"]),
    ("vramscope-formats", &["trace", "pool"]),
    ("vramscope-collector", &["trace", "pool"]),
    ("vramscope-pluggable", &["trace", "pool", "collector"]),
    ("vramscope-demo", &["trace", "pool", "collector"]),
    ("vramscope-viewer", &["trace", "pool", "formats"]),
    ("vramscope", &["trace", "pool", "formats", "collector", "demo", "viewer"]),
    ("vramscope-tests", &["trace", "pool", "formats", "collector", "demo", "viewer"]),
    ("vramscope-fuzz", &["trace", "pool", "formats", "viewer"]),
];

/// A file of code with its path from the workspace's root, `/` between the parts.
struct Source {
    path: String,
    text: String,
}

impl Source {
    /// The lines with their numbers, without what stands behind `//`.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.text.lines().enumerate();
        lines.map(|(index, line)| (index + 1, line.split_once("//").map_or(line, |(code, _)| code)))
    }

    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    fn is_in(&self, folder: &str) -> bool {
        self.path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
    }

    /// `path:line` of each line of code that `offends`.
    fn offenses(&self, offends: impl Fn(&str) -> bool) -> Vec<String> {
        self.code().filter(|(_, code)| offends(code)).map(|(line, _)| format!("{}:{line}", self.path)).collect()
    }
}

/// Every file of code in the house; what is built or fetched is not.
fn sources() -> Vec<Source> {
    let mut sources = Vec::new();
    let mut folders = vec![workspace_root().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the checkout can be read").flatten() {
            let path = entry.path();
            let name = entry.file_name();
            let is_built = name == "target" || name == "pkg" || name.to_string_lossy().starts_with('.');
            if path.is_dir() && !is_built {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|extension| ["rs", "js", "html", "css"].iter().any(|code| extension == *code))
            {
                sources.push(Source { path: from_root(&path), text: fs::read_to_string(&path).expect("code is text") });
            }
        }
    }
    assert!(sources.len() > 20, "the walk has found the house");
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}

fn from_root(path: &Path) -> String {
    let path = path.strip_prefix(workspace_root()).unwrap_or(path);
    path.components().map(|part| part.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/")
}

fn packages() -> Vec<Value> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments = ["metadata", "--no-deps", "--format-version", "1", "--offline"];
    let output = Command::new(cargo).args(arguments).current_dir(workspace_root()).output().expect("cargo runs");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    metadata["packages"].as_array().expect("cargo metadata lists packages").clone()
}

/// The names of the dependencies of a package that its users get too.
fn dependencies(package: &Value) -> Vec<String> {
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    let shipped = dependencies.filter(|dependency| dependency["kind"] != "dev");
    shipped.filter_map(|dependency| dependency["name"].as_str().map(str::to_owned)).collect()
}

/// The source files that crates begin with.
fn crate_roots(package: &Value) -> BTreeSet<String> {
    let targets = package["targets"].as_array().into_iter().flatten();
    let shipped = targets.filter(|target| {
        let kinds = target["kind"].as_array().into_iter().flatten().filter_map(Value::as_str);
        kinds.into_iter().any(|kind| ["lib", "rlib", "cdylib", "bin"].contains(&kind))
    });
    shipped.filter_map(|target| Some(from_root(&PathBuf::from(target["src_path"].as_str()?)))).collect()
}

fn check(rule: &str, offenders: impl IntoIterator<Item = String>) {
    let offenders: Vec<String> = offenders.into_iter().collect();
    assert!(offenders.is_empty(), "{rule}; but:\n  {}", offenders.join("\n  "));
}

/// Whether `word` stands in `code` with no letter, digit or underscore on either side.
fn has_word(code: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

#[test]
fn crates_import_only_what_stands_below_them() {
    let packages = packages();
    let own: BTreeSet<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    let offenders = packages.iter().flat_map(|package| {
        let name = package["name"].as_str().unwrap_or_default();
        let allowed =
            MAY_IMPORT.iter().find(|(importer, _)| *importer == name).map_or(&[][..], |(_, allowed)| *allowed);
        let imports = dependencies(package).into_iter().filter(|import| own.contains(import.as_str()));
        let offends = |import: &String| !allowed.iter().any(|room| *import == format!("vramscope-{room}"));
        imports.filter(offends).map(|import| format!("{name} imports {import}")).collect::<Vec<_>>()
    });
    check("a crate imports only the crates that stand below it", offenders);
}

#[test]
fn every_crate_opens_with_what_it_is() {
    let roots = packages().iter().flat_map(crate_roots).collect::<Vec<_>>();
    assert!(roots.len() > 8, "cargo has named the crates' roots");
    let opens = |root: &String| {
        let text = fs::read_to_string(workspace_root().join(root)).expect("a crate's root can be read");
        text.starts_with("//! ")
    };
    check("a crate's root opens with what the crate is", roots.into_iter().filter(|root| !opens(root)));
}

#[test]
fn unsafe_is_forbidden_but_where_memory_and_c_are() {
    let is_bound = |root: &String| !["collector/", "crates/pluggable/"].iter().any(|room| root.starts_with(room));
    let roots = packages().iter().flat_map(crate_roots).filter(is_bound).collect::<Vec<_>>();
    let forbids = |root: &String| {
        let text = fs::read_to_string(workspace_root().join(root)).expect("a crate's root can be read");
        text.lines().any(|line| line == "#![forbid(unsafe_code)]")
    };
    check(
        "only the collector and the pluggable library may hold unsafe code",
        roots.into_iter().filter(|root| !forbids(root)),
    );
}

/// The lines of `text` at which something unsafe has no word on why it is sound in the lines above.
fn unexplained_unsafe(source: &Source) -> Vec<usize> {
    let lines: Vec<&str> = source.text.lines().collect();
    let is_unsafe = |code: &str| {
        ["unsafe {", "unsafe impl", "unsafe fn", "unsafe extern"].iter().any(|form| code.contains(form))
            && has_word(code, "unsafe")
    };
    let is_explained = |line: usize| {
        // An `unsafe fn` says it in its documentation, which may be longer than a comment.
        let reach = if lines[line - 1].contains("unsafe fn") { 20 } else { 5 };
        let above = &lines[line.saturating_sub(reach + 1)..line];
        above.iter().any(|line| line.contains("SAFETY:") || line.contains("# Safety"))
    };
    source.code().filter(|(line, code)| is_unsafe(code) && !is_explained(*line)).map(|(line, _)| line).collect()
}

#[test]
fn every_unsafe_says_who_guarantees_what() {
    let rust = sources().into_iter().filter(|source| source.is_rust() && !source.is_in("tests"));
    let offenders = rust
        .flat_map(|source| unexplained_unsafe(&source).into_iter().map(move |line| format!("{}:{line}", source.path)));
    check("every unsafe has a SAFETY comment above it", offenders);
}

#[test]
fn an_unexplained_unsafe_is_found() {
    let find = |text: &str| unexplained_unsafe(&Source { path: "x.rs".to_owned(), text: text.to_owned() });
    let no_lines: [usize; 0] = [];
    assert_eq!(find("let x = unsafe { f() };"), [1]);
    assert_eq!(find("// SAFETY: f has no conditions\nlet x = unsafe { f() };"), no_lines);
    assert_eq!(find("// says nothing\n\nunsafe impl Send for X {}"), [3]);
    assert_eq!(find("/// # Safety\n/// p is valid\nunsafe fn f(p: *const u8) {}"), no_lines);
    assert_eq!(find("// an unsafe { } in a comment"), no_lines);
}

#[test]
fn no_file_of_code_is_longer_than_500_lines() {
    let long = sources().into_iter().filter(|source| source.text.lines().count() > 500);
    check("a file has at most 500 lines", long.map(|source| source.path));
}

#[test]
fn markup_is_never_made_from_strings() {
    // Put together here, so that this file does not offend.
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
    check("text from outside is set as text, never parsed as markup", offenders);
}

#[test]
fn nothing_is_left_unfinished() {
    let marks = ["TO DO", "FIX ME", "XX X", "todo !", "unimplemented !", "dbg !"].map(|mark| mark.replace(' ', ""));
    let is_marked = |line: &str| marks.iter().any(|mark| line.contains(mark.as_str()));
    let offenders = sources().into_iter().flat_map(|source| {
        let marked = source.text.lines().enumerate().filter(|(_, line)| is_marked(line));
        marked.map(|(index, _)| format!("{}:{}", source.path, index + 1)).collect::<Vec<_>>()
    });
    check("what is committed is finished", offenders);
}

#[test]
fn pure_crates_read_no_clock_and_no_file_and_start_no_thread() {
    let outside =
        ["std::time", "std::fs", "std::net", "std::thread", "std::env", "std::process", "Instant::now", "SystemTime"];
    let pure = |source: &Source| {
        source.is_rust()
            && ["crates/trace/src", "crates/pool/src", "crates/formats/src"].iter().any(|folder| source.is_in(folder))
    };
    let offenders = sources()
        .into_iter()
        .filter(pure)
        .flat_map(|source| source.offenses(|code| outside.iter().any(|name| code.contains(name))));
    check("trace, pool and formats take what they need as arguments", offenders);
}

#[test]
fn only_the_viewers_outermost_module_touches_the_browser() {
    let is_outermost = |source: &Source| source.is_in("viewer/src/web") || source.path == "viewer/src/web.rs";
    let offenders = sources()
        .into_iter()
        .filter(|source| {
            source.is_rust() && !is_outermost(source) && !source.is_in("viewer/tests") && !source.is_in("tests")
        })
        .flat_map(|source| source.offenses(|code| has_word(code, "web_sys")));
    check("only the viewer's outermost module imports web_sys", offenders);
}

/// The targets of a text's links that lie in the checkout, without what stands behind `#`.
fn local_links(markdown: &str) -> Vec<&str> {
    let targets = markdown.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    let paths =
        targets.filter(|target| !target.contains("://")).map(|target| target.split('#').next().unwrap_or(target));
    paths.filter(|path| !path.is_empty()).collect()
}

#[test]
fn links_of_the_docs_lead_somewhere() {
    assert_eq!(local_links("[a](b.md#c) [d](https://e.f) ![g](h/i.png) [j](#k)"), ["b.md", "h/i.png"]);
    let folders = [workspace_root().to_owned(), workspace_root().join("docs")];
    let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).expect("the docs can be read").flatten());
    let broken = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "md"))
        .flat_map(|path| {
            let text = fs::read_to_string(&path).expect("docs are text");
            let folder = path.parent().unwrap_or(&path).to_owned();
            let lost = |link: &&str| !folder.join(link).exists();
            local_links(&text)
                .into_iter()
                .filter(lost)
                .map(|link| format!("{}: {link}", from_root(&path)))
                .collect::<Vec<_>>()
        });
    check("links of the docs lead somewhere", broken.collect::<Vec<_>>());
}

/// A file that `.gitignore` keeps out is here and in no clone: its tests would pass here alone.
#[test]
fn nothing_that_code_or_tests_need_is_ignored() {
    let arguments = ["ls-files", "--others", "--ignored", "--exclude-standard", "-z"];
    // The folders of code, so that what was built is not walked.
    let rooms = packages().into_iter().filter_map(|package| {
        let manifest = PathBuf::from(package["manifest_path"].as_str()?);
        Some(from_root(manifest.parent()?))
    });
    let folders =
        rooms.flat_map(|room| ["src", "tests", "data", "benches", "examples"].map(|of| format!("{room}/{of}")));
    let listed = Command::new("git").args(arguments).arg("--").args(folders).current_dir(workspace_root()).output();
    let Some(output) = listed.ok().filter(|output| output.status.success()) else {
        println!("SKIPPED: this is not a checkout of git's");
        return;
    };
    let listed = String::from_utf8(output.stdout).expect("paths of the house are text");
    check("a file in a folder of code is not ignored", listed.split_terminator('\0').map(str::to_owned));
}
