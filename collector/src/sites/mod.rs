//! Numbers for sites: the places in the program where memory is requested.
//!
//! A request normally costs one lookup in a small table of recently used sites. All pools of a
//! recording share one numbering.

use std::collections::HashMap;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vramscope_trace::{Definitions, Frame, Interner, Sink, Site, SiteId, StackId, StringId};

use crate::scope::Context;
use crate::scope_paths::PathId;

#[cfg(feature = "native-stacks")]
mod native;
#[cfg(not(feature = "native-stacks"))]
#[path = "no_native.rs"]
mod native;

use native::{Native, NativeId};

/// Assigns the numbers of a recording's definitions: strings, stacks and sites (where memory is
/// requested: source line or stack, scope path, category). Clones share the numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Numbers(Arc<Mutex<Numbering>>);

/// The definitions and their numbers, behind the lock of [`Numbers`].
#[derive(Debug, Default)]
struct Numbering {
    interner: Interner,
    /// Number of mark names so far.
    names: usize,
    /// All definitions so far, for snapshots of the pool.
    definitions: Definitions,
}

impl Numbering {
    /// Passes the definitions that were added since the last call to `sink`.
    fn send_new(&mut self, sink: &mut (impl Sink + ?Sized)) {
        for definition in self.interner.take_new() {
            sink.define(&definition);
            self.definitions.define(definition);
        }
    }
}

/// Maximum number of different mark names; beyond it, new names lose the number at their end. A
/// program that numbers its steps has a new name for each, and every reader of the recording keeps
/// them all: this many take about 60 MB.
const MAX_NAMES: usize = 1 << 18;

/// Returns a mark's name with the digits at its end replaced by "…", as used beyond [`MAX_NAMES`].
fn without_number(name: &str) -> String {
    format!("{}…", name.trim_end_matches(|c: char| c.is_ascii_digit()))
}

impl Numbers {
    /// Locks the definitions, also after a thread that held the lock has panicked.
    fn lock(&self) -> MutexGuard<'_, Numbering> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `add` with the table of definitions, under the lock, and returns its result, the
    /// numbers that it found or assigned. `sink` receives new definitions before another thread can
    /// use their numbers.
    pub(crate) fn define<R>(&self, sink: &mut (impl Sink + ?Sized), add: impl FnOnce(&mut Interner) -> R) -> R {
        let mut numbering = self.lock();
        let numbered = add(&mut numbering.interner);
        numbering.send_new(sink);
        numbered
    }

    /// Returns the number of a mark's name; `sink` receives the definition of a new name. Beyond
    /// [`MAX_NAMES`], a new name loses the number at its end; beyond twice as many, it becomes "…".
    pub(crate) fn name(&self, sink: &mut (impl Sink + ?Sized), name: &str) -> StringId {
        let mut numbering = self.lock();
        if let Some(known) = numbering.interner.find(name) {
            return known;
        }
        let short = match numbering.names {
            ..MAX_NAMES => name.to_owned(),
            MAX_NAMES.. => without_number(name),
        };
        let text = if numbering.names < 2 * MAX_NAMES { short.as_str() } else { "…" };
        let id = numbering.interner.string(text);
        numbering.send_new(sink);
        numbering.names += 1;
        id
    }

    /// Returns all definitions so far.
    pub(crate) fn definitions(&self) -> Definitions {
        self.lock().definitions.clone()
    }
}

/// Number of slots in the table of recent sites. A training step allocates at some dozens of lines
/// in some dozens of scopes. If two sites share a slot, each alternate use takes a hash lookup.
const RECENT: usize = 256;

/// Whether a site contains the request's source line besides scope and category.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SiteDetail {
    /// The source line of the request.
    Lines,
    /// No source line.
    Scopes,
}

/// The sites (source line or call stack, scope path and category of a request) of one pool, and
/// their numbers in the recording.
#[derive(Debug)]
pub(crate) struct Sites {
    numbers: Numbers,
    sites: HashMap<SiteKey, SiteId>,
    /// Recent sites, each in the slot of its key.
    recent: Box<[(SiteKey, SiteId); RECENT]>,
    detail: SiteDetail,
    /// Walks call stacks, if that is enabled.
    native: Option<Native>,
}

/// A key that identifies a pool's site: source location, scope context and call stack. Locations
/// are compared by address, which is faster than by text. The compiler may store a location twice;
/// the interner still finds that both copies are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SiteKey {
    location: usize,
    context: Context,
    stack: NativeId,
}

impl SiteKey {
    /// A key that differs from every site's key, because no location is at address 0.
    const NONE: Self = Self { location: 0, context: Context::NONE, stack: NativeId::NONE };

    /// Returns the index in [`Sites::recent`] at which this key's site is stored.
    #[inline]
    fn slot(self) -> usize {
        let context = self.context.number();
        let mixed = self.location as u64 ^ context.rotate_left(32) ^ u64::from(self.stack.0).rotate_left(20);
        // Fibonacci hashing: the upper bits of a product depend on all bits; the factor is 2^64 /
        // golden ratio.
        (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - RECENT.ilog2())) as usize
    }
}

impl Sites {
    pub(crate) fn new(numbers: Numbers, detail: SiteDetail) -> Self {
        let recent = Box::new([(SiteKey::NONE, SiteId(0)); RECENT]);
        Self { numbers, sites: HashMap::new(), recent, detail, native: None }
    }

    /// Adds call stacks of up to `max_frames` frames to the sites of later requests; 0 turns stacks
    /// off.
    #[cfg(feature = "native-stacks")]
    pub(crate) fn record_stacks(&mut self, max_frames: usize) {
        self.native = (max_frames > 0).then(|| Native::new(max_frames));
    }

    /// Returns the number of the site of a request from `location` in `context`; `sink` receives
    /// the definition of a new site.
    #[inline]
    pub(crate) fn site(
        &mut self,
        context: Context,
        location: &'static Location<'static>,
        sink: &mut (impl Sink + ?Sized),
    ) -> SiteId {
        let stack = self.native.as_mut().map_or(NativeId::NONE, Native::walk);
        let key = SiteKey { location: std::ptr::from_ref(location).addr(), context, stack };
        let (recent, site) = self.recent[key.slot()];
        if recent == key { site } else { self.look_up_site(key, location, sink) }
    }

    /// Returns the number of the site with this key, which is not in the table of recent sites, and
    /// stores it in that table. `sink` receives the definition of a new site.
    #[cold]
    fn look_up_site(
        &mut self,
        key: SiteKey,
        location: &'static Location<'static>,
        sink: &mut (impl Sink + ?Sized),
    ) -> SiteId {
        let Self { numbers, sites, native, detail, .. } = self;
        let site = *sites.entry(key).or_insert_with(|| {
            numbers.define(sink, |interner| {
                let callers = native.as_mut().map_or(StackId(0), |native| native.stack(key.stack, location, interner));
                let stack = match detail {
                    SiteDetail::Lines if callers == StackId(0) => stack_of(location, interner),
                    SiteDetail::Lines | SiteDetail::Scopes => callers,
                };
                let stack = inside_operations(key.context.operation(), stack, interner);
                let scope = scope_of(key.context.path(), interner);
                interner.site(Site { stack, scope, category: key.context.category(), ..Site::default() })
            })
        });
        self.recent[key.slot()] = (key, site);
        site
    }

    /// Returns the number of a mark's name; `sink` receives the definition of a new name.
    pub(crate) fn name(&self, name: &str, sink: &mut (impl Sink + ?Sized)) -> StringId {
        self.numbers.name(sink, name)
    }

    /// Returns all definitions so far.
    pub(crate) fn definitions(&self) -> Definitions {
        self.numbers.definitions()
    }
}

/// Adds a stack with a single frame, the source line `location`, to the recording's definitions and
/// returns the stack's number.
fn stack_of(location: &Location<'_>, interner: &mut Interner) -> StackId {
    let file = interner.string(location.file());
    let frame = interner.frame(Frame { function: StringId(0), file, line: location.line() });
    interner.stack(frame, StackId(0))
}

/// Adds one frame for each open operation, without file and line, inside `callers` to the
/// recording's definitions, and returns the number of the whole stack.
fn inside_operations(operations: PathId, callers: StackId, interner: &mut Interner) -> StackId {
    operations.with_text(|text| {
        text.split('/').filter(|name| !name.is_empty()).fold(callers, |stack, name| {
            let frame = Frame { function: interner.string(name), ..Frame::default() };
            let frame = interner.frame(frame);
            interner.stack(frame, stack)
        })
    })
}

/// Adds the text of the scope path to the recording's definitions and returns its number.
fn scope_of(path: PathId, interner: &mut Interner) -> StringId {
    path.with_text(|text| interner.string(text))
}

#[cfg(test)]
mod tests {
    use vramscope_trace::{Category, MemorySink};

    use super::*;
    use crate::scope::Scope;

    fn definitions_in(sink: &MemorySink) -> Definitions {
        let mut definitions = Definitions::default();
        sink.definitions.iter().cloned().for_each(|definition| definitions.define(definition));
        definitions
    }

    #[test]
    fn site_keeps_its_number_beyond_the_recent_table() {
        let (mut sites, mut sink) = (Sites::new(Numbers::default(), SiteDetail::Lines), MemorySink::default());
        let location = Location::caller();
        let contexts: Vec<_> = (0..2 * RECENT)
            .map(|n| {
                let _layer = Scope::open_with(&format!("layer{n}"), Category::Activation);
                Context::current()
            })
            .collect();
        let first: Vec<_> = contexts.iter().map(|&context| sites.site(context, location, &mut sink)).collect();
        let count = sink.definitions.len();
        let again: Vec<_> = contexts.iter().map(|&context| sites.site(context, location, &mut sink)).collect();
        assert_eq!(first, again);
        assert_eq!(sink.definitions.len(), count);
        let definitions = definitions_in(&sink);
        assert_eq!(definitions.site_count(), contexts.len());
        for (n, site) in first.into_iter().enumerate() {
            let Site { scope, category, .. } = definitions.site(site);
            assert_eq!((definitions.string(scope), category), (&*format!("layer{n}"), Category::Activation));
        }
    }

    #[test]
    fn operations_are_the_innermost_frames() {
        let (mut sites, mut sink) = (Sites::new(Numbers::default(), SiteDetail::Lines), MemorySink::default());
        let _module = Scope::open_with("forward", Category::Activation);
        let _attention = Scope::operation("attention");
        let _product = Scope::operation("matmul");
        let here = Location::caller();
        let site = sites.site(Context::current(), here, &mut sink);
        let definitions = definitions_in(&sink);
        let Site { stack, scope, category, .. } = definitions.site(site);
        assert_eq!((definitions.string(scope), category), ("forward", Category::Activation));
        let frames = definitions.stack(stack);
        let frames: Vec<_> = frames
            .map(|Frame { function, file, line }| (definitions.string(function), definitions.string(file), line))
            .collect();
        assert_eq!(frames, [("matmul", "", 0), ("attention", "", 0), ("", here.file(), here.line())]);
    }

    #[test]
    fn too_many_mark_names_lose_their_trailing_numbers() {
        let (numbers, mut sink) = (Numbers::default(), MemorySink::default());
        let first = numbers.name(&mut sink, "step 0");
        numbers.lock().names = MAX_NAMES - 1;
        let last = numbers.name(&mut sink, "step 1000");
        let beyond = numbers.name(&mut sink, "step 1001");
        assert_eq!(numbers.name(&mut sink, "step 1002"), beyond);
        assert_eq!(numbers.name(&mut sink, "step 0"), first);
        assert_ne!(numbers.name(&mut sink, "evaluation 7"), beyond);
        numbers.lock().names = 2 * MAX_NAMES;
        let others = numbers.name(&mut sink, "something else");
        let definitions = definitions_in(&sink);
        let text = |id| definitions.string(id);
        assert_eq!([text(first), text(last), text(beyond), text(others)], ["step 0", "step 1000", "step …", "…"]);
        // Known names keep their numbers, and no name is defined twice.
        assert_eq!(numbers.name(&mut sink, "step 1000"), last);
        assert_eq!(sink.definitions.len(), 5);
    }

    #[test]
    fn pools_of_one_recording_share_numbers() {
        let (numbers, mut sink) = (Numbers::default(), MemorySink::default());
        let (mut one, mut other) =
            (Sites::new(numbers.clone(), SiteDetail::Lines), Sites::new(numbers.clone(), SiteDetail::Lines));
        let here = Location::caller();
        let first = one.site(Context::NONE, here, &mut sink);
        let _scope = Scope::open("forward");
        let second = other.site(Context::current(), here, &mut sink);
        assert_ne!(first, second);
        assert_eq!(one.site(Context::current(), here, &mut sink), second);
        assert_eq!(one.name("a mark", &mut sink), other.name("a mark", &mut sink));
        assert_eq!(definitions_in(&sink), numbers.definitions());
    }
}
