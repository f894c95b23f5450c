//! What the recordings of `examples/pytorch` show of the scripts that made them.

use std::collections::BTreeMap;

use vramscope_insight::group::{GroupBy, Grouping};
use vramscope_insight::history::History;
use vramscope_trace::{Category, DeviceId, Recording, Replay};

use crate::recordings::recordings_in;

/// The GPU of the scripts.
const DEVICE: DeviceId = DeviceId(0);
/// Reads the example recordings, each with its name, such as `gradients_kept-with.vram`.
fn recordings() -> impl Iterator<Item = (String, Recording)> {
    recordings_in("../../examples/pytorch/recordings")
}

/// Returns the bytes of the live blocks at a moment, by category and by the name of their group.
fn live_bytes(recording: &Recording, moment: u64, by: GroupBy) -> BTreeMap<(Category, String), u64> {
    let mut replay = Replay::new();
    let state = replay.seek(recording, moment).expect("the recording is complete");
    let history = History::of(recording).expect("the recording is complete");
    let mut grouping = Grouping::of(by, recording).with_categories(&history.categories(DEVICE));
    let mut bytes = BTreeMap::new();
    for block in state.device(DEVICE).expect("the script used the GPU").blocks() {
        let group = grouping.group_of(block);
        let name = grouping.group_name(recording.definitions(), group);
        *bytes.entry((grouping.category_of(block).category, name)).or_default() += block.size;
    }
    bytes
}

#[test]
fn memory_at_the_peak_has_categories() {
    for (name, recording) in recordings() {
        let peak = recording.series(DEVICE).expect("the script used the GPU").peak_allocated().event;
        let bytes = live_bytes(&recording, peak, GroupBy::Category);
        let unknown: u64 =
            bytes.iter().filter(|((category, _), _)| *category == Category::Unknown).map(|(_, size)| size).sum();
        let share = unknown as f64 / bytes.values().sum::<u64>() as f64;
        assert!(share <= 0.01, "{name}: {share} of the bytes at the peak have no category");
    }
}

#[test]
fn kept_gradients_are_at_the_lines_of_the_forward_pass() {
    let mut count = 0;
    for (name, recording) in recordings().filter(|(name, _)| name.starts_with("gradients_kept-")) {
        count += 1;
        let bytes = live_bytes(&recording, recording.end_event(), GroupBy::Line);
        let of = |wanted: &dyn Fn(&str) -> bool, category| -> u64 {
            bytes.iter().filter(|((at, line), _)| *at == category && wanted(line)).map(|(_, size)| size).sum()
        };
        let (gradients, parameters) = (of(&|_| true, Category::Gradient), of(&|_| true, Category::Parameter));
        if name == "gradients_kept-without.vram" {
            assert_eq!(gradients, 0, "{name}: the gradients were cleared");
            continue;
        }
        // Blocks are larger than the tensors in them by up to 1 MiB.
        let ratio = gradients as f64 / parameters as f64;
        assert!((1.0..1.1).contains(&ratio), "{name}: gradients take {ratio} times the bytes of parameters");
        // The layers of attention, the MLP and the head; the embeddings are small.
        let at_layers = of(&|line| line.contains("_models.py:"), Category::Gradient);
        assert!(
            at_layers as f64 >= 0.99 * gradients as f64,
            "{name}: {at_layers} of {gradients} B are at their layers"
        );
        // Parameters were allocated where the script moves the model to the GPU.
        assert_eq!(of(&|line| line.starts_with("gradients_kept.py:"), Category::Parameter), parameters, "{name}");
    }
    assert_eq!(count, 2);
}
