//! Finds the program's modules (`torch.nn.Module`), names them, and learns when they are freed.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyType, PyWeakrefReference};

use crate::modules;
use crate::notes::time_stamp;

/// Returns the objects of a type, or of a class that is derived from it, that the garbage collector
/// tracks.
///
/// A list of all objects keeps alive what other threads release, tensors too. So no Python code
/// runs while this function has one, and no other thread gets the interpreter's lock. For that
/// reason, and because `isinstance` runs code of proxies, this is not Python code itself.
#[pyfunction]
pub(super) fn tracked_objects<'py>(wanted: &Bound<'py, PyType>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let all = wanted.py().import("gc")?.getattr("get_objects")?.call0()?.cast_into::<PyList>()?;
    let is_wanted = |object: &Bound<'py, PyAny>| {
        // SAFETY: Both types are valid: the object and the caller own references to them.
        unsafe { ffi::PyType_IsSubtype(object.get_type_ptr(), wanted.as_type_ptr()) != 0 }
    };
    Ok(all.iter().filter(is_wanted).collect())
}

/// The callback of a weak reference to a module. The interpreter calls it before it frees the
/// module's memory.
///
/// It is no Python function: the interpreter runs signal handlers in those, and prints what they
/// raise in a callback instead of passing it to the program.
#[pyclass(frozen)]
struct ModuleReference {
    address: u64,
    /// The weak reference, without which the callback is not called. The garbage collector does not
    /// see that it is referenced from here, and so does not take the two for garbage.
    reference: Mutex<Option<Py<PyWeakrefReference>>>,
}

impl ModuleReference {
    fn replace(&self, reference: Option<Py<PyWeakrefReference>>) {
        let mut own = self.reference.lock().unwrap_or_else(PoisonError::into_inner);
        let previous = std::mem::replace(&mut *own, reference);
        // Python may run code when an object is freed.
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

/// Names modules. A module that has another name gets the new one.
#[pyfunction]
pub(super) fn name_modules(named: Vec<(Bound<'_, PyAny>, String)>) -> PyResult<()> {
    for (module, name) in named {
        let address = module.as_ptr().expose_provenance() as u64;
        if modules::identity(address) != modules::UNNAMED {
            modules::add(address, &name);
            continue;
        }
        let callback = Bound::new(module.py(), ModuleReference { address, reference: Mutex::default() })?;
        // Objects of a class without weak references have no name.
        let Ok(reference) = PyWeakrefReference::new_with(&module, &callback) else { continue };
        if modules::add(address, &name) {
            callback.get().replace(Some(reference.unbind()));
        }
    }
    Ok(())
}

/// Tells that the search for modules has ended, with or without success, and how long it took.
#[pyfunction]
pub(super) fn end_module_search(duration_s: f64) {
    modules::end_search(Duration::try_from_secs_f64(duration_s).unwrap_or_default());
}

/// Returns the name of the module at an address, which is alive; empty without a name.
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
