//! Tests of plans: combinations, errors, categories and reproducibility.

use vramscope_demo::techniques::{DeviceKind, Plan, Sizes, Technique};
use vramscope_trace::Category;

use crate::recorded::{NOT_ON_HOST, SMALL, device_kind, is_recorded, plan, run, run_plan};

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
    let [first, second] = [plan(names), plan(names)].map(|plan| run_plan(&plan));
    assert_eq!(first.report.losses, second.report.losses);
    assert_eq!(first.report.peak_requested_bytes, second.report.peak_requested_bytes);
    assert_eq!(first.report.technique, names);
    let sizes = Sizes { steps: Some(2), layers: Some(3), batch: Some(4), seed: Some(9), ..SMALL };
    let plan = Plan::new(&["train"], device_kind(), &sizes).expect("the sizes fit");
    let report = run_plan(&plan).report;
    assert_eq!(report.losses.len(), 2);
    assert_ne!(report.losses[0], run("train").report.losses[0]);
}

#[test]
fn checkpointing_and_mixed_precision_combine() {
    let sizes = SMALL;
    let names = [&["checkpoint-blocks", "mixed-bf16"][..], &["mixed-bf16"]];
    let [with, without] = Plan::pair(names, device_kind(), &sizes).expect("they fit").map(|plan| run_plan(&plan));
    // The recomputation has the precision of the forward pass.
    assert_eq!(with.report.losses, without.report.losses);
    assert!(with.report.peak_allocated_bytes < without.report.peak_allocated_bytes);
}

#[test]
fn techniques_combine_with_other_programs() {
    let names = [&["resnet"][..], &["resnet", "mixed-bf16"]];
    let [plain, mixed] = Plan::pair(names, device_kind(), &SMALL).expect("they fit").map(|plan| run_plan(&plan));
    let [of_plain, of_mixed] = [&plain, &mixed].map(|run| run.peak_bytes_of(Category::Activation));
    assert!(of_mixed * 10 < of_plain * 8, "convolutions in bf16: {of_mixed} of {of_plain} bytes");
    let difference = plain.report.losses.iter().zip(&mixed.report.losses).map(|(a, b)| (a - b).abs());
    assert!(difference.fold(0.0, f32::max) < 0.05);
    // The order of names does not matter; settings of the pool work in every program.
    assert_eq!(run("mixed-bf16,resnet").report.losses, mixed.report.losses);
    for program in ["inference", "generate", "two-layer", "loading-eager", "batch-fixed", "side-stream"] {
        let [plain, expandable] = [program, &format!("{program},expandable-segments")].map(run);
        assert_eq!(plain.report.losses, expandable.report.losses, "{program}");
    }
    let quarter = run("loading-eager,adam-8bit").report.optimizer_bytes * 10 / 3;
    assert!(quarter <= run("loading-eager,adam").report.optimizer_bytes);
}

#[test]
fn wrong_combinations_say_what_does_not_fit() {
    let check = |names: &[&str], sizes: &Sizes, parts: &[&str]| {
        let error = Plan::new(names, DeviceKind::Host, sizes).expect_err("the plan is wrong").to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    };
    let sizes = SMALL;
    check(&["nonsense"], &sizes, &["\"nonsense\"", "--list"]);
    check(&["train", "kv-cache"], &sizes, &["train", "kv-cache", "GPT training", "text generation"]);
    check(&["expandable-segments", "resnet", "two-layer"], &sizes, &["resnet", "two-layer network"]);
    check(&["kv-cache", "mixed-bf16"], &sizes, &["text generation", "GPT training"]);
    check(&["adam", "sgd"], &sizes, &["adam", "sgd", "optimizer"]);
    check(&["mixed-bf16", "mixed-f16"], &sizes, &["mixed-bf16", "mixed-f16", "precision"]);
    check(&[NOT_ON_HOST], &sizes, &[NOT_ON_HOST, "GPU"]);
    check(&["train"], &Sizes { width: Some(63), ..sizes }, &["63", "heads"]);
    check(&["accumulate"], &Sizes { batch: Some(6), ..sizes }, &["6", "4 equal parts"]);
    check(&["train"], &Sizes { batch: Some(0), ..sizes }, &["batch"]);
    check(&[], &sizes, &["at least one"]);
}
