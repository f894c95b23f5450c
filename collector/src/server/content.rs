//! What a server offers to its clients.

use std::sync::Arc;

use super::assets::Assets;
use super::fleet_feed::FleetFeed;
use super::ranges::RecordingBytes;
use crate::aggregator::Aggregator;
use crate::controls::Controls;
use crate::hub::Hub;

/// A complete recording and the name under which it is served.
#[derive(Clone, Debug)]
pub struct ServedRecording {
    /// The file name in the recording's URL.
    pub name: String,
    /// The recording.
    pub bytes: RecordingBytes,
    /// The recording's number of events; `None` if unknown.
    pub events: Option<u64>,
}

/// What a server offers to its clients: the page, a live recording, complete recordings and
/// commands.
#[derive(Clone, Debug)]
pub struct ServedContent {
    /// The page's files.
    pub assets: Assets,
    /// The live recording, served at `/ws` and `/trace.vram`.
    pub live: Option<Hub>,
    /// Complete recordings, served at `/files/INDEX/NAME` and listed at `/files`. Without a live
    /// recording, the page opens the only one, or lists several.
    pub files: Vec<ServedRecording>,
    /// Commands that clients with the token may give.
    pub controls: Option<Controls>,
    /// The aggregator whose merged recording is the live one.
    pub aggregator: Option<Aggregator>,
    /// True if processes may push their recordings to the aggregator, at `/push`.
    pub accepts_push: bool,
    /// The ranks of a training run, served at `/fleet/`.
    pub fleet: Option<Arc<dyn FleetFeed>>,
}

impl ServedContent {
    /// Returns content with the page and the hub's live recording.
    #[must_use]
    pub fn live(hub: Hub) -> Self {
        Self { live: Some(hub), ..Self::files(Vec::new()) }
    }

    /// Returns content with the page and complete recordings.
    #[must_use]
    pub fn files(files: Vec<ServedRecording>) -> Self {
        let (assets, accepts_push) = (Assets::default(), true);
        Self { assets, live: None, files, controls: None, aggregator: None, accepts_push, fleet: None }
    }
}
