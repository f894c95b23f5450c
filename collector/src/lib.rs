//! What a training program embeds.

mod hub;
mod recorder;
mod server;

pub use hub::{Hub, HubLimits, Viewer};
pub use recorder::{FileErrorCallback, Outputs, Recorder, RecorderHandle, Summary};
pub use server::{Asset, Assets, Content, DEFAULT_PORT, MEDIA_TYPE, Recorded, Server, StartError, page_address};
