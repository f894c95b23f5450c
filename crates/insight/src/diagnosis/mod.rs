//! Diagnosis: the memory problems of a recording, each with its evidence.
//!
//! [`Diagnosis`] visits all events of a recording in steps and then applies the rules. Each
//! [`Finding`] has a kind of problem, its bytes, events and call of the program, one sentence and a
//! remedy. [`Finding::check`] simulates the remedy where the recorded requests allow it; failures
//! have the remedies of [`autopsy`](crate::autopsy) ([`Finding::set_remedies`]).
//! `docs/diagnose.md` lists the problems and the limits from which they count.
//!
//! The rules look at sizes, lifetimes, streams and pools. Stacks name the call at fault and tell
//! patterns of growth apart; without stacks, sizes and streams take their place.
//!
//! - `growth`: memory that is kept from step to step, and what causes it.
//! - `server_growth`: slow growth of a program without steps.
//! - `peaks`: temporaries, a start or one role that makes up the peak; `roles` tells what each
//!   block at the peak is for.
//! - `copies`: weights that exist more than once at the start.
//! - `optimizer_step`: temporaries of an optimizer's step at the peak.
//! - `reserved`: much more reserved than the live blocks need.
//! - `segments`: fragmentation, segments that come and go, pending frees, waste.
//! - `private_pools`: pools that are not used, not shared or cannot be released.
//! - `small_tensors`: rounding of very many small sizes.
//! - `layer_buffers`: equal buffers of which two would do.
//! - `kept_exception`: activations of failed steps.
//! - `dead_weight`: memory that is kept after its last use.
//! - `evaluation`: evaluations that need more than training.
//! - `outside`: memory of other libraries and processes.
//! - `pinned`: pinned host memory.
//! - Out of memory comes from [`autopsy`](crate::autopsy).

mod analysis;
mod context;
mod copies;
mod dead_weight;
mod diagnosed;
mod evaluation;
mod examined;
mod finding;
mod growth;
mod kept_exception;
mod layer_buffers;
mod optimizer_step;
mod outside;
mod peak_categories;
mod peaks;
mod pinned;
mod private_pools;
mod profile;
mod remedy;
mod report;
mod reserved;
mod rule;
mod segments;
mod server_growth;
mod small_tensors;

pub use analysis::Diagnosis;
pub use diagnosed::Diagnosed;
pub use examined::ExaminedDevice;
pub use finding::{CheckedRemedy, Finding, Problem, Severity};
pub use report::FindingReport;
pub use rule::Rule;
