//! Finds import cycles between the modules of a crate.
//!
//! A file depends on another if it names an item that the other defines, by a `use` declaration
//! or by a path in its code. Names are followed through re-exports to the file with the
//! definition. Declaring a child module, importing a module by its name and passing a name on
//! (`pub use`) are no dependencies. Methods are found by type, so calling one is none either.
//!
//! Two kinds of cycles are found:
//!
//! - Between siblings, modules with one parent ([`Scope::Siblings`]). A module stands for its own
//!   file and all files inside it. If `a.rs` names `b::B`, which `b/mod.rs` passes on from
//!   `b/inner.rs`, and `b/mod.rs` names `a::A`, then `a` and `b` form a cycle, although no two of
//!   the three files do. The parent, through which such paths lead, is not part of it.
//! - Between files, also of a module and a module inside it ([`Scope::All`]): the parent uses an
//!   item of its child, and the child one that the parent itself defines. A name that the parent
//!   only passes on counts for the file that defines it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::rust_source::{ModuleSource, parse};

/// A group of files or sibling modules that depend on each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cycle {
    /// The files, relative to the crate's folder, in alphabetical order. A sibling module is named
    /// by its own file.
    pub files: Vec<String>,
    /// `a.rs -> b.rs: Name, Name` for each pair within the group.
    pub links: Vec<String>,
}

struct Module {
    file: String,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    source: ModuleSource,
}

/// What a path leads to.
#[derive(Clone, Debug)]
enum Target {
    Module(usize),
    /// An item by its module and name.
    Item(usize, String),
}

/// Longest chain of re-exports that is followed.
const MAX_REEXPORTS: usize = 16;

/// The modules of one compilation unit: a library or a binary.
struct ModuleTree(Vec<Module>);

impl ModuleTree {
    fn read(crate_folder: &Path, root: &Path) -> Self {
        let mut tree = Self(Vec::new());
        let text = fs::read_to_string(root).unwrap_or_default();
        let source = parse(&text);
        let folder = root.parent().unwrap_or(crate_folder).to_owned();
        tree.add(crate_folder, &relative(crate_folder, root), &folder, None, source);
        tree
    }

    /// Adds a module and its children; the files of its children are in `folder`.
    fn add(
        &mut self,
        crate_folder: &Path,
        file: &str,
        folder: &Path,
        parent: Option<usize>,
        mut source: ModuleSource,
    ) -> usize {
        let index = self.0.len();
        let inline = std::mem::take(&mut source.inline_modules);
        let declared = source.file_modules.clone();
        let children = BTreeMap::new();
        self.0.push(Module { file: file.to_owned(), parent, children, source });
        for (name, source) in inline {
            let child = self.add(crate_folder, file, &folder.join(&name), Some(index), source);
            self.0[index].children.insert(name, child);
        }
        for name in declared {
            let candidates = [folder.join(format!("{name}.rs")), folder.join(&name).join("mod.rs")];
            let Some(path) = candidates.into_iter().find(|path| path.is_file()) else { continue };
            let source = parse(&fs::read_to_string(&path).unwrap_or_default());
            let file = relative(crate_folder, &path);
            let child = self.add(crate_folder, &file, &folder.join(&name), Some(index), source);
            self.0[index].children.insert(name, child);
        }
        index
    }

    fn resolve(&self, from: usize, path: &[String], budget: usize) -> Option<Target> {
        let budget = budget.checked_sub(1)?;
        let (first, rest) = path.split_first()?;
        let mut target = match first.as_str() {
            "crate" => Target::Module(0),
            "self" => Target::Module(from),
            "super" => Target::Module(self.0[from].parent?),
            name => self.lookup(from, name, !rest.is_empty(), budget)?,
        };
        for (index, name) in rest.iter().enumerate() {
            let is_qualifier = index + 1 < rest.len();
            target = match target {
                Target::Module(module) if name == "super" => Target::Module(self.0[module].parent?),
                Target::Module(module) => self.lookup(module, name, is_qualifier, budget)?,
                // A variant or an associated item: the item itself is what is used.
                item @ Target::Item(..) => return Some(item),
            };
        }
        Some(target)
    }

    /// Finds a name in a module's scope: its children, items and imports.
    ///
    /// A function may have the name of a module; before `::` the name means the module.
    fn lookup(&self, module: usize, name: &str, is_qualifier: bool, budget: usize) -> Option<Target> {
        let budget = budget.checked_sub(1)?;
        let scope = &self.0[module];
        if let Some(child) = scope.children.get(name).filter(|_| is_qualifier) {
            return Some(Target::Module(*child));
        }
        if scope.source.items.iter().any(|item| item == name) {
            return Some(Target::Item(module, name.to_owned()));
        }
        if let Some(child) = scope.children.get(name) {
            return Some(Target::Module(*child));
        }
        let imports = || scope.source.imports.iter();
        for import in imports().filter(|import| import.name.as_deref() == Some(name)) {
            // `use name::name` of another crate would look up itself.
            if import.path.first().is_some_and(|first| first == name) {
                continue;
            }
            if let Some(target) = self.resolve(module, &import.path, budget) {
                return Some(target);
            }
        }
        imports().filter(|import| import.name.is_none()).find_map(|import| {
            match self.resolve(module, &import.path, budget)? {
                Target::Module(globbed) if globbed != module => self.lookup(globbed, name, is_qualifier, budget),
                _ => None,
            }
        })
    }

    /// Returns the files of a module and of the modules that contain it, the root's first.
    fn files_above(&self, module: usize) -> Vec<&str> {
        let modules = std::iter::successors(Some(module), |module| self.0[*module].parent);
        let mut files: Vec<&str> = modules.map(|module| self.0[module].file.as_str()).collect();
        files.dedup();
        files.reverse();
        files
    }

    /// Returns the files of the two sibling modules that contain or are the given ones; `None` if
    /// one of these contains the other.
    fn siblings(&self, one: usize, other: usize) -> Option<(&str, &str)> {
        let files = (self.files_above(one), self.files_above(other));
        files.0.into_iter().zip(files.1).find(|(one, other)| one != other)
    }

    /// Adds every dependency between files with the names that make it.
    fn collect(&self, scope: Scope, links: &mut Links) {
        for (index, module) in self.0.iter().enumerate() {
            let used = module.source.imports.iter().filter(|import| !import.is_public);
            let imports = used.map(|import| (&import.path, import.name.is_none()));
            let paths = module.source.paths.iter().map(|path| (path, false));
            for (path, is_glob) in imports.chain(paths) {
                let (owner, name) = match self.resolve(index, path, MAX_REEXPORTS) {
                    Some(Target::Item(owner, name)) => (owner, name),
                    Some(Target::Module(owner)) if is_glob => (owner, "*".to_owned()),
                    _ => continue,
                };
                let files = match scope {
                    Scope::Siblings => self.siblings(index, owner),
                    Scope::All => Some((&*module.file, &*self.0[owner].file)).filter(|(from, to)| from != to),
                };
                if let Some((from, to)) = files {
                    links.entry((from.to_owned(), to.to_owned())).or_default().insert(name);
                }
            }
        }
    }
}

/// Which dependencies count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Dependencies between modules with one parent, each with all modules inside it.
    Siblings,
    /// Dependencies between single files, also those between a module and the modules inside it.
    All,
}

/// Names by the pair of files that they tie: the file that uses them, the file that defines them.
type Links = BTreeMap<(String, String), BTreeSet<String>>;

fn relative(folder: &Path, path: &Path) -> String {
    let path = path.strip_prefix(folder).unwrap_or(path);
    path.components().map(|part| part.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/")
}

/// Returns the root files of a crate: its library and its binaries.
fn roots(crate_folder: &Path) -> Vec<PathBuf> {
    let source = crate_folder.join("src");
    let mut roots = vec![source.join("lib.rs"), source.join("main.rs")];
    for entry in fs::read_dir(source.join("bin")).into_iter().flatten().flatten() {
        let path = entry.path();
        roots.push(if path.is_dir() { path.join("main.rs") } else { path });
    }
    roots.retain(|root| root.is_file());
    roots
}

/// Returns the dependencies in the crate in `crate_folder`.
fn links(crate_folder: &Path, scope: Scope) -> Links {
    let mut links = Links::new();
    for root in roots(crate_folder) {
        ModuleTree::read(crate_folder, &root).collect(scope, &mut links);
    }
    links
}

/// Returns `a.rs -> b.rs: Name, Name` for each pair of modules in `folder`, a folder of the crate
/// in `crate_folder`, of which the first imports from the second. Modules that contain one another
/// do not count.
#[must_use]
pub fn sibling_imports(crate_folder: &Path, folder: &str) -> Vec<String> {
    let is_inside = |file: &str| file.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
    let links = links(crate_folder, Scope::Siblings);
    links.iter().filter(|((from, to), _)| is_inside(from) && is_inside(to)).map(describe).collect()
}

/// Returns a dependency as text.
fn describe(((from, to), names): (&(String, String), &BTreeSet<String>)) -> String {
    format!("{from} -> {to}: {}", names.iter().cloned().collect::<Vec<_>>().join(", "))
}

/// Returns the import cycles in the crate in `crate_folder`.
#[must_use]
pub fn import_cycles(crate_folder: &Path, scope: Scope) -> Vec<Cycle> {
    cycles_of(&links(crate_folder, scope))
}

/// Returns the import cycles between the JavaScript files in `folder`. Imports on demand
/// (`import(…)`) count; the start of a worker does not.
#[must_use]
pub fn script_cycles(folder: &Path) -> Vec<Cycle> {
    const IMPORTS: [&str; 3] = [" from \"./", "import(\"./", "import \"./"];
    let mut links = Links::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let from = relative(folder, &entry.path());
        let text = if from.ends_with(".js") { fs::read_to_string(entry.path()).unwrap_or_default() } else { continue };
        let after_imports = IMPORTS.iter().flat_map(|import| text.split(import).skip(1));
        for to in after_imports.filter_map(|after| Some(after.split_once('"')?.0)) {
            links.entry((from.clone(), to.to_owned())).or_default().insert("import".to_owned());
        }
    }
    cycles_of(&links)
}

/// Returns the groups of files that depend on each other.
fn cycles_of(links: &Links) -> Vec<Cycle> {
    let mut cycles = Vec::new();
    let mut done = BTreeSet::new();
    let files: BTreeSet<&String> = links.keys().map(|(from, _)| from).collect();
    for file in files {
        if done.contains(file) {
            continue;
        }
        let ahead = reachable(links, file);
        let group: Vec<String> = ahead.iter().filter(|other| reachable(links, other).contains(file)).cloned().collect();
        done.extend(group.iter().cloned());
        if group.len() > 1 {
            let within = links.iter().filter(|((from, to), _)| group.contains(from) && group.contains(to));
            cycles.push(Cycle { links: within.map(describe).collect(), files: group });
        }
    }
    cycles
}

/// Returns the files that `file` depends on, directly or through others.
fn reachable(links: &Links, file: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![file.to_owned()];
    while let Some(from) = open.pop() {
        for (_, to) in links.keys().filter(|(other, _)| *other == from) {
            if found.insert(to.clone()) {
                open.push(to.clone());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a crate with these files.
    fn crate_of(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        for (name, text) in files {
            let path = folder.path().join("src").join(name);
            fs::create_dir_all(path.parent().expect("the path has a folder")).expect("the folder can be created");
            fs::write(path, text).expect("the file can be written");
        }
        folder
    }

    /// Returns the cycles of a crate with these files, as their file names.
    fn cycles(scope: Scope, files: &[(&str, &str)]) -> Vec<Vec<String>> {
        import_cycles(crate_of(files).path(), scope).into_iter().map(|cycle| cycle.files).collect()
    }

    #[track_caller]
    fn check(files: &[(&str, &str)], expected: &[&str]) {
        let expected: Vec<String> = expected.iter().map(|file| format!("src/{file}")).collect();
        let found = cycles(Scope::Siblings, files);
        assert_eq!(found.concat(), expected);
    }

    const LIB: (&str, &str) = ("lib.rs", "mod a;\nmod b;\npub use b::B;");

    #[test]
    fn one_way_imports_are_no_cycle() {
        check(&[LIB, ("a.rs", "use crate::b::B; pub struct A(B);"), ("b.rs", "pub struct B;")], &[]);
    }

    #[test]
    fn names_are_followed_through_reexports_and_aliases() {
        let a = ("a.rs", "use crate::B as Other; pub struct A(Option<Box<Other>>);");
        check(&[LIB, a, ("b.rs", "pub struct B(Box<super::a::A>);")], &["a.rs", "b.rs"]);
        check(&[LIB, a, ("b.rs", "use crate::a; pub struct B(Box<a::A>);")], &["a.rs", "b.rs"]);
        check(&[LIB, a, ("b.rs", "use super::a::*; pub struct B(Box<A>);")], &["a.rs", "b.rs"]);
    }

    #[test]
    fn cycles_may_be_longer_than_two_files() {
        let lib = ("lib.rs", "mod a;\nmod b;\nmod c;");
        let a = ("a.rs", "use crate::b::B; pub struct A;");
        let b = ("b.rs", "pub struct B; fn f() { crate::c::g(); }");
        let c = ("c/mod.rs", "pub mod d; pub fn g() { d::h(); }");
        check(&[lib, a, b, c, ("c/d.rs", "pub fn h() {}")], &[]);
        let d = ("c/d.rs", "pub fn h() { let _ = crate::a::A; }");
        check(&[lib, a, b, c, d], &["a.rs", "b.rs", "c/mod.rs"]);
        check(&[lib, a, b, ("c.rs", "pub fn g() { let _ = crate::a::A; }")], &["a.rs", "b.rs", "c.rs"]);
    }

    #[test]
    fn sibling_module_stands_for_the_modules_inside_it() {
        let lib = ("lib.rs", "mod views;");
        let inner = ("views/list/cache.rs", "pub struct Cache;");
        let list =
            ("views/list/mod.rs", "mod cache; pub use cache::Cache; use super::caches::Caches; fn f(_: Caches) {}");
        let caches = ("views/caches.rs", "use super::list::Cache; pub struct Caches(Cache);");
        let views = ("views/mod.rs", "mod caches;\nmod list; use caches::Caches; fn f(_: Caches) { list::f(); }");
        check(&[lib, views, list, inner, caches], &["views/caches.rs", "views/list/mod.rs"]);
        let list = ("views/list/mod.rs", "mod cache; pub use cache::Cache; pub fn f() {}");
        check(&[lib, views, list, inner, caches], &[]);
        let inner = ("views/list/cache.rs", "pub struct Cache(Box<crate::views::caches::Caches>);");
        check(&[lib, views, list, inner, caches], &["views/caches.rs", "views/list/mod.rs"]);
    }

    #[test]
    fn tests_comments_and_module_imports_are_no_dependency() {
        let b = "use super::a;\n// crate::a::A\n#[cfg(test)]\nmod tests { use crate::a::A; }\npub struct B;";
        check(&[LIB, ("a.rs", "use crate::B; pub struct A;"), ("b.rs", b)], &[]);
    }

    #[test]
    fn function_with_the_name_of_a_module_is_no_qualifier() {
        let lib = ("lib.rs", "mod a;\nmod b; use a::A; fn b() -> A { A }");
        let files = [lib, ("a.rs", "use crate::b::B; pub struct A;"), ("b.rs", "pub struct B;")];
        assert!(cycles(Scope::All, &files).is_empty());
    }

    #[test]
    fn imports_between_the_modules_of_a_folder_are_found() {
        let files = [
            ("main.rs", "mod commands;\nmod table;\nfn main() { commands::a::run(); }"),
            ("commands/mod.rs", "pub mod a;\npub mod b;"),
            ("commands/a.rs", "use crate::table::T;\npub fn run() { super::b::helper(T); }"),
            ("commands/b.rs", "pub fn helper(_: crate::table::T) {}"),
            ("table.rs", "pub struct T;"),
        ];
        let found = sibling_imports(crate_of(&files).path(), "src/commands");
        assert_eq!(found, ["src/commands/a.rs -> src/commands/b.rs: helper"]);
    }

    #[test]
    fn scripts_import_each_other_at_once_or_on_demand() {
        let folder = crate_of(&[
            ("a.js", "import { b } from \"./b.js\";\nimport \"./c.js\";\nnew Worker(\"./d.js\");"),
            ("b.js", "export const b = () => import(\"./a.js\");"),
            ("c.js", "export const c = 1;"),
            ("d.js", "import \"./a.js\";"),
        ]);
        let cycles = script_cycles(&folder.path().join("src"));
        assert_eq!(cycles.into_iter().map(|cycle| cycle.files).collect::<Vec<_>>(), [["a.js", "b.js"]]);
    }

    #[test]
    fn parent_and_child_count_only_in_the_wide_scope() {
        let files = [("lib.rs", "mod a; pub struct L(a::A);"), ("a.rs", "pub struct A(Option<Box<super::L>>);")];
        assert!(cycles(Scope::Siblings, &files).is_empty());
        assert_eq!(cycles(Scope::All, &files), [["src/a.rs", "src/lib.rs"]]);
        let files = [LIB, ("a.rs", "pub struct A(super::B);"), ("b.rs", "pub struct B;")];
        assert!(cycles(Scope::All, &files).is_empty());
    }
}
