//! The memory of all ranks of a training run, and the ranks that differ from the others.
//!
//! Every process sends a [`Summary`] ten times a second. A [`Fleet`] keeps the newest seconds of
//! all processes and answers with a [`FleetView`]: one row for each rank, its difference from
//! comparable ranks ([`Outlier`]), and the memory of each pipeline stage.
//!
//! Times are in nanoseconds since 1970. Processes have clocks of their own; a [`ClockOffset`]
//! bounds how far each is off the broker's clock. Nothing here depends on when a summary is
//! processed, so all servers that have read equal summaries compute equal results.

mod clock_offset;
mod mesh;
mod outliers;
mod processes;
mod rank_metrics;
mod rank_window;
mod sequence_window;
mod summary;
mod view;
mod wire;

pub use clock_offset::{ClockOffset, OffsetEstimate};
pub use mesh::{Coordinates, Mesh, MeshError};
pub use outliers::{MarkedMetric, Outlier};
pub use processes::{Fleet, ProcessDescription};
pub use rank_metrics::RankMetric;
pub use sequence_window::{Arrival, SequenceWindow};
pub use summary::{Acknowledged, DeviceSummary, Summary};
pub use view::{EventsState, FleetView, ProcessIdentity, RankRow, StageRow};
pub use wire::{ViewDecoder, ViewEncoder, WireError};
