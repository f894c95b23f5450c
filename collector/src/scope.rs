//! Scopes: named parts of a program, such as `step/forward/layer3`, and what memory requested in
//! them is for.
//!
//! Each thread has its own nested scopes; they apply to all pools. With the feature
//! `tracing-layer`, `ScopeLayer` makes scopes of `tracing` spans.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use vramscope_trace::Category;

use crate::scope_paths::{MAX_PATHS, PathId};

/// The next number for a pool or an open scope, unique in this process.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// Returns a number that is unique in this process, to identify a pool or an open [`Scope`].
pub(crate) fn unique_number() -> u64 {
    NEXT_NUMBER.fetch_add(1, Ordering::Relaxed)
}

thread_local! {
    /// The open scopes of this thread, outermost first.
    static OPEN: RefCell<Vec<OpenScope>> = const { RefCell::new(Vec::new()) };
    /// Path and category of this thread's innermost scope, kept ready because allocations are far
    /// more frequent than scopes.
    static CURRENT: Cell<Context> = const { Cell::new(Context::NONE) };
}

/// The holder that keeps a scope open until [`leave`]: a guard ([`Scope`]), a `tracing` span, or a
/// call of [`enter_scope`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScopeHolder {
    Guard(u64),
    #[cfg(feature = "tracing-layer")]
    Span(u64),
    /// A call of [`leave_scope`] ends it.
    Caller,
}

/// A scope that is open on this thread, with what keeps it open.
struct OpenScope {
    holder: ScopeHolder,
    context: Context,
}

/// Path, category and operation of a thread's innermost open scope.
///
/// One number, because every recorded request reads, hashes and compares it: the category in bits 0
/// to 7, the path from bit 8 and the operation from bit 32. A [`PathId`] has at most 17 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Context(u64);

const _: () = assert!(MAX_PATHS < 1 << 24, "a path's number fits between category and operation");

impl Context {
    /// The context outside all scopes: no path, category unknown.
    pub(crate) const NONE: Self = Self::new(PathId(0), Category::Unknown, PathId(0));

    const fn new(path: PathId, category: Category, operation: PathId) -> Self {
        Self(category as u64 | (path.0 as u64) << 8 | (operation.0 as u64) << 32)
    }

    /// Returns the scope path.
    pub(crate) fn path(self) -> PathId {
        PathId((self.0 >> 8) as u32 & 0xff_ffff)
    }

    /// Returns the category.
    pub(crate) fn category(self) -> Category {
        let number = self.0 as u8;
        Category::ALL.into_iter().find(|&category| category as u8 == number).unwrap_or_default()
    }

    /// Returns the open operations, outermost first, such as `attention/matmul`; see
    /// [`Scope::operation`].
    pub(crate) fn operation(self) -> PathId {
        PathId((self.0 >> 32) as u32)
    }

    /// Returns path, category and operation packed into one number, for hashing.
    #[inline]
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// Returns the path, category and operation of this thread's innermost open scope.
    #[inline]
    pub(crate) fn current() -> Self {
        CURRENT.get()
    }

    /// Returns the context of a scope `name` opened inside this context. If `category` is `None`,
    /// it has this context's category.
    pub(crate) fn inside(self, name: &str, category: Option<Category>) -> Self {
        Self::new(self.path().inside(name), category.unwrap_or_else(|| self.category()), self.operation())
    }
}

/// Opens a scope with this context on this thread, until [`leave`] is called with an equal
/// `holder`.
pub(crate) fn enter(holder: ScopeHolder, context: Context) {
    // The list may already be destroyed if the thread is exiting. Scopes no longer matter then.
    if OPEN.try_with(|open| open.borrow_mut().push(OpenScope { holder, context })).is_ok() {
        CURRENT.set(context);
    }
}

/// Closes the innermost scope that `holder` keeps open on this thread, if any. Scopes may be closed
/// in any order.
pub(crate) fn leave(holder: ScopeHolder) {
    let _ = OPEN.try_with(|open| {
        let mut open = open.borrow_mut();
        if let Some(index) = open.iter().rposition(|scope| scope.holder == holder) {
            open.remove(index);
        }
        CURRENT.set(open.last().map_or(Context::NONE, |scope| scope.context));
    });
}

/// Opens scope `name` on this thread until [`leave_scope`]; without a category it inherits the
/// outer scope's. For callers that cannot hold a [`Scope`], such as programs in other languages.
pub fn enter_scope(name: &str, category: Option<Category>) {
    enter(ScopeHolder::Caller, Context::current().inside(name, category));
}

/// Closes the innermost scope that [`enter_scope`] opened on this thread, if any.
pub fn leave_scope() {
    leave(ScopeHolder::Caller);
}

/// An open scope on the current thread. Dropping it closes the scope.
///
/// ```
/// use vramscope_collector::{Category, Scope};
///
/// let _step = Scope::open("step");
/// let _forward = Scope::open_with("forward", Category::Activation);
/// // Allocations of this thread are now recorded as activations of `step/forward`.
/// ```
#[must_use = "a scope ends when this is dropped"]
#[derive(Debug)]
pub struct Scope {
    number: u64,
    stays_on_its_thread: PhantomData<*const ()>,
}

impl Scope {
    /// Opens scope `name` inside this thread's current scope, until the result is dropped. The new
    /// scope inherits the category.
    pub fn open(name: &str) -> Self {
        Self::new(Context::current().inside(name, None))
    }

    /// Opens scope `name` inside this thread's current scope, until the result is dropped, and sets
    /// the category of allocations in it.
    pub fn open_with(name: &str, category: Category) -> Self {
        Self::new(Context::current().inside(name, Some(category)))
    }

    /// Sets the category of this thread's allocations until the result is dropped, without opening
    /// a named scope.
    pub fn of(category: Category) -> Self {
        let context = Context::current();
        Self::new(Context::new(context.path(), category, context.operation()))
    }

    /// Opens the operation `name`, such as `matmul`, until the result is dropped: the call stack of
    /// requests in it begins with a frame of that name, without file and line, inside the source
    /// line of the request. Operations nest; a name contains no `/`.
    ///
    /// Scope path and category do not change.
    pub fn operation(name: &str) -> Self {
        let context = Context::current();
        Self::new(Context::new(context.path(), context.category(), context.operation().inside(name)))
    }

    fn new(context: Context) -> Self {
        let number = unique_number();
        enter(ScopeHolder::Guard(number), context);
        Self { number, stays_on_its_thread: PhantomData }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        leave(ScopeHolder::Guard(self.number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn current() -> (String, Category) {
        let context = Context::current();
        (context.path().with_text(str::to_owned), context.category())
    }

    #[track_caller]
    fn check(path: &str, category: Category) {
        assert_eq!(current(), (path.to_owned(), category));
    }

    #[test]
    fn scopes_nest_and_end_in_any_order() {
        check("", Category::Unknown);
        let outer = Scope::open_with("step", Category::Activation);
        check("step", Category::Activation);
        let inner = Scope::open("forward");
        check("step/forward", Category::Activation);
        let category = Scope::of(Category::Gradient);
        check("step/forward", Category::Gradient);
        drop(outer);
        check("step/forward", Category::Gradient);
        drop(category);
        check("step/forward", Category::Activation);
        std::thread::scope(|scope| scope.spawn(|| check("", Category::Unknown)).join()).expect("no thread panics");
        drop(inner);
        check("", Category::Unknown);
    }

    #[test]
    fn leave_scope_closes_only_scopes_of_enter_scope() {
        leave_scope();
        enter_scope("python", Some(Category::Input));
        let inner = Scope::open("rust");
        enter_scope("again", None);
        check("python/rust/again", Category::Input);
        leave_scope();
        check("python/rust", Category::Input);
        drop(inner);
        leave_scope();
        check("", Category::Unknown);
    }

    #[test]
    fn path_has_one_number_in_all_threads() {
        let path = || {
            let _outer = Scope::open("numbered");
            let _inner = Scope::open("once");
            Context::current().path()
        };
        let path_there = std::thread::spawn(path).join().expect("no thread panics");
        assert_eq!(path(), path_there);
        assert_eq!(path(), path_there);
    }
}
