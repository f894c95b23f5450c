//! End-to-end tests of the binary and the page, and the programs that measure and picture them.
//!
//! This crate does not test other crates from inside. It runs the real binary by its command
//! line and sockets, and the real page in a real browser, as a user does. Helpers panic with a
//! reason if the environment lacks something that a test needs.
//!
//! - [`Program`] is a running `vramscope`; [`Browser`] a headless Chromium; [`Page`] the viewer
//!   in it, controlled through `window.vramscope`.
//! - [`Load`] is a program that allocates at a given rate and reports what its pool holds.
//!   [`NativeViewer`] follows it, [`Proxy`] is a faulty network between them, and [`live`] has
//!   the measurements made with them.
//! - [`Broker`] is a NATS server that tests can kill and restart, [`BrokerCluster`] are several;
//!   [`SimulatedRank`] is a rank of a training run whose recording is pushed to them.
//! - [`fleet`] simulates thousands of ranks at a broker and measures what a server shows, or breaks
//!   everything on the way.
//! - [`fixtures`] are recordings with their ground truth, [`synthetic`] recordings of any length;
//!   [`recorded`] computes answers from one, [`gallery`] reads the page's gallery, [`verify`] runs
//!   the pool against a recording. [`snapshot_model`] computes the contents of a snapshot
//!   independently, in Python. [`Picture`] is a small picture of the page, [`PageText`] its text.
//! - [`rules`] checks the repository's own code and texts.
#![forbid(unsafe_code)]

mod broker;
mod broker_cluster;
mod browser;
pub mod fixtures;
pub mod fleet;
pub mod gallery;
mod golden;
pub mod http;
pub mod live;
mod load;
mod native_viewer;
mod numbers;
mod page;
mod page_text;
mod process;
mod program;
mod proxy;
pub mod recorded;
mod recorded_events;
pub mod rules;
mod simulated_rank;
pub mod snapshot_model;
mod snapshot_names;
pub mod synthetic;
mod verify_table;

pub use broker::{BROKER_VARIABLE, Broker};
pub use broker_cluster::BrokerCluster;
pub use browser::{Browser, ColorScheme, Window};
pub use golden::{Difference, Picture};
pub use load::{Load, PoolSnapshot};
pub use native_viewer::{FollowOptions, NativeViewer, ViewerState, stream_url};
pub use numbers::Numbers;
pub use page::{Page, PageState};
pub use page_text::{PageText, PageTexts};
pub use process::ProcessUsage;
pub use program::{Program, vramscope};
pub use proxy::{Fault, Proxy};
pub use simulated_rank::SimulatedRank;
pub use verify_table::{TABLE_HEAD, verify};
