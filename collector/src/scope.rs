//! Scopes: what a program says about the memory that it asks for.
//!
//! A scope has a name, and with those around it makes a path, `step/forward/layer3`. It may say what the memory asked for in it is
//! for. Each thread has scopes of its own, which hold for every pool that it asks. A program that has `tracing` spans already needs no others: see
//! [`ScopeLayer`].

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use vramscope_trace::Category;

mod layer;

pub use layer::ScopeLayer;

/// Different paths that are told apart in a process. A program that puts a number into a name may make any number of them; what is in
/// a scope beyond these counts as being in the one around it.
const MAX_PATHS: usize = 1 << 16;

/// Numbers for pools and for open scopes, unique in the process.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// A number that nothing else in the process has.
pub(crate) fn unique_number() -> u64 {
    NEXT_NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// Every path there ever was, in the order of their numbers, from 1 on.
static PATHS: Mutex<Vec<Arc<str>>> = Mutex::new(Vec::new());

/// A path of scopes; 0 is outside of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct PathId(pub(crate) u32);

impl PathId {
    /// Calls `each` with the path's text.
    pub(crate) fn with_text<R>(self, each: impl FnOnce(&str) -> R) -> R {
        let paths = PATHS.lock().unwrap_or_else(PoisonError::into_inner);
        let text = (self.0 as usize).checked_sub(1).and_then(|place| paths.get(place)).cloned();
        drop(paths);
        each(text.as_deref().unwrap_or_default())
    }

    /// The path of the scope `name` inside this one.
    fn inside(self, name: &str) -> Self {
        let known = KNOWN.try_with(|known| known.borrow().get(&self)?.get(name).copied());
        if let Ok(Some(path)) = known {
            return path;
        }
        let path = self.looked_up(name);
        if path == self {
            // There are too many, and this table must not become longer than the other.
            return path;
        }
        // When the thread is ending, the table may be gone already.
        let _ = KNOWN.try_with(|known| known.borrow_mut().entry(self).or_default().insert(name.into(), path));
        path
    }

    #[cold]
    fn looked_up(self, name: &str) -> Self {
        let text = self.with_text(|outer| if outer.is_empty() { name.to_owned() } else { format!("{outer}/{name}") });
        let mut numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        let numbers = numbers.get_or_insert_default();
        if let Some(&path) = numbers.get(text.as_str()) {
            return path;
        }
        let mut paths = PATHS.lock().unwrap_or_else(PoisonError::into_inner);
        if paths.len() == MAX_PATHS {
            return self;
        }
        let text: Arc<str> = text.into();
        paths.push(Arc::clone(&text));
        let path = Self(paths.len() as u32);
        numbers.insert(text, path);
        path
    }
}

/// The numbers of paths. Where both are locked, these are before [`PATHS`].
static NUMBERS: Mutex<Option<HashMap<Arc<str>, PathId>>> = Mutex::new(None);

thread_local! {
    static OPEN: RefCell<Vec<OpenScope>> = const { RefCell::new(Vec::new()) };
    /// What the innermost scope says. Scopes open and close far less often than memory is asked for.
    static CURRENT: Cell<Context> = const { Cell::new(Context::NONE) };
    /// The paths that this thread was in, by the one around and the name, so that it needs no lock to be there again.
    static KNOWN: RefCell<HashMap<PathId, HashMap<Box<str>, PathId>>> = RefCell::new(HashMap::new());
}

/// What holds a scope open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Guard(u64),
    Span(u64),
    /// Whoever ends the innermost of its kind.
    Caller,
}

struct OpenScope {
    holder: Holder,
    context: Context,
}

/// What the innermost open scope says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Context {
    pub(crate) path: PathId,
    pub(crate) category: Category,
}

impl Context {
    /// Outside of all scopes.
    pub(crate) const NONE: Self = Self { path: PathId(0), category: Category::Unknown };

    /// Of this thread.
    #[inline]
    pub(crate) fn current() -> Self {
        CURRENT.get()
    }

    /// Inside the scope `name`, whose category is that of the one around it unless it says another.
    fn inside(self, name: &str, category: Option<Category>) -> Self {
        Self { path: self.path.inside(name), category: category.unwrap_or(self.category) }
    }
}

fn enter(holder: Holder, context: Context) {
    // When the thread is ending, the list may be gone already, and nobody leaves what is entered then.
    if OPEN.try_with(|open| open.borrow_mut().push(OpenScope { holder, context })).is_ok() {
        CURRENT.set(context);
    }
}

/// Scopes need not end in the order in which they were opened.
fn leave(holder: Holder) {
    let _ = OPEN.try_with(|open| {
        let mut open = open.borrow_mut();
        if let Some(place) = open.iter().rposition(|scope| scope.holder == holder) {
            open.remove(place);
        }
        CURRENT.set(open.last().map_or(Context::NONE, |scope| scope.context));
    });
}

/// Opens a scope on this thread that [`leave_scope`] ends: for those who cannot hold a [`Scope`], such as a program in another language.
pub fn enter_scope(name: &str, category: Option<Category>) {
    enter(Holder::Caller, Context::current().inside(name, category));
}

/// Ends the innermost scope that [`enter_scope`] opened on this thread, if there is one.
pub fn leave_scope() {
    leave(Holder::Caller);
}

/// Holds a scope open until it is dropped. Belongs to the thread that opened it.
///
/// ```
/// use vramscope_collector::{Category, Scope};
///
/// let _step = Scope::open("step");
/// let _forward = Scope::open_with("forward", Category::Activation);
/// // What this thread asks any pool for is now said to be an activation, asked for in `step/forward`.
/// ```
#[must_use = "a scope ends when this is dropped"]
#[derive(Debug)]
pub struct Scope {
    number: u64,
    stays_on_its_thread: PhantomData<*const ()>,
}

impl Scope {
    /// Opens a scope: until it is dropped, what this thread asks for is said to be asked for in `name`, inside the scopes that are
    /// open already.
    pub fn open(name: &str) -> Self {
        Self::new(Context::current().inside(name, None))
    }

    /// Opens a scope, and says what memory asked for in it is for.
    pub fn open_with(name: &str, category: Category) -> Self {
        Self::new(Context::current().inside(name, Some(category)))
    }

    /// Says what memory asked for from now on is for, until it is dropped, without opening a scope of another name.
    pub fn of(category: Category) -> Self {
        Self::new(Context { category, ..Context::current() })
    }

    fn new(context: Context) -> Self {
        let number = unique_number();
        enter(Holder::Guard(number), context);
        Self { number, stays_on_its_thread: PhantomData }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        leave(Holder::Guard(self.number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn current() -> (String, Category) {
        let Context { path, category } = Context::current();
        (path.with_text(str::to_owned), category)
    }

    #[track_caller]
    fn check(path: &str, category: Category) {
        assert_eq!(current(), (path.to_owned(), category));
    }

    #[test]
    fn scopes_nest_and_may_end_in_any_order() {
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
        std::thread::scope(|scope| scope.spawn(|| check("", Category::Unknown)).join()).expect("no panic");
        drop(inner);
        check("", Category::Unknown);
    }

    #[test]
    fn a_scope_can_be_left_by_name_of_nobody() {
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
    fn a_path_has_one_number_in_all_threads() {
        let path = || {
            let _outer = Scope::open("numbered");
            let _inner = Scope::open("once");
            Context::current().path
        };
        let there = std::thread::spawn(path).join().expect("no panic");
        assert_eq!(path(), there);
        assert_eq!(path(), there);
    }
}
