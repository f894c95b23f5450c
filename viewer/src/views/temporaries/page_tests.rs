//! The view "Temporaries", as the page and scripts get it.

use vramscope_insight::group::{GroupBy, Grouping};
use vramscope_insight::temporaries::temporaries_by_group;
use vramscope_trace::Lifetimes;

use crate::testing::page::shown;
use crate::testing::program::training;
use crate::testing::rows::{number, rows};
use crate::testing::{DEVICE, open};

#[test]
fn temporaries_equal_those_of_the_analysis() {
    // The second recording has more events than are counted in one frame.
    for mut session in [open("mlp_train.pickle.zst"), training(8_000, true)] {
        let recording = session.model.recording();
        let lifetimes = Lifetimes::from_recording(recording).expect("a readable recording");
        let end = recording.end_event();
        let mut by_line = Grouping::of(GroupBy::Line, recording);
        for (from, to, within) in [(0, end, 2), (end / 3, end / 2, 1), (10, end - 5, 40)] {
            let lifetimes = lifetimes.device(DEVICE).expect("the device has events");
            let group_of = |one: &_| by_line.group_of_allocation(one);
            let expected = temporaries_by_group(lifetimes, from + 1..=to, within, group_of, |_| 0);
            let options = format!(r#"{{"from": {from}, "to": {to}, "number": {within}}}"#);
            let found = rows(&mut session, "temporaries", &options);
            let found: Vec<[u64; 3]> = (found.iter())
                .map(|row| ["bytes", "allocations", "largest_bytes"].map(|name| number(row, name)))
                .collect();
            let expected: Vec<[u64; 3]> =
                expected.iter().map(|one| [one.churned_bytes, one.allocations, one.largest_bytes]).collect();
            assert_eq!(found, expected, "{options}");
        }
    }
    let mut session = training(10, false);
    let text = shown(&mut session, "temporaries", &[]);
    let expected = "10 allocations, 20 KiB in all, were freed at most 2 events later: 24.4% of the allocations and \
                    1.6% of the bytes allocated in the recording.";
    assert!(text.contains(expected), "{text}");
    let text = shown(&mut session, "temporaries", &["number temporaries 1"]);
    assert!(text.contains("were freed by the next event"), "{text}");
}
