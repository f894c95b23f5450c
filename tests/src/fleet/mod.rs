//! A simulated run of thousands of ranks at a real broker, and what a server shows of it.
//!
//! [`RecordedTraining`] is what a real training held over time; each simulated rank repeats it,
//! shifted in time. [`measure`] plants outliers and reports losses, lag, and how soon each outlier
//! was marked.

mod measure;
mod recorded_training;

pub use measure::{Figures, Plan, measure};
pub use recorded_training::RecordedTraining;
