//! The walk from the gallery to the explained leak of outputs that keep their graph.
//! `docs/tour.md` describes it.

use vramscope_tests::gallery::entries;
use vramscope_tests::recorded::{Recorded, Sum, size};

use super::walk::Walk;

/// The script's file.
const FILE: &str = "keep_outputs.py";
/// Its line that calls the model.
const LINE: u32 = 28;

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn which_line_leaks_in_the_gallery_where_outputs_keep_their_graph() {
    let entry = entries().into_iter().find(|entry| entry.name == "kept-outputs").expect("the gallery has the leak");
    let recorded = Recorded::open(&entry.paths()[0]);
    let steps = recorded.steps();
    let (first, last) = (steps[1], steps[steps.len() - 1]);
    // What a call of the script's line allocates and the program does not free is the leak.
    let held = |moment| {
        let state = recorded.state(moment);
        let calls = state.blocks().filter(|block| recorded.line_in(block.site, FILE) == Some(LINE));
        Sum::of(calls.map(|block| block.size)).bytes
    };
    let growth = (held(last.to_event) - held(first.to_event)) / (last.number - first.number);
    let end = recorded.recording.end_event();
    // The sentence of the view, then the guide's explanation of it.
    let view = format!("grow by {} a step, all but ", size(growth));
    let line = format!(" of it through {FILE}:{LINE}");
    let explained = [
        view.clone(),
        line.clone(),
        format!(
            "{FILE}:{LINE}: {} a step, {} at the end",
            size(growth),
            size(recorded.state(end).counters().allocated)
        ),
    ];
    Walk::start_in_gallery()
        .picture("gallery")
        .click_card(&entry.title)
        .wait_for_text("the question", &[entry.question])
        .picture("gallery-question")
        .click("Where to look")
        .wait_for_text("the leak", &[view, line])
        .picture("gallery-leak")
        .click("Answer")
        .expect("gallery-answer", &explained);
}
