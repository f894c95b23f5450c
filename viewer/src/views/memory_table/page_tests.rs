//! The view "Memory table", as the page and scripts get it.

use serde_json::{Value, json};
use vramscope_insight::group::{GroupBy, Grouping};
use vramscope_insight::tables::phase_table;
use vramscope_trace::Lifetimes;

use crate::testing::page::shown;
use crate::testing::program::training;
use crate::testing::rows::rows;
use crate::testing::{DEVICE, open};

#[test]
fn phases_are_those_of_the_analysis() {
    // The second recording has spans; its requests have stacks without modules, so that their phase
    // is "other".
    for (mut session, expected_names) in [
        (open("mlp_train.pickle.zst"), ["forward", "backward", "optimizer", "other"].as_slice()),
        (training(6, false), ["other"].as_slice()),
    ] {
        let recording = session.model.recording();
        let lifetimes = Lifetimes::from_recording(recording).expect("a readable recording");
        let lifetimes = lifetimes.device(DEVICE).expect("the device has events");
        let mut grouping = Grouping::of(GroupBy::Phase, recording);
        let range = (recording.first_event(), recording.end_event());
        let expected = phase_table(recording.definitions(), &mut grouping, lifetimes, range);
        let expected: Vec<Value> = (expected.into_iter())
            .map(|row| {
                let kept = i64::try_from(row.kept_bytes()).expect("sizes are far from 2^63");
                json!({
                    "name": row.name,
                    "before_bytes": row.before_bytes,
                    "peak_bytes": row.peak_bytes,
                    "after_bytes": row.after_bytes,
                    "kept_bytes": kept,
                    "count": row.count,
                    "from_event": row.from_event,
                    "to_event": row.to_event,
                })
            })
            .collect();
        assert_eq!(expected.iter().map(|row| &row["name"]).collect::<Vec<_>>(), expected_names);
        assert_eq!(rows(&mut session, "table", r#"{"by": "phase", "mode": "phases"}"#), expected);
        // The phase is what the view groups by unless another key is chosen.
        assert_eq!(rows(&mut session, "table", r#"{"mode": "phases"}"#), expected);
        assert!(rows(&mut session, "table", r#"{"by": "line", "mode": "phases"}"#).is_empty());
        let text = shown(&mut session, "table", &[]);
        let (_, phases) = text.split_once("Each phase at its highest peak\n").expect("a table of phases");
        let (phases, spans) = phases.split_once("Each span at its highest peak\n").expect("a table of spans");
        assert!(phases.starts_with("phase | before | peak | after | kept | count | \n"), "{phases}");
        assert!(spans.starts_with("span | before | "), "{spans}");
        for name in expected_names {
            assert!(phases.contains(&format!("\n{name} | ")), "{phases}");
        }
    }
}
