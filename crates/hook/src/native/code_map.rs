//! The code of all loaded libraries, with the tables to unwind frames in it.
//!
//! A map is never changed or freed, so that the tracker can read the current map without a lock
//! while the follower replaces it. Later maps share the descriptions of libraries. Unwind tables
//! are read from the library's file, so that they stay readable when the library is unloaded.

use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use vramscope_collector::session::lifecycle::ProcessMutex;

use super::sections::{Section, read_sections};
use crate::loader::{LoadedLibrary, ProgramHeader, change_count, visit_libraries};
use framehop::x86_64::UnwinderX86_64;
use framehop::{ExplicitModuleSectionInfo, Module, MustNotAllocateDuringUnwind, Unwinder as _};

/// The unwinder of framehop, which allocates nothing while it unwinds.
pub(super) type Unwinder = UnwinderX86_64<&'static [u8], MustNotAllocateDuringUnwind>;

/// Maximum number of code maps in a process; then libraries loaded later remain unknown. A map
/// takes some ten kilobytes; a program loads most of its libraries before it uses a GPU.
const MAX_MAPS: usize = 256;
/// Interval at which the follower checks for newly loaded libraries.
const INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which the follower checks for newly loaded libraries after a frame was in unknown
/// code.
const UNKNOWN_CODE_INTERVAL: Duration = Duration::from_millis(50);

/// Which library some code belongs to: this one, the Python interpreter, or another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CodeKind {
    /// This library, whose frames are not shown.
    Own,
    /// The Python interpreter, in place of whose frames the Python frames are shown.
    Interpreter,
    Other,
}

/// The file of a library that is or was loaded in this process.
#[derive(Debug)]
pub(super) struct LibraryFile {
    pub(super) path: PathBuf,
    /// Load address: the difference between addresses in memory and in the file.
    pub(super) base: u64,
    code: Vec<Range<u64>>,
    pub(super) kind: CodeKind,
    program_headers: Vec<ProgramHeader>,
    /// The symbol table and its names, read at their first use.
    symbols: OnceLock<[Section; 2]>,
}

impl LibraryFile {
    /// Returns the bytes of the symbol table and of its names: of `.symtab`, or of `.dynsym` if the
    /// library was stripped. Both are empty if the file cannot be read.
    pub(super) fn symbols(&self) -> [&'static [u8]; 2] {
        let read = || {
            let names = [".symtab", ".strtab", ".dynsym", ".dynstr"];
            let sections = read_sections(&self.path, &self.program_headers, names).unwrap_or_default();
            let [symbols, names, dynamic_symbols, dynamic_names] = sections;
            if symbols.bytes.is_empty() { [dynamic_symbols, dynamic_names] } else { [symbols, names] }
        };
        self.symbols.get_or_init(read).map(|section| section.bytes)
    }

    /// Returns true if `address` is in the library's code.
    pub(super) fn contains(&self, address: u64) -> bool {
        self.code.iter().any(|range| range.contains(&address))
    }
}

/// The code of all loaded libraries at one moment.
pub(super) struct CodeMap {
    pub(super) unwinder: Unwinder,
    /// Start, end and kind of each range of code, in order of address.
    ranges: Vec<(u64, u64, CodeKind)>,
}

impl CodeMap {
    /// Returns the kind of the code at an address; `None` if no known library has code there.
    #[inline]
    pub(super) fn kind(&self, address: u64) -> Option<CodeKind> {
        let after = self.ranges.partition_point(|&(start, ..)| start <= address);
        let &(_, end, kind) = self.ranges.get(after.checked_sub(1)?)?;
        (address < end).then_some(kind)
    }
}

/// The map that the tracker uses; null until [`enable`] is called.
static CURRENT: AtomicPtr<CodeMap> = AtomicPtr::new(ptr::null_mut());
/// True if the tracker has found a frame in code that the map does not have, since the last check
/// for new libraries.
static HAS_UNKNOWN_CODE: AtomicBool = AtomicBool::new(false);
/// All libraries that are or were loaded; `None` until [`enable`] is called.
pub(super) static LIBRARIES: ProcessMutex<Option<Libraries>> = ProcessMutex::new();

/// All libraries that are or were loaded, and the state of the search for new ones.
pub(super) struct Libraries {
    /// Address of a function of the Python interpreter, if there is one.
    interpreter: Option<u64>,
    known: Vec<(&'static LibraryFile, Option<Module<&'static [u8]>>)>,
    changes: u64,
    checked: Instant,
    maps: usize,
}

/// Returns the current map.
#[inline]
pub(super) fn current() -> Option<&'static CodeMap> {
    // SAFETY: The pointer is null or that of a map, which is never freed and never changed.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

/// Tells the follower that a frame is in code that the map does not have.
pub(super) fn report_unknown_code() {
    HAS_UNKNOWN_CODE.store(true, Ordering::Relaxed);
}

/// Returns the library whose code contains `address`, loaded now or earlier, the latest one first;
/// `None` if there is none.
pub(super) fn find_library(address: u64) -> Option<&'static LibraryFile> {
    let libraries = LIBRARIES.lock();
    let known = libraries.as_ref().map_or(&[][..], |libraries| &libraries.known);
    known.iter().rev().map(|&(library, _)| library).find(|library| library.contains(address))
}

/// Prepares to read C++ frames. `interpreter` is the address of a function of the Python
/// interpreter, if there is one. The tracker must not call this, because it reads files and
/// allocates memory.
pub(crate) fn enable(interpreter: Option<usize>) {
    let mut libraries = LIBRARIES.lock();
    let libraries = libraries.get_or_insert_with(|| Libraries {
        interpreter: interpreter.map(|address| address as u64),
        known: Vec::new(),
        changes: 0,
        checked: Instant::now(),
        maps: 0,
    });
    if libraries.maps == 0 || libraries.changes != change_count() {
        libraries.make_map();
    }
}

/// Makes a new map if libraries have been loaded or unloaded. Returns at once if the last check was
/// less than [`INTERVAL`] ago.
pub(crate) fn refresh() {
    let mut libraries = LIBRARIES.lock();
    let Some(libraries) = libraries.as_mut() else { return };
    let interval = if HAS_UNKNOWN_CODE.load(Ordering::Relaxed) { UNKNOWN_CODE_INTERVAL } else { INTERVAL };
    if libraries.checked.elapsed() < interval {
        return;
    }
    libraries.checked = Instant::now();
    HAS_UNKNOWN_CODE.store(false, Ordering::Relaxed);
    if libraries.changes != change_count() {
        libraries.make_map();
    }
}

impl Libraries {
    /// Makes a map of the libraries that are loaded now, and makes it the current one.
    fn make_map(&mut self) {
        if self.maps >= MAX_MAPS {
            return;
        }
        let mut loaded = Vec::new();
        visit_libraries(|library| {
            loaded.push(library);
            ControlFlow::Continue(())
        });
        self.changes = loaded.first().map_or(0, |library| library.changes);
        let mut unwinder = Unwinder::new();
        let mut ranges = Vec::new();
        for library in &loaded {
            let known = self.known.iter().rposition(|(known, _)| {
                known.base == library.base
                    && known.path == file_path(library)
                    && known.code.iter().cloned().eq(library.code())
            });
            let index = known.unwrap_or_else(|| {
                self.known.push(open(library, self.interpreter));
                self.known.len() - 1
            });
            let (file, module) = &self.known[index];
            ranges.extend(file.code.iter().map(|range| (range.start, range.end, file.kind)));
            if let Some(module) = module {
                unwinder.add_module(module.clone());
            }
        }
        ranges.sort_unstable_by_key(|&(start, ..)| start);
        self.maps += 1;
        // The previous map is not freed, because the tracker may be reading it.
        CURRENT.store(Box::into_raw(Box::new(CodeMap { unwinder, ranges })), Ordering::Release);
    }
}

/// Returns the path of a library's file.
fn file_path(library: &LoadedLibrary) -> &Path {
    if library.path.as_os_str().is_empty() { Path::new("/proc/self/exe") } else { &library.path }
}

/// Opens a library's file and finds its unwind tables.
fn open(library: &LoadedLibrary, interpreter: Option<u64>) -> (&'static LibraryFile, Option<Module<&'static [u8]>>) {
    let path = file_path(library).to_owned();
    let code: Vec<_> = library.code().collect();
    let contains = |address: u64| code.iter().any(|range| range.contains(&address));
    let kind = if contains(enable as *const () as u64) {
        CodeKind::Own
    } else if interpreter.is_some_and(contains) {
        CodeKind::Interpreter
    } else {
        CodeKind::Other
    };
    let module = code.first().zip(code.last()).and_then(|(first, last)| {
        let sections = unwind_sections(&path, &library.program_headers)?;
        Some(Module::new(String::new(), first.start..last.end, library.base, sections))
    });
    let (base, program_headers) = (library.base, library.program_headers.clone());
    let file = LibraryFile { path, base, code, kind, program_headers, symbols: OnceLock::new() };
    (Box::leak(Box::new(file)), module)
}

/// Returns the sections of a library that say how to unwind its frames.
fn unwind_sections(path: &Path, loaded: &[ProgramHeader]) -> Option<ExplicitModuleSectionInfo<&'static [u8]>> {
    let sections = read_sections(path, loaded, [".eh_frame", ".eh_frame_hdr"])?;
    // Without `.eh_frame_hdr`, the index, framehop would build an index of the whole table.
    if sections.iter().any(|section| section.bytes.is_empty()) {
        return None;
    }
    let [eh_frame, eh_frame_hdr] = sections;
    let range = |section: Section| Some(section.address..section.address + section.size);
    Some(ExplicitModuleSectionInfo {
        eh_frame_svma: range(eh_frame),
        eh_frame: Some(eh_frame.bytes),
        eh_frame_hdr_svma: range(eh_frame_hdr),
        eh_frame_hdr: Some(eh_frame_hdr.bytes),
        ..ExplicitModuleSectionInfo::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_code_is_known_and_other_addresses_are_not() {
        enable(None);
        let map = current().expect("the map was made");
        assert_eq!(map.kind(open as *const () as u64), Some(CodeKind::Own));
        let local = 0_u64;
        assert_eq!(map.kind(&raw const local as u64), None, "the stack has no code");
        assert_eq!((map.kind(0), map.kind(u64::MAX)), (None, None));
        let library = find_library(open as *const () as u64).expect("the program is a library");
        assert!(library.symbols().iter().all(|bytes| !bytes.is_empty()));
        assert!(library.contains(enable as *const () as u64));
    }
}
