//! A history whose beginning is cut off gives the same memory state as the whole history, at every
//! remaining event.

use serde_json::Value;
use vramscope_trace::{Counters, DeviceId};

use super::common::{LARGE, SMALL, import_all, moments, recorded};
use super::unpickle;

/// Returns the counters at the last `events` events of the only device that has any, and the notes.
fn last_moments(json: &Value, name: &str, events: usize) -> (Vec<Counters>, Vec<String>) {
    let bytes = serde_json::to_vec(json).expect("the values are plain data");
    let (memory, imported) = import_all(&bytes, name);
    assert_eq!(imported.contradictions, 0, "{name} with {events} events: {:?}", imported.info.import_notes);
    let (mut moments, state) = moments(&memory, DeviceId(0));
    assert_eq!(
        state.device(DeviceId(0)).map(|device| device.inconsistencies()),
        Some(0),
        "{name} with {events} events"
    );
    let late = moments.split_off(moments.len() - 1 - events);
    (late, imported.info.import_notes)
}

/// Returns the number in the note that contains these words.
fn count_in_notes(notes: &[String], words: &str) -> u64 {
    let note = notes.iter().find(|note| note.contains(words));
    let count = note.and_then(|note| note.split(": ").nth(1)?.split(' ').next());
    count.and_then(|count| count.replace(',', "").parse().ok()).unwrap_or(0)
}

#[test]
fn state_before_a_cut_off_history_is_rebuilt() {
    for name in SMALL.into_iter().chain(LARGE) {
        let Some(recorded) = recorded(name) else { continue };
        let mut whole = unpickle::to_json_without_frames(&recorded.pickle);
        let history = whole["device_traces"][0].as_array().expect("the history is a list").clone();
        whole["device_traces"] = Value::Array(vec![Value::Array(history.clone())]);
        let (all, _) = last_moments(&whole, name, history.len());
        for cut in [1, 2, 7, history.len() / 5, history.len() / 2, history.len() - 3, history.len()] {
            let events = history.len() - cut;
            let mut late = whole.clone();
            late["device_traces"] = Value::Array(vec![Value::Array(history[cut..].to_vec())]);
            let expected = &all[cut..];
            let (got, notes) = last_moments(&late, name, events);
            let uncertain = count_in_notes(&notes, "up to 1 MiB");
            assert!(!notes.iter().any(|note| note.contains("differ")), "{name} without {cut}: {notes:?}");
            for (moment, (expected, got)) in expected.iter().zip(&got).enumerate() {
                let at = format!("{name} without {cut}, moment {moment}");
                assert_eq!((got.reserved, got.requested), (expected.reserved, expected.requested), "{at}");
                // If only the lost part shows the size of a block, its tail is unknown.
                let missing = expected.active - got.active;
                assert!(missing <= uncertain << 20, "{at}: {missing} bytes missing");
                assert!(expected.allocated - got.allocated <= uncertain << 20, "{at}");
            }
        }
    }
}
