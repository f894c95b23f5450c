//! Recordings of many machines through a NATS broker.
//!
//! Processes publish what they record to [NATS JetStream](https://docs.nats.io/nats-concepts/jetstream),
//! which stores the newest part; any number of servers read it from there. Processes and servers
//! know only the broker, so each of them can stop, restart or lose its connection without the
//! others.
//!
//! This crate does not record (`vramscope-collector` does) and does not define the recording's
//! format (`vramscope-trace` does). It is the collector's transport to a broker and the reader on
//! the other side.
//!
//! # Main types
//!
//! - [`register`] makes `nats://` known to everything that reads `VRAMSCOPE_PUSH`.
//! - [`FleetAddress`] is the address of a run at a broker: `nats://HOST:PORT/RUN`.
//! - [`Follower`] reads all processes of a run from the broker into an
//!   [`Aggregator`](vramscope_collector::Aggregator).
//! - [`Assembler`] puts the messages of one process in order, without a connection.
//!
//! # What the broker stores
//!
//! A run has three JetStream streams; [`subjects`] has their names.
//!
//! - `events`: the chunks of all recordings, on one subject for each process, limited by bytes and
//!   age. The messages of a process are numbered. A process regularly sends a *start*: header,
//!   all definitions and newest full state, so that a reader can begin there.
//! - `summaries`: a summary of each process's memory, ten times a second.
//! - `processes`: the newest description of each process, with the position of its last start.
#![forbid(unsafe_code)]

mod address;
#[cfg(feature = "archive")]
pub mod archive;
mod assembler;
mod connection;
mod control;
mod eviction;
mod fleet_reader;
mod follower;
#[cfg(target_os = "linux")]
mod host_exchange;
mod message;
mod process_follower;
mod process_record;
mod process_registry;
mod push;
mod record_publisher;
mod reorder_buffer;
mod roles;
mod runtime;
mod simulated_host;
mod streams;
mod subject_reader;
pub mod subjects;
mod summaries;
mod summary_batch;
mod transport;
mod unix_time;

pub use address::{FleetAddress, PushMode};
pub use assembler::{Assembled, Assembler, AssemblerError};
pub use connection::FleetError;
pub use follower::{Follower, FollowerOptions};
pub use message::ChunkMessage;
pub use process_registry::OpenError;
pub use push::register;
pub use roles::{MAX_RANKS, Role, UserKey, broker_authorization};
pub use simulated_host::SimulatedHost;
pub use streams::{StreamLimits, create_streams, delete_streams};
