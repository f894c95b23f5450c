//! An opened recording: chunks, overview, index, replay and timelines.

mod checkpoints;
mod damage;
mod event_pass;
mod index;
mod opener;
mod overview;
mod packed_end;
mod range_copy;
mod recording_data;
mod replay;
mod stored_chunk;
mod timeline;
mod trim;
mod trim_progress;

pub use damage::Damage;
pub use opener::RecordingOpener;
pub use overview::{Incident, IncidentKind};
pub use range_copy::RangeCopy;
pub use recording_data::Recording;
pub use replay::Replay;
pub use stored_chunk::ReadAt;
pub use timeline::MAX_EXACT_EVENTS;
