//! Scopes: what a program says about the memory that it asks for.
//!
//! A scope has a name, and with those around it makes a path, `step/forward/layer3`. It may say what the memory asked for in it is
//! for. Each thread has scopes of its own.

use std::cell::RefCell;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

use vramscope_trace::{Category, Definition, Frame, Interner, Site, SiteId, StackId, StringId};

/// Numbers for pools and for open scopes, unique in the process.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// A number that nothing else in the process has.
pub(crate) fn unique_number() -> u64 {
    NEXT_NUMBER.fetch_add(1, Ordering::Relaxed)
}

thread_local! {
    static OPEN: RefCell<Vec<OpenScope>> = const { RefCell::new(Vec::new()) };
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
    pub(crate) fn current(pool: u64) -> Self {
        OPEN.with_borrow(|open| {
            open.iter().rfind(|scope| scope.pool == pool).map_or_else(Self::default, |scope| scope.context)
        })
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
        Self { number, stays_on_its_thread: PhantomData }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        // Scopes need not end in the order in which they were opened. When the thread is ending, the list may be gone already.
        let _ = OPEN.try_with(|open| open.borrow_mut().retain(|scope| scope.number != self.number));
    }
}

/// The numbers of a pool's scope paths and sites, each looked up by what a program has at hand.
#[derive(Debug, Default)]
pub(crate) struct Sites {
    interner: Interner,
    paths: HashMap<StringId, Path>,
    sites: HashMap<(Context, LocationKey), SiteId>,
}

/// A scope path: its text, and the paths of the scopes inside by name.
#[derive(Debug, Default)]
struct Path {
    text: String,
    inner: HashMap<String, StringId>,
}

/// A location by where the compiler put it, which is quicker to compare than its text. The compiler may put one twice; the interner
/// then still finds that they are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct LocationKey(usize);

impl Sites {
    /// The path of the scope `name` inside `outer`.
    pub(crate) fn path(&mut self, outer: StringId, name: &str) -> StringId {
        let outer = self.paths.entry(outer).or_default();
        if let Some(&path) = outer.inner.get(name) {
            return path;
        }
        let text = if outer.text.is_empty() { name.to_owned() } else { format!("{}/{name}", outer.text) };
        let path = self.interner.string(&text);
        outer.inner.insert(name.to_owned(), path);
        self.paths.entry(path).or_default().text = text;
        path
    }

    /// The site of a call from `location` in `context`.
    pub(crate) fn site(&mut self, context: Context, location: &'static Location<'static>) -> SiteId {
        let key = (context, LocationKey(std::ptr::from_ref(location).addr()));
        if let Some(&site) = self.sites.get(&key) {
            return site;
        }
        let file = self.interner.string(location.file());
        let frame = self.interner.frame(Frame { function: StringId(0), file, line: location.line() });
        let stack = self.interner.stack(frame, StackId(0));
        let site = self.interner.site(Site { stack, scope: context.path, category: context.category });
        self.sites.insert(key, site);
        site
    }

    /// The number of any other string.
    pub(crate) fn string(&mut self, text: &str) -> StringId {
        self.interner.string(text)
    }

    /// What the sink must be told before the next event.
    pub(crate) fn take_fresh(&mut self) -> Vec<Definition> {
        self.interner.take_fresh()
    }
}
