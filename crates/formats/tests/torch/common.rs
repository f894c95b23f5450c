//! Where the recordings lie, and what they should give.

use std::borrow::Cow;
use std::path::PathBuf;

use serde_json::Value;
use vramscope_formats::{Imported, Limits, import, unpack};
use vramscope_trace::{Counters, DeviceId, Memory, MemoryState};

/// The recordings that come with the repository.
pub(crate) const SMALL: [&str; 5] = ["tiny_inference", "mlp_train", "frag_a_expandable", "ring", "graphs"];
/// Those looked for beside it.
pub(crate) const LARGE: [&str; 10] = [
    "cppstacks",
    "frag_a",
    "frag_a_gc",
    "frag_a_maxsplit",
    "frag_a_roundup",
    "gpt_varlen",
    "gpt_varlen_expandable",
    "oom_frag",
    "resnet50_train",
    "two_gpus",
];

/// A real snapshot and what PyTorch's own counters said.
pub(crate) struct Recorded {
    pub(crate) name: &'static str,
    pub(crate) pickle: Vec<u8>,
    pub(crate) truth: Value,
}

/// Reads a recording; `None`, and says so, where it is not there.
pub(crate) fn recorded(name: &'static str) -> Option<Recorded> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let places = [root.join("tests/data"), root.join("../shared/snapshots")];
    let Some(place) = places.iter().find(|place| place.join(format!("{name}.pickle.zst")).exists()) else {
        println!("SKIPPED: {name} is neither in tests/data nor in ../shared/snapshots");
        return None;
    };
    let packed = std::fs::read(place.join(format!("{name}.pickle.zst"))).expect("the recording can be read");
    let truth = std::fs::read(place.join(format!("{name}.json"))).expect("its ground truth can be read");
    let pickle = unpack(&packed, &Limits::default()).map(Cow::into_owned).expect("the recording unpacks");
    Some(Recorded { name, pickle, truth: serde_json::from_slice(&truth).expect("the ground truth is JSON") })
}

/// Imports into memory.
pub(crate) fn import_all(bytes: &[u8], name: &str) -> (Memory, Imported) {
    import(bytes, name, &Limits::default(), &mut |_, _| {}, |_| Memory::default())
        .unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The counters of every moment of one device, from before the first event to after the last, and the state at the end.
pub(crate) fn moments(memory: &Memory, device: DeviceId) -> (Vec<Counters>, MemoryState) {
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
