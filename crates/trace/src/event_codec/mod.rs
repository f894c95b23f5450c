//! Encodes events as the columns of a chunk, and decodes them.
//!
//! ```text
//! payload  | start | unit | flags | columns
//! ```
//!
//! `start` is the time of the first event in nanoseconds; `unit` is a number of nanoseconds that
//! divides all time differences. Bit 0 of `flags` is set if some time is before the one that
//! precedes it; time differences are then zigzag-encoded. Bit 1 is set if the events are
//! *consistent*: none contradicts the memory state before it.
//!
//! Events are stored as *operations* of one byte each: an allocation; a free whose request and
//! completion are consecutive events (the common case); a free's request or completion alone; or
//! any other event, whose fields are all in one column. An allocation refers to a shape (device,
//! stream, pool, requested size and size, in a table), and has an address and a site. A free says
//! how many allocations ago its block was allocated.
//!
//! Most blocks are placed where a block was freed shortly before, or right after a block just
//! allocated. So recently freed and adjacent addresses are *candidates*, and an address is stored
//! as one byte: how many candidates ago it became one. The end of an allocated block and the
//! address of a completed free become candidates. On the benchmark recording `big` this takes 0.18
//! bytes per event; offsets within the segment would take 0.48.
//!
//! Relabels are in columns of their own, which older readers skip: see `relabels`.
//!
//! Every chunk is independent: at its start there are no shapes, candidates and allocations.

mod fields;
mod layout;
mod other_events;
mod reader;
mod relabels;
mod writer;

pub(crate) use fields::{put_pool, read_device, read_pool, read_stage, stage_code};
pub(crate) use reader::{EventColumns, EventReader, FreedBlock, Operation};
pub(crate) use relabels::PlacedRelabel;
pub(crate) use writer::EventWriter;
