//! Reads the recorded snapshots and the counters that PyTorch reported for them.

use std::borrow::Cow;
use std::path::PathBuf;

use serde_json::Value;
use vramscope_formats::{ImportSummary, Limits, ignore_progress, import, unpack};
use vramscope_trace::{Counters, DeviceId, MemorySink, MemoryState};

#[path = "../../../../../tests/src/snapshot_names.rs"]
#[expect(unreachable_pub, reason = "public in `vramscope-tests`")]
mod snapshot_names;
pub(crate) use snapshot_names::{LARGE, SMALL};

/// A recorded snapshot and the counters that PyTorch reported.
pub(crate) struct Recorded {
    pub(crate) name: &'static str,
    pub(crate) pickle: Vec<u8>,
    pub(crate) truth: Value,
}

/// Reads a snapshot; prints a message and returns `None` if it does not exist.
pub(crate) fn recorded(name: &'static str) -> Option<Recorded> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = [root.join("tests/data"), root.join("../shared/snapshots")];
    let Some(folder) = folders.iter().find(|folder| folder.join(format!("{name}.pickle.zst")).exists()) else {
        println!("SKIPPED: {name} is neither in tests/data nor in ../shared/snapshots");
        return None;
    };
    let packed = std::fs::read(folder.join(format!("{name}.pickle.zst"))).expect("the recording can be read");
    let truth = std::fs::read(folder.join(format!("{name}.json"))).expect("the counters can be read");
    let pickle = unpack(&packed, &Limits::default()).map(Cow::into_owned).expect("the recording unpacks");
    Some(Recorded { name, pickle, truth: serde_json::from_slice(&truth).expect("the counters are JSON") })
}

/// Imports into memory.
pub(crate) fn import_all(bytes: &[u8], name: &str) -> (MemorySink, ImportSummary) {
    import(bytes, name, &Limits::default(), &mut ignore_progress, |_| MemorySink::default())
        .unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns the counters of one device at every moment, from before the first event to after the
/// last, and the state at the end.
pub(crate) fn moments(memory: &MemorySink, device: DeviceId) -> (Vec<Counters>, MemoryState) {
    let mut state = memory.states.first().map(|(_, state)| state.clone()).unwrap_or_default();
    let counters = |state: &MemoryState| state.device(device).map(|device| device.counters()).unwrap_or_default();
    let mut moments = vec![counters(&state)];
    for event in &memory.events {
        state.apply(event);
        if event.device == device {
            moments.push(counters(&state));
        }
    }
    (moments, state)
}
