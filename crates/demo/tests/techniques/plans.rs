//! Plans: combinations, errors, categories and reproducibility.

use vramscope_demo::techniques::{DeviceKind, Plan, Sizes, Technique};
use vramscope_trace::Category;

use crate::recorded::{NOT_ON_HOST, is_recorded, run, run_plan};

#[test]
fn categories_cover_nearly_all_bytes_at_the_peak() {
    for technique in Technique::all().iter().filter(|technique| is_recorded(technique.name)) {
        let recorded = run(technique.name);
        let total: u64 = recorded.at_peak.values().sum();
        let unknown = recorded.peak_bytes_of(Category::Unknown);
        assert!(unknown * 100 <= total, "{}: {unknown} of {total} bytes have no category", technique.name);
        let sum: u64 = recorded.peak_by_category().values().sum();
        assert_eq!(sum, total);
    }
}

#[test]
fn runs_are_reproducible_and_techniques_combine() {
    let names = "checkpoint-blocks,mixed-bf16,adam-8bit,expandable-segments";
    let [first, second] = [run(names), run(names)];
    assert_eq!(first.report.losses, second.report.losses);
    assert_eq!(first.report.peak_requested_bytes, second.report.peak_requested_bytes);
    assert_eq!(first.report.technique, names);
    let sizes = Sizes { steps: Some(2), layers: Some(3), batch: Some(4), seed: Some(9), ..Sizes::default() };
    let plan = Plan::new(&["train"], DeviceKind::Host, &sizes).expect("the sizes fit");
    let report = run_plan(&plan).report;
    assert_eq!(report.losses.len(), 2);
    assert_ne!(report.losses[0], run("train").report.losses[0]);
}

#[test]
fn checkpointing_and_mixed_precision_combine() {
    let sizes = Sizes::default();
    let names = [&["checkpoint-blocks", "mixed-bf16"][..], &["mixed-bf16"]];
    let [with, without] = Plan::pair(names, DeviceKind::Host, &sizes).expect("they fit").map(|plan| run_plan(&plan));
    // The recomputation has the precision of the forward pass.
    assert_eq!(with.report.losses, without.report.losses);
    assert!(with.report.peak_allocated_bytes < without.report.peak_allocated_bytes);
}

#[test]
fn wrong_combinations_say_what_does_not_fit() {
    let check = |names: &[&str], sizes: &Sizes, parts: &[&str]| {
        let error = Plan::new(names, DeviceKind::Host, sizes).expect_err("the plan is wrong").to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    };
    let sizes = Sizes::default();
    check(&["nonsense"], &sizes, &["\"nonsense\"", "--list"]);
    check(&["train", "kv-cache"], &sizes, &["train", "kv-cache", "GPT training", "text generation"]);
    check(&["adam", "sgd"], &sizes, &["adam", "sgd", "optimizer"]);
    check(&["mixed-bf16", "mixed-f16"], &sizes, &["mixed-bf16", "mixed-f16", "precision"]);
    check(&[NOT_ON_HOST], &sizes, &[NOT_ON_HOST, "GPU"]);
    check(&["train"], &Sizes { width: Some(63), ..sizes }, &["63", "heads"]);
    check(&["accumulate"], &Sizes { batch: Some(6), ..sizes }, &["6", "4 equal parts"]);
    check(&["train"], &Sizes { batch: Some(0), ..sizes }, &["batch"]);
    check(&[], &sizes, &["at least one"]);
}
