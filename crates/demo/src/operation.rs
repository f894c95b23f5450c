//! The open operations of a thread, which give memory requests their names and source lines.
//!
//! Every operation opens an [`Operation`]. The source line of a request is the line that called the
//! outermost open operation; a recording's stacks have one frame for each open operation. A
//! backward pass opens its operation with the source line of the forward call.
//!
//! An [`OperationObserver`] receives operations, modules and changes of memory as they happen.

use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::rc::Rc;

use vramscope_collector::Scope;

use crate::device::Device;

/// An allocation or a free of a tensor's memory.
pub(crate) struct MemoryChange<'a> {
    /// The device.
    pub(crate) device: &'a Device,
    pub(crate) kind: MemoryChangeKind,
    /// The address.
    pub(crate) address: u64,
    /// The requested bytes, before rounding.
    pub(crate) requested: u64,
    /// The device's allocated bytes before the change (the allocator's counter, after rounding).
    pub(crate) allocated_before: u64,
    /// The device's allocated bytes after the change.
    pub(crate) allocated_after: u64,
    /// The source line of the request.
    pub(crate) location: &'static Location<'static>,
}

/// The kind of a memory change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryChangeKind {
    Allocate,
    Free,
}

/// An observer of a thread's operations and modules, and of the memory that tensors allocate and
/// free.
pub(crate) trait OperationObserver {
    /// An operation begins, nested in the open operations. `location` is its source line.
    fn begin(&self, _name: &str, _location: &'static Location<'static>) {}

    /// The operation that began last ends.
    fn end(&self) {}

    /// The path of the open modules has changed, for example to `gpt/block3`; empty outside.
    fn module_changed(&self, _path: &str) {}

    /// A tensor's memory was allocated or freed.
    fn memory_changed(&self, _change: &MemoryChange<'_>) {}
}

/// The observers of a thread.
type Observers = Rc<[Rc<dyn OperationObserver>]>;

thread_local! {
    /// The source line of the outermost open operation; `None` outside of operations.
    static LINE: Cell<Option<&'static Location<'static>>> = const { Cell::new(None) };
    /// The observers of this thread; `None` if there are none.
    static OBSERVERS: RefCell<Option<Observers>> = const { RefCell::new(None) };
    /// The names of the open modules, as one path.
    static MODULE: RefCell<Rc<str>> = RefCell::new(Rc::from(""));
}

/// A guard of an operation that is open on this thread. Dropping it closes the operation.
#[must_use = "an operation ends when this is dropped"]
pub(crate) struct Operation {
    _scope: Scope,
    _line: Line,
}

impl Operation {
    /// Opens the operation `name`. Its source line is the line of the open operation; outside of
    /// operations, the caller's.
    #[track_caller]
    pub(crate) fn enter(name: &str) -> Self {
        Self::enter_at(name, line())
    }

    /// Opens the operation `name` with the source line `location`.
    pub(crate) fn enter_at(name: &str, location: &'static Location<'static>) -> Self {
        observe(|observer| observer.begin(name, location));
        Self { _scope: Scope::operation(name), _line: Line::set(Some(location)) }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        observe(|observer| observer.end());
    }
}

/// A guard of a change of the source line for this thread's requests. Dropping it restores the line
/// before the change.
#[must_use = "the line is restored when this is dropped"]
pub(crate) struct Line {
    outer: Option<&'static Location<'static>>,
}

impl Line {
    /// Sets the source line until the returned guard is dropped.
    fn set(line: Option<&'static Location<'static>>) -> Self {
        Self { outer: LINE.replace(line) }
    }

    /// Makes operations use the source lines of their callers, even inside an open operation.
    pub(crate) fn of_callers() -> Self {
        Self::set(None)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        LINE.set(self.outer);
    }
}

/// Returns the source line of memory requests: the open operation's, or else the caller's.
#[track_caller]
pub(crate) fn line() -> &'static Location<'static> {
    // In a closure, the caller would be this function.
    match LINE.get() {
        Some(line) => line,
        None => Location::caller(),
    }
}

/// A guard that keeps an observer registered on this thread. Dropping it removes the observer.
#[must_use = "the observation ends when this is dropped"]
pub(crate) struct Observation(Rc<dyn OperationObserver>);

impl Observation {
    /// Registers `observer` for this thread's operations from now on.
    pub(crate) fn start(observer: Rc<dyn OperationObserver>) -> Self {
        let present = observers();
        let all = present.iter().flat_map(|present| present.iter()).chain([&observer]).cloned().collect();
        OBSERVERS.set(Some(all));
        Self(observer)
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        let Some(present) = observers() else { return };
        let others: Rc<[_]> = present.iter().filter(|observer| !Rc::ptr_eq(observer, &self.0)).cloned().collect();
        // The list may already be destroyed if the thread is exiting.
        let _ = OBSERVERS.try_with(|observers| observers.replace((!others.is_empty()).then_some(others)));
    }
}

/// Returns the observers of this thread.
#[inline]
fn observers() -> Option<Observers> {
    // The list may already be destroyed if the thread is exiting.
    OBSERVERS.try_with(|observers| observers.borrow().clone()).ok().flatten()
}

/// Calls `f` with each observer of this thread.
#[inline]
fn observe(f: impl FnMut(&Rc<dyn OperationObserver>)) {
    if let Some(observers) = observers() {
        observers.iter().for_each(f);
    }
}

/// Calls `change`, which allocates or frees memory of a tensor and returns the address, then
/// informs the observers. `requested` bytes and the source line `location` describe the change.
#[inline]
pub(crate) fn change_memory<E>(
    device: &Device,
    kind: MemoryChangeKind,
    requested: u64,
    location: &'static Location<'static>,
    change: impl FnOnce() -> Result<u64, E>,
) -> Result<u64, E> {
    let Some(observers) = observers() else { return change() };
    let allocated_before = device.memory().allocated_bytes();
    let address = change()?;
    let allocated_after = device.memory().allocated_bytes();
    let change = MemoryChange { device, kind, address, requested, allocated_before, allocated_after, location };
    observers.iter().for_each(|observer| observer.memory_changed(&change));
    Ok(address)
}

/// A guard of a module (a named part of a model) that is open on this thread. Dropping it closes
/// the module. The names of open modules are part of the scope path of requests.
#[must_use = "a module ends when this is dropped"]
pub struct Module {
    _scope: Option<Scope>,
    outer: Rc<str>,
}

impl Module {
    /// Opens module `name` inside the open one.
    pub fn enter(name: &str) -> Self {
        let outer = MODULE.with_borrow(Rc::clone);
        let path = if outer.is_empty() { Rc::from(name) } else { Rc::from(format!("{outer}/{name}")) };
        observe(|observer| observer.module_changed(&path));
        MODULE.set(path);
        Self { _scope: Some(Scope::open(name)), outer }
    }

    /// Returns the path of the open modules, such as `gpt/block3/attention`; empty outside.
    pub(crate) fn path() -> Rc<str> {
        MODULE.with_borrow(Rc::clone)
    }

    /// Opens the module with this path, for the backward pass of an operation in it.
    pub(crate) fn enter_path(path: &Rc<str>) -> Self {
        let outer = MODULE.replace(Rc::clone(path));
        observe(|observer| observer.module_changed(path));
        Self { _scope: (!path.is_empty()).then(|| Scope::open(path)), outer }
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        MODULE.set(Rc::clone(&self.outer));
        observe(|observer| observer.module_changed(&self.outer));
    }
}
