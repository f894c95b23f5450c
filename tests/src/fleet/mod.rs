//! A simulated run of thousands of ranks at a real broker, and what a server shows of it.
//!
//! [`RecordedTraining`] is what a real training held over time; each simulated rank repeats it,
//! shifted in time. [`measure`] plants outliers and reports losses, lag, and how soon each outlier
//! was marked. [`break_everything`] breaks ranks, network, brokers, disks and servers, and checks
//! what a server shows.

mod broker_audit;
mod clock_host;
mod cluster_proxies;
mod day;
mod events;
mod expected_rank;
mod faults;
mod faulty_rank;
mod following_server;
mod log;
mod measure;
mod pushing_rank;
mod rank_process;
mod recorded_training;
mod training;
mod watch;

pub use day::{DayFigures, DayPlan, archive_a_day};
pub use events::{EventFigures, EventPlan, measure_events};
pub use expected_rank::ExpectedRank;
pub use faults::{FaultFigures, FaultPlan, break_everything};
pub use following_server::FollowingServer;
pub use log::{logged, print_log};
pub use measure::{Figures, Plan, measure};
pub use pushing_rank::PushingRank;
pub use rank_process::run_rank_process;
pub use recorded_training::RecordedTraining;
