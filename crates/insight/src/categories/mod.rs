//! What each allocation is for.
//!
//! [`infer_categories`] gives every allocation of a recording one category, with a
//! [`Confidence`](crate::group::Confidence). It looks at the call stack, and at what a stack cannot
//! tell: how long the block lives, what size it has, how often its line requests one, and between
//! which passes through the model.
//!
//! # Rules
//!
//! The first rule that applies decides.
//!
//! 1. The category that the program recorded.
//! 2. *Named by the stack*: an optimizer's `_init_group` and the momentum of SGD (optimizer state);
//!    `Module._apply`, `__init__` and `reset_parameters` of PyTorch's modules (parameter); a data
//!    loader (input); `DistributedDataParallel` and FSDP where they request memory themselves
//!    (communication); without a backward pass, a function or a file named after a cache, if the
//!    block lives for more than 8 events (cache); a C++ function that gets memory for cuBLAS
//!    (workspace).
//! 3. *Library workspaces*: PyTorch requests 32 MiB (Hopper), 8.125 MiB or 1 MiB once a thread and
//!    stream for cuBLAS, in the first product of matrices, and keeps it.
//! 4. *Before the first pass*: memory that lasts and that no module requests is of the model. Its
//!    sizes are compared with those of one backward pass's gradients: the first copy is the
//!    parameters, further copies are optimizer state. Without a backward pass, a block of equal
//!    size for each layer, twice, is a cache.
//! 5. *Gradients* are born in the backward pass, outlive it, and have the sizes of parameters.
//! 6. *Optimizer state*: what an optimizer's step keeps, and copies of the parameters' sizes that a
//!    line of the program makes between two passes and that outlive the next one.
//! 7. *Growing caches*: without a backward pass, a line whose requests grow from call to call, and
//!    whose blocks live until the next one.
//! 8. *Workspaces* of at least 1 MiB are freed by the event after their request, within a module or
//!    in the backward pass, and no other memory has their size.
//! 9. *Input*: what the program itself requests before the first module of a step, and that lives
//!    until the backward pass.
//! 10. *Activation* or *temporary*: by whether a block of the forward pass lives until the backward
//!     pass. Memory of the backward pass that is none of the above is temporary.
//!
//! Without stacks, passes are found by the live bytes: they rise in the forward pass and fall in
//! the backward pass. Where nothing shows that a model runs, rules 3 to 10 do not apply, and the
//! category is unknown.

mod category_bytes;
mod evidence;
mod gradients;
mod infer;
mod model;
mod passes;
mod sizes;
mod steps;

use std::sync::Arc;

use vramscope_trace::{DeviceId, DeviceLifetimes, Lifetimes, Recording};

use crate::group::{KnownCategory, RecordingCategories};
use category_bytes::BytesBySite;
use evidence::{Evidence, Sites, is_older};
pub(crate) use sizes::{SizeCounts, count};

/// Maximum number of a device's allocations whose lifetimes are compared, at about 150 bytes each.
/// Of more, only what the program recorded and what stacks name is known.
const MAX_COMPARED: usize = 4_000_000;

/// Infers the category of every allocation of a recording from the lifetimes of its devices, which
/// contain all events from the first to the second moment of `range`.
#[must_use]
pub fn infer_categories(recording: &Recording, lifetimes: &Lifetimes, range: (u64, u64)) -> Arc<RecordingCategories> {
    let mut sites = Sites::new(recording.definitions());
    let mut bytes = BytesBySite::default();
    let mut found = Vec::new();
    for (device, lifetimes) in lifetimes.devices() {
        let known = known_categories((recording, device), lifetimes, range, &mut sites);
        for (one, known) in lifetimes.iter().zip(&known) {
            bytes.add(&one, is_older(recording, &one), *known);
        }
        found.push((device, lifetimes, known));
    }
    let by_site = bytes.largest_categories(recording, &mut sites);
    let allocations = found.iter().map(|(_, _, known)| known.len()).sum();
    let mut categories = RecordingCategories::new(range, allocations, &by_site);
    for (device, lifetimes, known) in found {
        for (one, known) in lifetimes.iter().zip(known) {
            categories.insert(device, &one, known);
        }
    }
    categories.finish();
    Arc::new(categories)
}

/// Returns the categories of a device's allocations, in the order of [`DeviceLifetimes::iter`].
fn known_categories(
    (recording, device): (&Recording, DeviceId),
    lifetimes: &DeviceLifetimes,
    range: (u64, u64),
    sites: &mut Sites,
) -> Vec<Option<KnownCategory>> {
    // A timeline without stacks and segments has no blocks, but the sums of categories.
    let described = recording.info().device(device);
    let has_only_sums = described.is_some_and(|info| info.segments.is_unknown()) && !sites.has_stacks();
    if lifetimes.len() > MAX_COMPARED || has_only_sums {
        lifetimes.iter().map(|one| sites.known(recording, &one)).collect()
    } else {
        infer::categories(&mut Evidence::new(recording, lifetimes, range, sites))
    }
}
