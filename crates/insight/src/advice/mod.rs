//! Finds the allocator settings that a recorded program needs, and the smallest GPU that it fits
//! on.
//!
//! Every answer is simulated: an [`Advisor`] chooses the runs, the caller makes them with
//! [`Workload::simulate`](vramscope_pool::rerun::Workload::simulate) or in steps with
//! [`Simulation`](vramscope_pool::rerun::Simulation), several at once where it has threads. The
//! [`Advice`] at the end does not depend on the order in which runs finish.
//!
//! ```
//! use vramscope_insight::advice::Advisor;
//! use vramscope_pool::Settings;
//! use vramscope_pool::rerun::Workload;
//!
//! /// Returns the best settings for a program that was recorded under default settings.
//! fn best_conf(workload: &Workload) -> String {
//!     let mut advisor = Advisor::new(workload, &Settings::default(), None);
//!     while let Some(run) = advisor.next_run() {
//!         let summary = run.simulate(workload);
//!         advisor.finish(&run, summary);
//!     }
//!     let advice = advisor.into_advice().expect("all runs are finished");
//!     advice.best().settings.to_conf()
//! }
//! ```

mod advisor;
mod candidates;
mod capacity_search;
mod card;
mod conf_version;
mod request_profile;
mod result;
mod trial;

pub use advisor::{Advisor, Run};
pub use capacity_search::SmallestCapacity;
pub use card::{CARDS, CONTEXT_BYTES, Card, smallest_card};
pub use conf_version::required_pytorch;
pub use result::{Advice, MemoryBounds};
pub use trial::Trial;
pub(crate) use trial::count_keys;
