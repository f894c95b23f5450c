//! The names of `torch.compile`'s regions, by the address of the code object that runs them.
//!
//! PyTorch names a region `Torch-Compiled Region: 0/0`, and reports the name to its own memory
//! history only while that records. The Python package therefore passes the names of the code
//! objects that PyTorch compiles. A region's backward pass runs without its code object; it is
//! recognized by the functions of PyTorch that run it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of regions whose names are kept; further regions get no name. A compiled model
/// has some ten regions; PyTorch compiles a function at most 8 times for different inputs.
const MAX_REGIONS: usize = 1 << 16;
/// How long a region's name is kept after its code object was freed. The follower reads the
/// requests of the region's last run within milliseconds.
const KEPT_AFTER_FREE: Duration = Duration::from_secs(1);
/// Prefix of the names that PyTorch gives to regions.
const PREFIX: &str = "Torch-Compiled Region";
/// Prefix of the default folder for the code that Inductor generates.
const GENERATED_FOLDER: &str = "torchinductor_";
/// File of the method through which PyTorch runs code that Inductor generated.
const GENERATED_CALLER: &str = "/torch/_inductor/output_code.py";
/// File and name of the method through which PyTorch runs the backward pass of a region.
const BACKWARD_METHOD: (&str, &str) = ("/torch/_functorch/_aot_autograd/runtime_wrappers.py", "backward");

/// The names of regions, by the address of the code object that runs the region. Clones share the
/// names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Regions(Arc<RegionTable>);

/// The regions that the clones of [`Regions`] share.
#[derive(Debug, Default)]
struct RegionTable {
    by_address: Mutex<HashMap<u64, Region>>,
    /// Number of names that were added so far.
    generation: AtomicU64,
}

/// A region of `torch.compile`: its name, and when its code object was freed.
#[derive(Debug)]
struct Region {
    name: Arc<str>,
    /// When the region's code object was freed; `None` while it is alive.
    freed: Option<Instant>,
}

impl Region {
    /// Returns true if the code object is alive, or was freed so recently that requests of the
    /// region may still be in a ring.
    fn is_current(&self) -> bool {
        self.freed.is_none_or(|freed| freed.elapsed() < KEPT_AFTER_FREE)
    }
}

impl Regions {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Region>> {
        self.0.by_address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a number that changes whenever names are added.
    pub(crate) fn generation(&self) -> u64 {
        self.0.generation.load(Ordering::Acquire)
    }

    /// Adds the name of the region whose code object is at `address`.
    pub(crate) fn add(&self, address: u64, name: &str) {
        let mut regions = self.lock();
        if regions.len() >= MAX_REGIONS {
            regions.retain(|_, region| region.is_current());
        }
        if regions.len() < MAX_REGIONS || regions.contains_key(&address) {
            regions.insert(address, Region { name: Arc::from(name), freed: None });
            self.0.generation.fetch_add(1, Ordering::Release);
        }
    }

    /// Marks the region of a code object that is about to be freed. Its name is kept for
    /// [`KEPT_AFTER_FREE`], until its last requests have been read.
    pub(crate) fn remove(&self, address: u64) {
        if let Some(region) = self.lock().get_mut(&address) {
            region.freed = Some(Instant::now());
        }
    }

    /// Returns the name of the innermost region of a stack, whose frames are given as the address
    /// of the code object, file and function, innermost first.
    pub(crate) fn of_stack<'a>(&self, frames: impl Iterator<Item = (u64, &'a str, &'a str)>) -> Option<Arc<str>> {
        let regions = self.lock();
        let (mut is_generated, mut is_backward) = (false, false);
        for (address, file, function) in frames {
            if let Some(region) = regions.get(&address).filter(|region| region.is_current()) {
                return Some(Arc::clone(&region.name));
            }
            is_generated |=
                file.ends_with(GENERATED_CALLER) || file.split('/').any(|part| part.starts_with(GENERATED_FOLDER));
            let (backward_file, backward_name) = BACKWARD_METHOD;
            is_backward |= file.ends_with(backward_file) && function.rsplit('.').next() == Some(backward_name);
        }
        match (is_generated, is_backward) {
            (_, true) => Some(Arc::from(format!("{PREFIX}: backward"))),
            (true, false) => Some(Arc::from(PREFIX)),
            (false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn innermost_region_is_found() {
        let regions = Regions::default();
        regions.add(1, "Torch-Compiled Region: 0/0");
        regions.add(2, "Torch-Compiled Region: 1/0");
        let check = |frames: &[(u64, &str, &str)], expected: Option<&str>| {
            assert_eq!(regions.of_stack(frames.iter().copied()).as_deref(), expected);
        };
        let generated = (9, "/tmp/torchinductor_user/ab/cab.py", "call");
        let backward = (
            8,
            "/x/torch/_functorch/_aot_autograd/runtime_wrappers.py",
            "AOTDispatchAutograd.<locals>.CompiledFunction.backward",
        );
        let main = (7, "train.py", "<module>");
        check(
            &[generated, (2, "net.py", "Head.forward"), (1, "net.py", "Net.forward"), main],
            Some("Torch-Compiled Region: 1/0"),
        );
        check(&[(1, "net.py", "torch_dynamo_resume_in_forward_at_8"), main], Some("Torch-Compiled Region: 0/0"));
        check(&[generated, backward], Some("Torch-Compiled Region: backward"));
        check(&[generated, main], Some("Torch-Compiled Region"));
        check(&[backward, main], Some("Torch-Compiled Region: backward"));
        check(&[(6, "/x/torch/_inductor/output_code.py", "CompiledFxGraph.__call__")], Some("Torch-Compiled Region"));
        check(&[main], None);
        check(&[], None);
        let generation = regions.generation();
        regions.remove(1);
        assert_eq!(regions.generation(), generation);
        check(&[(1, "net.py", "Net.forward")], Some("Torch-Compiled Region: 0/0"));
        std::thread::sleep(KEPT_AFTER_FREE);
        check(&[(1, "other.py", "f")], None);
    }
}
