//! Live bytes by group over time.
//!
//! A [`CompositionSeries`] follows the live (active) bytes of one device, divided by a grouping
//! such as sites or categories. The groups with the highest peaks have a *layer* of their own, the
//! others share the last one ([`OTHER_LAYER`]).
//!
//! Events are divided into buckets of equal length. A bucket keeps the moment of its peak and the
//! bytes of every layer at that moment, so that the layers of a column add up to the column's true
//! maximum. A moment within a bucket follows from the nearest stored one by applying the changes
//! between: drawing costs the same for every recording, at every zoom.
//!
//! A horizontal axis is given as *edges*: the moments at the boundaries of the pixel columns. Axes
//! of time, events or steps, with or without idle time, are therefore drawn by the same code.

mod buckets;
mod device_rows;
mod layers;
mod query;
mod rows;
mod series;

pub use device_rows::{DeviceRows, RowGroups};
pub use layers::{LAYERS, LayerBytes, OTHER_LAYER};
pub use query::CompositionColumn;
pub use rows::{AllocationRows, AllocationSpan, Change};
pub use series::CompositionSeries;
