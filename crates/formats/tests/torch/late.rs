//! A history whose beginning is cut off gives the same memory as the whole one, at every event that is left.

use serde_json::Value;
use vramscope_trace::{Counters, DeviceId};

use crate::common::{LARGE, SMALL, import_all, moments, recorded};
use crate::unpickle;

/// The counters at the last `events` events of the only device that has any, and the notes.
fn last_moments(json: &Value, name: &str, events: usize) -> (Vec<Counters>, Vec<String>) {
    let bytes = serde_json::to_vec(json).expect("JSON of plain data");
    let (memory, imported) = import_all(&bytes, name);
    assert_eq!(imported.misfits, 0, "{name} with {events} events: {:?}", imported.notes);
    let (mut moments, state) = moments(&memory, DeviceId(0));
    assert_eq!(state.device(DeviceId(0)).map(|device| device.misfits()), Some(0), "{name} with {events} events");
    let late = moments.split_off(moments.len() - 1 - events);
    (late, imported.notes)
}

/// The number in a note that has these words.
fn count_in_notes(notes: &[String], words: &str) -> u64 {
    let note = notes.iter().find(|note| note.contains(words));
    note.and_then(|note| note.split(' ').next()?.parse().ok()).unwrap_or(0)
}

#[test]
fn a_beginning_cut_off_is_rebuilt() {
    for name in SMALL.into_iter().chain(LARGE) {
        let Some(recorded) = recorded(name) else { continue };
        let mut whole = unpickle::to_json_without_frames(&recorded.pickle);
        let history = whole["device_traces"][0].as_array().expect("a history").clone();
        whole["device_traces"] = Value::Array(vec![Value::Array(history.clone())]);
        let (all, _) = last_moments(&whole, name, history.len());
        for cut in [1, 2, 7, history.len() / 5, history.len() / 2, history.len() - 3, history.len()] {
            let events = history.len() - cut;
            let mut late = whole.clone();
            late["device_traces"] = Value::Array(vec![Value::Array(history[cut..].to_vec())]);
            let expected = &all[cut..];
            let (got, notes) = last_moments(&late, name, events);
            let unsure = count_in_notes(&notes, "up to 1 MiB");
            assert!(!notes.iter().any(|note| note.contains("differ")), "{name} without {cut}: {notes:?}");
            for (at, (expected, got)) in expected.iter().zip(&got).enumerate() {
                let place = format!("{name} without {cut}, moment {at}");
                assert_eq!((got.reserved, got.requested), (expected.reserved, expected.requested), "{place}");
                // Of some blocks that only the lost part would tell the size of, the tail is not seen.
                let missing = expected.active - got.active;
                assert!(missing <= unsure << 20, "{place}: {missing} bytes missing");
                assert!(expected.allocated - got.allocated <= unsure << 20, "{place}");
            }
        }
    }
}
