//! The model of the page: recording, moment, range of time, device and selection.
//!
//! Inputs are method calls on [`Model`], also the time of the page's clock; nothing here depends on
//! a browser.

mod all_devices;
mod comparison;
mod device;
mod fetching;
mod links;
mod live;
mod live_state;
mod peaks;
mod range;
mod selection;
mod state;
mod stepping;

pub use all_devices::AllDevices;
pub use comparison::{CompareWith, Comparison, SecondRecording};
pub use fetching::Fetch;
pub use live_state::{LIVE_LIMIT_BYTES, WHOLE_LIMIT_BYTES};
pub use state::{Changes, Model, Origin, PeakKind};
