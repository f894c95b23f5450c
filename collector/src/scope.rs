//! Scopes: what a program says about the memory that it asks for.
//!
//! A scope has a name, and with those around it makes a path, `step/forward/layer3`. It may say what the memory asked for in it is
//! for. Each thread has scopes of its own.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

use vramscope_trace::{Category, Frame, Interner, Sink, Site, SiteId, StackId, StringId};

/// Numbers for pools and for open scopes, unique in the process.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// A number that nothing else in the process has.
pub(crate) fn unique_number() -> u64 {
    NEXT_NUMBER.fetch_add(1, Ordering::Relaxed)
}

thread_local! {
    static OPEN: RefCell<Vec<OpenScope>> = const { RefCell::new(Vec::new()) };
    /// What [`Context::current`] found last, and for which pool. Scopes open and close far less often than memory is asked for.
    static LAST: Cell<Option<(u64, Context)>> = const { Cell::new(None) };
}

struct OpenScope {
    number: u64,
    pool: u64,
    context: Context,
}

/// What the innermost open scope says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Context {
    pub(crate) path: StringId,
    pub(crate) category: Category,
}

impl Context {
    /// Of this thread, for the pool with that number.
    #[inline]
    pub(crate) fn current(pool: u64) -> Self {
        match LAST.get() {
            Some((number, context)) if number == pool => context,
            _ => Self::look_up(pool),
        }
    }

    #[cold]
    fn look_up(pool: u64) -> Self {
        // When the thread is ending, the list may be gone already.
        let context = OPEN.try_with(|open| {
            let open = open.borrow();
            open.iter().rfind(|scope| scope.pool == pool).map_or_else(Self::default, |scope| scope.context)
        });
        let context = context.unwrap_or_default();
        LAST.set(Some((pool, context)));
        context
    }
}

/// Holds a scope open until it is dropped. Belongs to the thread that opened it.
#[must_use = "a scope ends when this is dropped"]
#[derive(Debug)]
pub struct Scope {
    number: u64,
    stays_on_its_thread: PhantomData<*const ()>,
}

impl Scope {
    pub(crate) fn open(pool: u64, context: Context) -> Self {
        let number = unique_number();
        OPEN.with_borrow_mut(|open| open.push(OpenScope { number, pool, context }));
        LAST.set(Some((pool, context)));
        Self { number, stays_on_its_thread: PhantomData }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        LAST.set(None);
        // Scopes need not end in the order in which they were opened. When the thread is ending, the list may be gone already.
        let _ = OPEN.try_with(|open| open.borrow_mut().retain(|scope| scope.number != self.number));
    }
}

/// How many sites are found without a look into the table. A training step asks for memory at some dozens of lines in some dozens of
/// scopes, and a line that shares its place with another costs a look into the table and nothing else.
const RECENT: usize = 256;

/// The numbers of a pool's scope paths and sites, each looked up by what a program has at hand.
#[derive(Debug)]
pub(crate) struct Sites {
    interner: Interner,
    paths: HashMap<StringId, Path>,
    sites: HashMap<Key, SiteId>,
    /// Sites that were asked for before, each in the place that its key says.
    recent: Box<[(Key, SiteId); RECENT]>,
    /// Whether the sink has to be told of anything.
    has_fresh: bool,
}

impl Default for Sites {
    fn default() -> Self {
        let recent = Box::new([(Key::NONE, SiteId(0)); RECENT]);
        Self { interner: Interner::default(), paths: HashMap::new(), sites: HashMap::new(), recent, has_fresh: false }
    }
}

/// A scope path: its text, and the paths of the scopes inside by name.
#[derive(Debug, Default)]
struct Path {
    text: String,
    inner: HashMap<String, StringId>,
}

/// A context and a location. The location is that at which the compiler put it, which is quicker to compare than its text. The
/// compiler may put one twice; the interner then still finds that they are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    location: usize,
    context: Context,
}

impl Key {
    /// The key of nothing: no location is at address 0.
    const NONE: Self = Self { location: 0, context: Context { path: StringId(0), category: Category::Unknown } };

    /// One of the places of [`Sites::recent`].
    #[inline]
    fn place(self) -> usize {
        let context = u64::from(self.context.path.0) << 8 | self.context.category as u64;
        // The upper bits of a product depend on all bits of its factors; the number is 2^64 over the golden ratio.
        let mixed = (self.location as u64 ^ context.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> (u64::BITS - RECENT.ilog2())) as usize
    }
}

impl Sites {
    /// The path of the scope `name` inside `outer`.
    pub(crate) fn path(&mut self, outer: StringId, name: &str) -> StringId {
        let outer = self.paths.entry(outer).or_default();
        if let Some(&path) = outer.inner.get(name) {
            return path;
        }
        let text = if outer.text.is_empty() { name.to_owned() } else { format!("{}/{name}", outer.text) };
        let path = self.interner.string(&text);
        self.has_fresh = true;
        outer.inner.insert(name.to_owned(), path);
        self.paths.entry(path).or_default().text = text;
        path
    }

    /// The site of a call from `location` in `context`. Where it is a new one, [`tell_fresh`](Self::tell_fresh) comes before the
    /// first event that names it.
    #[inline]
    pub(crate) fn site(&mut self, context: Context, location: &'static Location<'static>) -> SiteId {
        let key = Key { location: std::ptr::from_ref(location).addr(), context };
        let (recent, site) = self.recent[key.place()];
        if recent == key { site } else { self.look_up(key, location) }
    }

    #[cold]
    fn look_up(&mut self, key: Key, location: &'static Location<'static>) -> SiteId {
        let Self { interner, sites, .. } = self;
        let site = *sites.entry(key).or_insert_with(|| {
            self.has_fresh = true;
            let file = interner.string(location.file());
            let frame = interner.frame(Frame { function: StringId(0), file, line: location.line() });
            let stack = interner.stack(frame, StackId(0));
            interner.site(Site { stack, scope: key.context.path, category: key.context.category, ..Site::default() })
        });
        self.recent[key.place()] = (key, site);
        site
    }

    /// The number of any other string.
    pub(crate) fn string(&mut self, text: &str) -> StringId {
        self.has_fresh = true;
        self.interner.string(text)
    }

    /// Tells `sink` what is new since the last call; to be called before it is told an event that uses it.
    #[inline]
    pub(crate) fn tell_fresh(&mut self, sink: &mut (impl Sink + ?Sized)) {
        if self.has_fresh {
            self.tell_what_is_fresh(sink);
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_what_is_fresh(&mut self, sink: &mut (impl Sink + ?Sized)) {
        self.has_fresh = false;
        for definition in self.interner.take_fresh() {
            sink.define(&definition);
        }
    }
}

#[cfg(test)]
mod tests {
    use vramscope_trace::{Definitions, Memory};

    use super::*;

    #[test]
    fn a_site_keeps_its_number_among_more_than_are_at_hand() {
        let (mut sites, mut sink) = (Sites::default(), Memory::default());
        let location = Location::caller();
        let contexts: Vec<_> = (0..2 * RECENT)
            .map(|n| Context { path: sites.path(StringId(0), &format!("layer{n}")), category: Category::Activation })
            .collect();
        let first: Vec<_> = contexts.iter().map(|&context| sites.site(context, location)).collect();
        sites.tell_fresh(&mut sink);
        let told = sink.definitions.len();
        let again: Vec<_> = contexts.iter().map(|&context| sites.site(context, location)).collect();
        sites.tell_fresh(&mut sink);
        assert_eq!(first, again);
        assert_eq!(sink.definitions.len(), told);
        let mut definitions = Definitions::default();
        sink.definitions.into_iter().for_each(|definition| definitions.define(definition));
        assert_eq!(definitions.site_count(), contexts.len());
        for (context, site) in contexts.into_iter().zip(first) {
            let Site { scope, category, .. } = definitions.site(site);
            assert_eq!(Context { path: scope, category }, context);
        }
    }

    #[test]
    fn the_innermost_scope_is_that_of_the_pool_that_asks() {
        let (pool, other) = (unique_number(), unique_number());
        let context = |path| Context { path: StringId(path), category: Category::Unknown };
        let current = || (Context::current(pool).path.0, Context::current(other).path.0);
        let outer = Scope::open(pool, context(1));
        assert_eq!(current(), (1, 0));
        let inner = Scope::open(pool, context(2));
        let of_other = Scope::open(other, context(3));
        assert_eq!(current(), (2, 3));
        // Not in the order in which they were opened.
        drop(outer);
        assert_eq!(current(), (2, 3));
        drop(inner);
        assert_eq!(current(), (0, 3));
        std::thread::scope(|scope| scope.spawn(|| assert_eq!(current(), (0, 0))).join()).expect("no panic");
        drop(of_other);
        assert_eq!(current(), (0, 0));
    }
}
