//! A simulated run of thousands of ranks at a real broker, and what a server shows of it.
//!
//! [`RecordedTraining`] is what a real training held over time; each simulated rank repeats it,
//! shifted in time. [`measure`] plants outliers and reports losses, lag, and how soon each outlier
//! was marked. [`break_everything`] breaks ranks, network, brokers, disks and servers, and checks
//! what a server shows.

mod clock_host;
mod faults;
mod faulty_rank;
mod measure;
mod recorded_training;

pub use faults::{FaultFigures, FaultPlan, break_everything};
pub use measure::{Figures, Plan, measure};
pub use recorded_training::RecordedTraining;
