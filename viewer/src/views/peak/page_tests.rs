//! The view "Peak", as the page and scripts get it.

use vramscope_insight::group::GroupBy;
use vramscope_viewer::model::PeakKind;

use crate::testing::page::shown;
use crate::testing::program::training;
use crate::testing::rows::{number, rows, sum};
use crate::testing::{DEVICE, counters_at, open};

#[test]
fn peak_rows_add_up_to_the_peak() {
    for name in ["mlp_train.pickle.zst", "streams.pickle.gz", "graphs.pickle.zst", "ring.pickle.zst"] {
        let mut session = open(name);
        let peak = session.model.recording().series(DEVICE).expect("it has events").peak_allocated();
        let (allocated, active, requested, blocks) = counters_at(session.model.recording(), peak.event);
        assert_eq!(allocated, peak.bytes);
        for by in GroupBy::ALL {
            let rows = rows(&mut session, "peak", &format!(r#"{{"by": "{}"}}"#, by.name()));
            assert_eq!(sum(&rows, "bytes"), allocated, "{name} by {}", by.name());
            assert_eq!(sum(&rows, "pending_bytes"), active - allocated, "{name} by {}", by.name());
            assert_eq!(sum(&rows, "requested_bytes"), requested, "{name} by {}", by.name());
            assert_eq!(sum(&rows, "blocks"), blocks, "{name} by {}", by.name());
            assert!(rows.windows(2).all(|pair| number(&pair[0], "bytes") >= number(&pair[1], "bytes")));
        }
    }
}

#[test]
fn peak_command_goes_there_and_explains_it() {
    let mut session = training(12, false);
    session.model.seek(1).expect("a readable recording");
    let text = shown(&mut session, "peak", &["peak"]);
    let peak = session.model.peak_event(PeakKind::Allocated);
    assert_eq!(session.model.state().event(), peak);
    // Every third step allocates three times 12 KiB.
    let bytes = (1 << 20) + 3 * 3 * 4096;
    let expected = [
        format!("peak: {}", vramscope_trace::ByteSize(bytes)),
        format!("moment: event {peak} at "),
        "step: number 2 (3 of 12)".to_owned(),
        "spans: step 2".to_owned(),
        "reached by: a request of 12 KiB: train.py:12 layer".to_owned(),
        "rounding: 400 B".to_owned(),
        "before steps: 1 MiB · 96.6%".to_owned(),
        "memory is as high again".to_owned(),
        "The same request comes within 1% of the peak 3 more times".to_owned(),
        "By category".to_owned(),
        format!("{} B in 4 blocks at the peak: the rows add up to it.", vramscope_trace::Count(bytes)),
        "train.py:5 | 1 MiB | 96.6% | 1 | 1 MiB | 1 MiB".to_owned(),
    ];
    for part in expected {
        assert!(text.contains(&part), "{part:?} is not in:\n{text}");
    }
}
