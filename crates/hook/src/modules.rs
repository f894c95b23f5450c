//! The names of the program's modules (`torch.nn.Module`), by address.
//!
//! A frame of a module's method has the module's address. Which name it has in the model only
//! Python knows, so the Python package passes the names when it is asked for them.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of modules whose names are kept. Large models have some ten thousand.
const MAX_MODULES: usize = 1 << 20;

/// The names of modules by address. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Modules(Arc<ModuleTable>);

#[derive(Debug, Default)]
struct ModuleTable {
    names: Mutex<Names>,
    /// Counts changes of the names.
    generation: AtomicU64,
}

#[derive(Debug, Default)]
struct Names {
    by_address: HashMap<u64, Arc<str>>,
    /// Addresses that were looked up and have no name yet.
    unknown: HashSet<u64>,
}

impl Modules {
    fn lock(&self) -> MutexGuard<'_, Names> {
        self.0.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a number that changes whenever names do.
    pub(crate) fn generation(&self) -> u64 {
        self.0.generation.load(Ordering::Acquire)
    }

    /// Returns the name of the module at `address`; `None` if it is not known yet.
    pub(crate) fn name(&self, address: u64) -> Option<Arc<str>> {
        let mut names = self.lock();
        let name = names.by_address.get(&address).cloned();
        if name.is_none() && names.unknown.len() < MAX_MODULES {
            names.unknown.insert(address);
        }
        name
    }

    /// Returns true if the name of a module was looked up and is not known.
    pub(crate) fn wants_names(&self) -> bool {
        !self.lock().unknown.is_empty()
    }

    /// Adds names of modules. Modules that were looked up before and are not among them are not
    /// asked for again: they belong to no model.
    pub(crate) fn add(&self, modules: impl IntoIterator<Item = (u64, String)>) {
        let mut names = self.lock();
        names.unknown.clear();
        let mut has_changed = false;
        for (address, name) in modules {
            if names.by_address.len() >= MAX_MODULES {
                break;
            }
            let previous = names.by_address.insert(address, Arc::from(name.as_str()));
            has_changed |= previous.as_deref() != Some(&*name);
        }
        if has_changed {
            self.0.generation.fetch_add(1, Ordering::Release);
        }
    }
}
