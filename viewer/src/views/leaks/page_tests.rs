//! The view "Leaks and growth", as the page and scripts get it.

use vramscope_trace::{AnnotationStage, Lifetimes};

use crate::testing::page::shown;
use crate::testing::program::{Program, training};
use crate::testing::rows::{number, rows, sum};
use crate::testing::{DEVICE, open};

#[test]
fn leaks_are_told_in_plain_words() {
    let mut healthy = training(20, false);
    let text = shown(&mut healthy, "leaks", &[]);
    assert!(text.contains("No leak found: nothing grows from step to step."), "{text}");
    assert!(rows(&mut healthy, "leaks", "{}").is_empty());

    let mut leaking = training(20, true);
    let text = shown(&mut leaking, "leaks", &["last"]);
    assert!(text.contains("A leak: 2 sites grow by 2 KiB a step, all through train.py:3 main."), "{text}");
    assert!(text.contains("train.py:20 layer | +1 KiB | +17 KiB | 20 KiB | 17 of 17 | "), "{text}");
    assert!(text.contains("36 KiB in 36 blocks, allocated after the warm-up"), "{text}");
    assert!(text.contains("Blocks older than 10 steps at this moment"), "{text}");
    // The weights, and what the first nine steps leaked.
    assert!(text.contains("1.02 MiB live in 19 blocks"), "{text}");
    let text = shown(&mut leaking, "leaks", &["number leaks 25"]);
    assert!(text.contains("Fewer than 25 steps precede the step at this moment."), "{text}");
    let found = rows(&mut leaking, "leaks", r#"{"by": "line"}"#);
    assert_eq!(
        found.iter().map(|row| row["name"].as_str()).collect::<Vec<_>>(),
        [Some("train.py:20"), Some("train.py:21")]
    );
    assert!(found.iter().all(|row| row["bytes_per_step"] == 1024 && row["blocks"] == 18));
}

#[test]
fn sites_that_differ_only_in_library_frames_are_one_row_of_leaks() {
    let mut program = Program::new();
    let (main, layer) = (("train.py", 3, "main"), ("train.py", 20, "layer"));
    let hook = ("/x/site-packages/torch/nn/modules/module.py", 1827, "Module._call_impl.<locals>.inner");
    for number in 0..13 {
        program.mark(AnnotationStage::Begin, &format!("step {number}"));
        if number % 3 == 0 {
            program.allocate_in(&[main, hook, layer], 1024);
        } else {
            program.allocate_in(&[main, layer], 1024);
        }
        program.mark(AnnotationStage::End, &format!("step {number}"));
    }
    let mut session = program.finish();
    let text = shown(&mut session, "leaks", &[]);
    assert!(text.contains("A leak: 1 site grows by 1 KiB a step, train.py:20 layer."), "{text}");
    for by in ["site", "line"] {
        let found = rows(&mut session, "leaks", &format!(r#"{{"by": "{by}"}}"#));
        let [leak] = &found[..] else { panic!("one row: {found:?}") };
        assert_eq!(["bytes", "blocks", "bytes_per_step"].map(|name| number(leak, name)), [12 * 1024, 12, 1024]);
    }
    // Grouped by stack, each stack is a row.
    assert_eq!(rows(&mut session, "leaks", r#"{"by": "stack"}"#).len(), 2);
}

#[test]
fn unfreed_rows_of_a_range_equal_the_lifetimes() {
    let mut session = open("mlp_train.pickle.zst");
    let lifetimes = Lifetimes::from_recording(session.model.recording()).expect("a readable recording");
    let lifetimes = lifetimes.device(DEVICE).expect("the device has events");
    let end = session.model.recording().end_event();
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..20 {
        let from = random.u64(0..end);
        let to = random.u64(from..=end);
        let options = format!(r#"{{"from": {from}, "to": {to}, "by": "category"}}"#);
        let found = rows(&mut session, "leaks", &options);
        let expected: Vec<u64> = lifetimes.survivors(from..to, end).map(|one| one.size).collect();
        assert_eq!(sum(&found, "bytes"), expected.iter().sum::<u64>(), "{options}");
        assert_eq!(sum(&found, "blocks"), expected.len() as u64, "{options}");
    }
}
