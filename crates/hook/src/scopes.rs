//! Scopes: names that the program gives to a part of its run (`vramscope.scope`).
//!
//! A scope has a number. The tracker reads the number of its thread's scope and writes it to the
//! ring, and the follower converts it to the scope's path. Numbers are valid until the process
//! ends.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use vramscope_collector::session::lifecycle::ProcessMutex;
use vramscope_collector::session::stderr_log;
use vramscope_trace::Category;

use crate::thread_table::{ThreadTable, thread_pointer};

/// Maximum number of scopes; a further scope counts as the scope around it. A program that puts a
/// number into a scope's name would otherwise create a new scope in each step.
const MAX_SCOPES: usize = 1 << 16;

/// A scope: its name, category, the scope around it, and the module in whose method it begins.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Scope {
    /// Number of the scope around it; 0 for none.
    pub(crate) parent: u32,
    pub(crate) name: Arc<str>,
    /// What memory in the scope is used for; `None` if the scope does not say.
    pub(crate) category: Option<Category>,
    /// Name of the innermost module in whose method the scope begins; empty for none, and for one
    /// without a name.
    pub(crate) module: Arc<str>,
}

/// The scopes of the process, by number from 1.
#[derive(Debug, Default)]
struct Scopes {
    list: Vec<Scope>,
    numbers: HashMap<Scope, u32>,
    /// True once the message about too many scopes has been printed.
    has_reported: bool,
}

impl Scopes {
    /// Returns the number of a scope, and adds the scope if it is new; `None` if it is new and
    /// there are already `max` scopes.
    fn define(&mut self, scope: &Scope, max: usize) -> Option<u32> {
        let Self { list, numbers, .. } = self;
        if let Some(&number) = numbers.get(scope) {
            return Some(number);
        }
        if list.len() >= max {
            return None;
        }
        list.push(scope.clone());
        let number = list.len() as u32;
        numbers.insert(scope.clone(), number);
        Some(number)
    }
}

/// The scopes of this process.
static SCOPES: ProcessMutex<Scopes> = ProcessMutex::new();

/// The current scope of each thread that has entered a scope: the first word is the scope's number,
/// the second is unused.
static CURRENT: ThreadTable<512> = ThreadTable::new();

/// Number of threads that are in a scope.
static THREADS_IN_SCOPES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static THREAD_END: ThreadEnd = const { ThreadEnd };
}

/// Removes the thread's scope when the thread ends, because another thread may get the same thread
/// pointer.
struct ThreadEnd;

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        enter(0);
        CURRENT.remove(thread_pointer());
    }
}

/// Forgets the scopes of all threads, in a forked child: it has only one thread, whose scopes are
/// then defined and entered again.
pub(crate) fn leave_all() {
    CURRENT.clear();
    THREADS_IN_SCOPES.store(0, Ordering::Relaxed);
}

/// Returns the number of a scope, and adds the scope if it is new. Beyond [`MAX_SCOPES`], returns
/// the number of the scope around it; the first time, a message says so.
pub(crate) fn define(scope: Scope) -> u32 {
    let mut scopes = SCOPES.lock();
    if let Some(number) = scopes.define(&scope, MAX_SCOPES) {
        return number;
    }
    let had_reported = mem::replace(&mut scopes.has_reported, true);
    drop(scopes);
    if !had_reported {
        let Scope { name, .. } = &scope;
        stderr_log::print(&format!(
            "more than {MAX_SCOPES} different scopes: {name:?} and others are not recorded from now on; use fewer \
             names, without numbers of steps"
        ));
    }
    scope.parent
}

/// Sets the scope of this thread; 0 for none.
pub(crate) fn enter(number: u32) {
    let thread = thread_pointer();
    let was_in_scope = CURRENT.get(thread).is_some_and(|[number, _]| number != 0);
    if number == 0 && !was_in_scope {
        return;
    }
    // Creates the variable, whose destructor runs at the end of the thread.
    let is_alive = THREAD_END.try_with(|_| ()).is_ok();
    if (number != 0 && !is_alive) || !CURRENT.set(thread, [number as usize, 0]) {
        return;
    }
    match (was_in_scope, number != 0) {
        (false, true) => THREADS_IN_SCOPES.fetch_add(1, Ordering::Relaxed),
        (true, false) => THREADS_IN_SCOPES.fetch_sub(1, Ordering::Relaxed),
        _ => 0,
    };
}

/// Returns the number of this thread's scope; 0 for none.
#[inline]
pub(crate) fn current() -> u32 {
    if THREADS_IN_SCOPES.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    CURRENT.get(thread_pointer()).map_or(0, |[number, _]| number as u32)
}

/// Returns the scope with this number and all scopes around it, outermost first.
pub(crate) fn nested(mut number: u32) -> Vec<Scope> {
    let scopes = SCOPES.lock();
    let mut found = Vec::new();
    while let Some(scope) = (number as usize).checked_sub(1).and_then(|index| scopes.list.get(index)) {
        found.push(scope.clone());
        // A scope is defined after the one around it.
        number = scope.parent.min(number - 1);
    }
    found.reverse();
    found
}

/// Returns the path of a request's scopes: the names of `scopes`, outermost first, and those of the
/// modules around and in them. `module` is the name of the innermost module of the request.
pub(crate) fn path(scopes: &[Scope], module: Option<&str>) -> String {
    let mut path = String::new();
    let mut outer = "";
    for scope in scopes {
        if !scope.module.is_empty() {
            push(&mut path, inner_part(&scope.module, outer));
            outer = &scope.module;
        }
        push(&mut path, &scope.name);
    }
    push(&mut path, module.map_or("", |module| inner_part(module, outer)));
    path
}

/// Returns the part of a module's name after the name of the module around it: `attn` for
/// `GPT/blocks/0/attn` in `GPT/blocks/0`. If the outer module belongs to another model, returns the
/// whole name.
fn inner_part<'a>(module: &'a str, outer: &str) -> &'a str {
    match module.strip_prefix(outer) {
        Some("") => "",
        Some(_) if outer.is_empty() => module,
        Some(rest) => rest.strip_prefix('/').unwrap_or(module),
        None => module,
    }
}

/// Appends a part to a path, with a `/` between them unless either is empty.
fn push(path: &mut String, part: &str) {
    if !path.is_empty() && !part.is_empty() {
        path.push('/');
    }
    path.push_str(part);
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;

    fn scope(parent: u32, name: &str, module: &str) -> Scope {
        Scope { parent, name: Arc::from(name), category: None, module: Arc::from(module) }
    }

    #[test]
    fn scopes_are_defined_once_and_nest() {
        let outer = define(scope(0, "outer", ""));
        let inner = define(scope(outer, "inner", ""));
        assert_eq!(define(scope(outer, "inner", "")), inner);
        assert_ne!(define(scope(0, "inner", "")), inner);
        let names: Vec<_> = nested(inner).iter().map(|scope| scope.name.to_string()).collect();
        assert_eq!(names, ["outer", "inner"]);
        assert_eq!(nested(0), []);
        assert_eq!(nested(u32::MAX), []);
    }

    #[test]
    fn scopes_beyond_the_limit_have_no_number() {
        let mut scopes = Scopes::default();
        let mut define = |name| scopes.define(&scope(0, name, ""), 2);
        assert_eq!(["a", "b", "c", "a", "b"].map(&mut define), [Some(1), Some(2), None, Some(1), Some(2)]);
    }

    #[test]
    fn each_thread_has_its_own_scope() {
        let number = define(scope(0, "of a thread", ""));
        enter(number);
        assert_eq!(current(), number);
        let other = std::thread::spawn(move || {
            let before = current();
            enter(number);
            (before, current())
        });
        assert_eq!(other.join().expect("the thread ends"), (0, number));
        enter(0);
        assert_eq!(current(), 0);
        // Another thread may get the pointer of the first one, which ended in a scope.
        let next = std::thread::spawn(current);
        assert_eq!(next.join().expect("the thread ends"), 0);
    }

    #[test]
    fn path_has_scopes_and_modules_in_the_order_of_nesting() {
        let check = |scopes: &[Scope], module: Option<&str>, expected: &str| {
            assert_eq!(path(scopes, module), expected);
        };
        let (epoch, dropout) = (scope(0, "epoch", ""), scope(0, "dropout", "GPT/blocks/3"));
        check(&[], None, "");
        check(&[], Some("GPT/blocks/3"), "GPT/blocks/3");
        check(from_ref(&epoch), None, "epoch");
        check(from_ref(&epoch), Some("GPT/blocks/3"), "epoch/GPT/blocks/3");
        let both = [epoch, dropout];
        check(&both, Some("GPT/blocks/3"), "epoch/GPT/blocks/3/dropout");
        check(&both, Some("GPT/blocks/3/attn"), "epoch/GPT/blocks/3/dropout/attn");
        check(&both, Some("GPT/blocks/31"), "epoch/GPT/blocks/3/dropout/GPT/blocks/31");
        check(&both, Some("Critic"), "epoch/GPT/blocks/3/dropout/Critic");
        check(&both, None, "epoch/GPT/blocks/3/dropout");
    }
}
