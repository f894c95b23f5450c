//! Decoding and seeking in wasm without a page; `cargo xtask bench-browser` times these calls.
#![cfg(target_arch = "wasm32")]

use vramscope_trace::{Recording, RecordingOpener, Replay};
use wasm_bindgen::prelude::*;

/// A recording's bytes and their decoded form.
#[wasm_bindgen]
pub struct Measured {
    bytes: Vec<u8>,
    recording: Recording,
    replay: Replay,
}

#[wasm_bindgen]
impl Measured {
    /// Keeps the bytes without decoding them.
    #[wasm_bindgen(constructor)]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, recording: Recording::new(), replay: Replay::new() }
    }

    /// Decodes the recording with its counters over time. Returns the number of events.
    pub fn take_in(&mut self) -> Result<f64, String> {
        self.recording = Recording::new();
        self.replay = Replay::new();
        self.recording.push(&self.bytes).map_err(|error| error.to_string())?;
        Ok(self.recording.events() as f64)
    }

    /// Decodes and applies every event.
    pub fn play(&mut self) -> Result<(), String> {
        let (first, end) = (self.recording.first_event(), self.recording.end_event());
        let mut replay = Replay::new();
        replay.play(&self.recording, first, end).map(|_| ()).map_err(|error| error.to_string())
    }

    /// Opens the recording by its index. Returns the bytes read.
    pub fn open(&mut self) -> Result<f64, String> {
        let mut opening = RecordingOpener::new(self.bytes.len() as u64);
        let mut read = 0;
        while let Some(range) = opening.wanted_range() {
            read += range.end - range.start;
            opening.supply(range.start, &self.bytes[range.start as usize..range.end as usize]);
        }
        self.recording = opening.finish().ok_or("the recording has no index")?;
        self.replay = Replay::new();
        Ok(read as f64)
    }

    /// Goes to a moment after loading its chunks.
    pub fn seek(&mut self, event: f64) -> Result<(), String> {
        let event = event as u64;
        for range in self.recording.missing(event) {
            let bytes = &self.bytes[range.start as usize..range.end as usize];
            self.recording.supply(range.start, bytes).map_err(|error| error.to_string())?;
        }
        self.replay.seek(&self.recording, event).map(|_| ()).map_err(|error| error.to_string())
    }
}
