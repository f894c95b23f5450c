//! The page that shows all ranks of a training run, live: one cell for each rank.
//!
//! `vramscope serve --from nats://…` serves it at `/fleet/`. It shows no recording: a click on a
//! cell opens the rank on the main page, which is the crate `vramscope-viewer`.
//!
//! - [`FleetModel`] receives the server's messages and holds the ranks, the settings and the
//!   selection.
//! - [`arrange`] sorts and groups the ranks, [`Layout`] places their cells, [`Scene`] is the
//!   picture of the cells as data, and [`texts`] has the page's texts about ranks.
//! - Only the module `web`, which exists in WebAssembly, uses the browser's interfaces.
#![forbid(unsafe_code)]

mod arrange;
mod frame_times;
mod layout;
mod metric;
mod model;
mod palette;
mod scene;
mod settings;
pub mod texts;
#[cfg(target_arch = "wasm32")]
mod web;

pub use arrange::{Group, arrange};
pub use frame_times::FrameTimes;
pub use layout::{Direction, Layout};
pub use metric::{Metric, Scale};
pub use model::{FleetModel, PageState, StateOutlier};
pub use palette::{LEVELS, Palette, Rgb};
pub use scene::{Cell, Fill, Scene, Title};
pub use settings::{GroupBy, Settings, SortBy};
#[cfg(target_arch = "wasm32")]
pub use web::{start, state};

#[cfg(test)]
mod test_view;
