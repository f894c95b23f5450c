//! Finds the program's modules (`torch.nn.Module`), names them, and learns when they are freed.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyType, PyWeakrefReference};

use crate::modules;
use crate::notes::time_stamp;

/// Names all of the program's modules, as `GPT/blocks/0/attn`: the objects of the class
/// `torch.nn.Module` and of classes that are derived from it. Returns weak references to the
/// modules that have parameters and are not part of another module.
///
/// The list of all objects keeps objects alive, such as tensors that another thread releases. So
/// while the list exists, no Python code runs and no other thread gets the interpreter's lock. For
/// this reason, and because `isinstance` may run code of proxy objects, this function is not
/// written in Python. Garbage collection is off meanwhile, because it may run code of the program:
/// Python 3.10 and 3.11 collect garbage when objects are created, such as the weak references here.
#[pyfunction]
pub(super) fn name_all_modules<'py>(class: &Bound<'py, PyType>) -> PyResult<Vec<Bound<'py, PyWeakrefReference>>> {
    // Created before the list, because PyO3 may let other threads run while it creates this type
    // and the attribute's name.
    class.py().get_type::<ModuleReference>();
    class.name()?;
    let get_objects = class.py().import("gc")?.getattr("get_objects")?;
    // Declared before the modules, so that it is dropped after them.
    let _guard = NoGarbageCollection::new(class.py());
    let all = get_objects.call0()?.cast_into::<PyList>()?;
    let is_module = |object: &Bound<'py, PyAny>| {
        // SAFETY: Both types are valid: the object and the caller own references to them.
        unsafe { ffi::PyType_IsSubtype(object.get_type_ptr(), class.as_type_ptr()) != 0 }
    };
    let modules: Vec<_> = all.iter().filter(is_module).collect();
    drop(all);
    let inner: HashSet<_> = modules.iter().flat_map(children).map(|(_, child)| child.as_ptr()).collect();
    let mut seen = HashSet::new();
    let mut roots = Vec::new();
    for root in modules.iter().filter(|module| !inner.contains(&module.as_ptr())) {
        let mut waiting = vec![(root.clone(), root.get_type().name()?.to_string_lossy().into_owned())];
        while let Some((module, path)) = waiting.pop() {
            if is_module(&module) && seen.insert(module.as_ptr()) {
                name_module(&module, &path);
                let names = children(&module).into_iter();
                waiting.extend(names.map(|(name, child)| (child, format!("{path}/{name}"))));
            }
        }
        if has_parameters(root) {
            roots.extend(PyWeakrefReference::new(root));
        }
    }
    Ok(roots)
}

/// A guard that turns Python's automatic garbage collection off until it is dropped.
struct NoGarbageCollection<'py> {
    /// Proof that the interpreter's lock is held.
    _py: Python<'py>,
    was_enabled: bool,
}

impl<'py> NoGarbageCollection<'py> {
    fn new(py: Python<'py>) -> Self {
        // SAFETY: This thread holds the interpreter's lock. The function changes a setting and
        // returns the earlier one.
        let was_enabled = unsafe { ffi::PyGC_Disable() } != 0;
        Self { _py: py, was_enabled }
    }
}

impl Drop for NoGarbageCollection<'_> {
    fn drop(&mut self) {
        if self.was_enabled {
            // SAFETY: This thread holds the interpreter's lock. The function changes a setting.
            unsafe { ffi::PyGC_Enable() };
        }
    }
}

/// Returns an attribute from an object's `__dict__`, without running code of the program.
fn attribute<'py>(object: &Bound<'py, PyAny>, name: &str) -> Option<Bound<'py, PyAny>> {
    // SAFETY: The object is alive. The result is a new reference, or null with an exception set.
    let attributes = unsafe {
        let attributes = ffi::PyObject_GenericGetDict(object.as_ptr(), std::ptr::null_mut());
        Bound::from_owned_ptr_or_err(object.py(), attributes)
    };
    attributes.ok()?.cast_into::<PyDict>().ok()?.get_item(name).ok()?
}

/// Returns the direct submodules of a module, with their names.
fn children<'py>(module: &Bound<'py, PyAny>) -> Vec<(String, Bound<'py, PyAny>)> {
    let Some(modules) = attribute(module, "_modules") else { return Vec::new() };
    // The submodules of a `torch.jit.script` module are in an object that has this dictionary.
    let modules =
        if modules.is_instance_of::<PyDict>() { Some(modules) } else { attribute(&modules, "_python_modules") };
    let Some(Ok(modules)) = modules.map(Bound::cast_into::<PyDict>) else { return Vec::new() };
    let named = modules.iter().filter_map(|(name, child)| {
        let name = name.cast_into::<PyString>().ok()?;
        (!child.is_none()).then(|| (name.to_string_lossy().into_owned(), child))
    });
    named.collect()
}

/// Returns true if a module or one of its submodules, at any depth, has parameters.
fn has_parameters(root: &Bound<'_, PyAny>) -> bool {
    let (mut waiting, mut seen) = (vec![root.clone()], HashSet::new());
    while let Some(module) = waiting.pop() {
        if seen.insert(module.as_ptr()) {
            let parameters = attribute(&module, "_parameters").map(Bound::cast_into::<PyDict>);
            // The parameters of a `torch.jit.script` module can be read only by running code of
            // PyTorch, so it counts as having some.
            if parameters.is_some_and(|parameters| parameters.map_or(true, |parameters| !parameters.is_empty())) {
                return true;
            }
            waiting.extend(children(&module).into_iter().map(|(_, child)| child));
        }
    }
    false
}

/// The callback of a weak reference to a module. The interpreter calls it before it frees the
/// module's memory.
///
/// It is not a Python function: the interpreter may run signal handlers in a Python function, and
/// if it is a callback, prints the handlers' exceptions instead of raising them in the program.
#[pyclass(frozen)]
struct ModuleReference {
    address: u64,
    /// The weak reference, which must stay alive for the callback to be called. The garbage
    /// collector does not see this reference, and so does not collect callback and weak reference.
    reference: Mutex<Option<Py<PyWeakrefReference>>>,
}

impl ModuleReference {
    /// Stores another weak reference, or with `None` drops the stored one.
    fn replace(&self, reference: Option<Py<PyWeakrefReference>>) {
        let mut own = self.reference.lock().unwrap_or_else(PoisonError::into_inner);
        let previous = std::mem::replace(&mut *own, reference);
        // The old reference is dropped after the lock is released, because Python may run code when
        // an object is freed.
        drop(own);
        drop(previous);
    }
}

#[pymethods]
impl ModuleReference {
    fn __call__(&self, _reference: &Bound<'_, PyAny>) {
        modules::remove(self.address);
        self.replace(None);
    }
}

/// Gives modules these names, which replace earlier ones.
#[pyfunction]
pub(super) fn name_modules(named: Vec<(Bound<'_, PyAny>, String)>) {
    for (module, name) in named {
        name_module(&module, &name);
    }
}

/// Gives a module a name. Does nothing if its class does not support weak references.
fn name_module(module: &Bound<'_, PyAny>, name: &str) {
    let address = module.as_ptr().expose_provenance() as u64;
    if modules::identity(address) != modules::UNNAMED {
        modules::add(address, name);
        return;
    }
    let Ok(callback) = Bound::new(module.py(), ModuleReference { address, reference: Mutex::default() }) else {
        return;
    };
    let Ok(reference) = PyWeakrefReference::new_with(module, &callback) else { return };
    if modules::add(address, name) {
        callback.get().replace(Some(reference.unbind()));
    }
}

/// Begins a search for modules that was requested. Returns False if it is not needed, or not yet;
/// after True, the caller must call `end_module_search`.
#[pyfunction]
pub(super) fn begin_module_search() -> bool {
    modules::begin_search()
}

/// Ends the search for modules, with or without success, after it took `duration_s` seconds.
#[pyfunction]
pub(super) fn end_module_search(duration_s: f64) {
    modules::end_search(Duration::try_from_secs_f64(duration_s).unwrap_or_default());
}

/// Returns the name of the living module at an address; an empty text if it has no name.
#[pyfunction]
pub(super) fn enclosing_module_name(address: u64) -> String {
    match modules::name(modules::identity(address)) {
        Some(name) => name.to_string(),
        None => {
            modules::want_names(time_stamp());
            String::new()
        }
    }
}
