//! Tests of each technique's effect on memory, compared with its baseline at equal sizes.

use std::collections::BTreeSet;

use vramscope_demo::techniques::{DeviceKind, Figure, TechniqueReport};
use vramscope_trace::Category;

use crate::recorded::{NOT_ON_HOST, Recorded, device_kind, run, run_with_baseline, techniques};

/// A function that returns a figure of a run.
type FigureOf = fn(&Recorded) -> f64;

/// Returns the peak of the allocated bytes.
fn peak(run: &Recorded) -> f64 {
    run.report.peak_allocated_bytes as f64
}

/// Returns the peak of the requested bytes.
fn requested(run: &Recorded) -> f64 {
    run.report.peak_requested_bytes as f64
}

/// Returns the peak of the reserved bytes.
fn reserved(run: &Recorded) -> f64 {
    run.report.peak_reserved_bytes as f64
}

/// Returns the allocated bytes after the last step.
fn end_allocated(run: &Recorded) -> f64 {
    run.report.end_allocated_bytes as f64
}

/// Returns the reserved bytes after the last step.
fn end_reserved(run: &Recorded) -> f64 {
    run.report.end_reserved_bytes as f64
}

/// Returns the bytes of activations at the peak.
fn activations(run: &Recorded) -> f64 {
    run.peak_bytes_of(Category::Activation) as f64
}

/// Returns the bytes of optimizer state.
fn optimizer(run: &Recorded) -> f64 {
    run.report.optimizer_bytes as f64
}

/// Returns the number of allocations from the device.
fn device_allocations(run: &Recorded) -> f64 {
    run.report.device_allocations as f64
}

/// Returns the peak of the bytes in inactive splits.
fn split(run: &Recorded) -> f64 {
    run.report.peak_inactive_split_bytes as f64
}

/// Returns the allocated bytes after the first step.
fn first_step(run: &Recorded) -> f64 {
    run.report.step_allocated_bytes[0] as f64
}

/// Returns the median time of a step, in milliseconds.
fn step_time(run: &Recorded) -> f64 {
    run.report.step_ms
}

/// Returns a size or count that only some programs measure.
fn figure(report: &TechniqueReport, name: &str) -> u64 {
    let figure = report.figures.get(name).unwrap_or_else(|| panic!("{} has {name}", report.technique));
    figure.as_u64().expect("the figure is a size or a count")
}

/// Returns the bytes of the model's weights.
fn weights(run: &Recorded) -> f64 {
    figure(&run.report, "weight_bytes") as f64
}

fn kept_by_output(run: &Recorded) -> f64 {
    figure(&run.report, "kept_by_output_bytes") as f64
}

fn graphs(run: &Recorded) -> f64 {
    figure(&run.report, "graph_bytes") as f64
}

/// The allowed difference between the losses of a technique and its baseline.
#[derive(Clone, Copy)]
enum Losses {
    /// The losses are bitwise equal.
    Equal,
    /// The losses differ by at most this.
    Near(f32),
    /// The losses differ, because the technique computes something else.
    Differ,
    /// On the host, the losses are bitwise equal. On a GPU they differ, because they are computed
    /// from values that were overwritten.
    OverwrittenOnGpu,
}

/// A figure's name, its function, and the bounds of its value divided by the baseline's value.
type Ratio = (&'static str, FigureOf, f64, f64);

/// Each technique with its expected effect on the losses and figures of its baseline.
const EFFECTS: &[(&str, Losses, &[Ratio])] = &[
    ("keep-outputs", Losses::Equal, &[("peak", peak, 1.5, 4.0), ("end", end_allocated, 3.0, 20.0)]),
    ("keep-loss", Losses::Equal, &[("peak", peak, 1.5, 4.0), ("end", end_allocated, 3.0, 20.0)]),
    ("growing-list", Losses::Equal, &[("end", end_allocated, 1.1, 2.0)]),
    ("free-early", Losses::Equal, &[("peak", peak, 0.5, 0.85)]),
    ("empty-cache-after-warm-up", Losses::Equal, &[("end reserved", end_reserved, 0.0, 0.5), ("peak", peak, 1.0, 1.0)]),
    (
        "empty-cache-every-step",
        Losses::Equal,
        &[("end reserved", end_reserved, 0.0, 0.5), ("device allocations", device_allocations, 1.5, 10.0)],
    ),
    ("release-memory", Losses::Equal, &[("end", end_allocated, 0.0, 0.0), ("end reserved", end_reserved, 0.0, 0.0)]),
    ("offload", Losses::Equal, &[("peak", peak, 0.3, 0.7), ("optimizer", optimizer, 1.0, 1.0)]),
    ("accumulate", Losses::Near(1e-5), &[("peak", peak, 0.2, 0.6)]),
    ("gradients-kept", Losses::Differ, &[("peak", peak, 1.1, 1.5)]),
    ("zero-gradients", Losses::Equal, &[("peak", peak, 1.1, 1.5)]),
    ("checkpoint-blocks", Losses::Equal, &[("peak", peak, 0.1, 0.6), ("activations", activations, 0.0, 0.4)]),
    ("checkpoint-layers", Losses::Equal, &[("peak", peak, 0.1, 0.6), ("activations", activations, 0.0, 0.4)]),
    ("mixed-bf16", Losses::Near(0.02), &[("activations", activations, 0.4, 0.6), ("peak", peak, 0.4, 0.8)]),
    ("mixed-f16", Losses::Near(0.02), &[("activations", activations, 0.4, 0.6), ("peak", peak, 0.4, 0.8)]),
    ("adam-8bit", Losses::Near(0.02), &[("optimizer", optimizer, 0.2, 0.3), ("peak", peak, 0.5, 0.9)]),
    ("sgd", Losses::Differ, &[("optimizer", optimizer, 0.5, 0.5), ("peak", peak, 0.5, 0.95)]),
    ("adam", Losses::Near(0.01), &[("optimizer", optimizer, 1.0, 1.0), ("peak", peak, 1.0, 1.0)]),
    ("expandable-segments", Losses::Equal, &[("reserved", reserved, 0.2, 0.7), ("requested", requested, 1.0, 1.0)]),
    ("max-split", Losses::Equal, &[("unreleasable", split, 0.1, 0.6)]),
    ("garbage-collection", Losses::Equal, &[("reserved", reserved, 0.2, 0.85)]),
    ("roundup", Losses::Equal, &[("reserved", reserved, 0.4, 0.95), ("peak", peak, 1.0, 1.5)]),
    ("allocator-async", Losses::Equal, &[("requested", requested, 0.99, 1.01), ("peak", peak, 0.9, 1.1)]),
    (
        "allocator-driver",
        Losses::Equal,
        &[("device allocations", device_allocations, 50.0, 1e4), ("requested", requested, 0.99, 1.01)],
    ),
    ("in-place", Losses::Equal, &[("peak", peak, 0.4, 0.7)]),
    ("inference-with-graph", Losses::Equal, &[("peak", peak, 3.0, 20.0), ("kept", kept_by_output, 5.0, 100.0)]),
    ("int8-weights", Losses::Near(0.02), &[("weights", weights, 0.2, 0.35), ("peak", peak, 0.2, 0.6)]),
    ("kv-cache", Losses::Near(1e-4), &[("time", step_time, 0.0, 0.8), ("end", end_allocated, 1.05, 3.0)]),
    ("loading-generator", Losses::Equal, &[("peak", peak, 0.3, 0.7)]),
    ("loading-lazy", Losses::Equal, &[("peak", peak, 0.3, 0.7)]),
    ("pinned-staging", Losses::Equal, &[("after a step", first_step, 1.1, 2.0)]),
    ("batch-search", Losses::Differ, &[("peak", peak, 5.0, 100.0)]),
    ("record-stream", Losses::Equal, &[("peak", peak, 1.0, 1.0)]),
    ("no-record-stream", Losses::OverwrittenOnGpu, &[("peak", peak, 1.0, 1.0), ("reserved", reserved, 1.0, 1.0)]),
    ("graph-pools-shared", Losses::Equal, &[("graphs", graphs, 0.2, 0.7)]),
];

#[test]
fn each_technique_changes_its_figures_as_stated() {
    let expected: BTreeSet<_> = techniques().map(|technique| technique.name).collect();
    let tested = EFFECTS.iter().map(|effect| effect.0).collect();
    assert_eq!(expected, tested, "each technique has an effect");
    let is_on_host = device_kind() == DeviceKind::Host;
    for (name, losses, ratios) in EFFECTS.iter().filter(|effect| !(is_on_host && effect.0 == NOT_ON_HOST)) {
        let [with, without] = run_with_baseline(name);
        for (what, value, low, high) in *ratios {
            // Steps this small take a GPU only as long as the launches of their kernels.
            if *what == "time" && device_kind() == DeviceKind::Cuda {
                continue;
            }
            let ratio = value(with) / value(without);
            assert!((*low..=*high).contains(&ratio), "{name}: {what} is {ratio} of {}", value(without));
        }
        let differences = with.report.losses.iter().zip(&without.report.losses).map(|(a, b)| (a - b).abs());
        let difference = differences.fold(0.0, f32::max);
        match losses {
            Losses::Equal => assert_eq!(with.report.losses, without.report.losses, "{name}"),
            Losses::Near(bound) => assert!(difference <= *bound, "{name}: losses differ by {difference}"),
            Losses::Differ => assert!(difference > 1e-4, "{name}: losses differ by {difference}"),
            Losses::OverwrittenOnGpu if device_kind() == DeviceKind::Cuda => {
                assert!(difference > 1.0, "{name}: losses differ by {difference}");
            }
            Losses::OverwrittenOnGpu => assert_eq!(with.report.losses, without.report.losses, "{name}"),
        }
    }
}

/// Returns the change of the allocated bytes in each step except the first.
fn growth(report: &TechniqueReport) -> Vec<i64> {
    report.step_allocated_bytes[1..].windows(2).map(|pair| pair[1] as i64 - pair[0] as i64).collect()
}

#[test]
fn kept_graphs_grow_linearly_and_freed_ones_not_at_all() {
    for name in ["keep-outputs", "keep-loss", "growing-list"] {
        let [with, without] = run_with_baseline(name);
        let steps = growth(&with.report);
        let (least, most) = (steps.iter().min().expect("steps"), steps.iter().max().expect("steps"));
        assert!(*least > 0 && *most as f64 / *least as f64 <= 1.02, "{name}: {steps:?}");
        assert!(growth(&without.report).iter().all(|bytes| *bytes == 0), "{name}");
    }
    assert!(growth(&run("inference").report).iter().all(|bytes| *bytes == 0));
}

#[test]
fn gradients_that_are_kept_show_at_the_lines_of_the_model() {
    let source: Vec<&str> = include_str!("../../src/models/gpt.rs").lines().collect();
    let [with, without] = run_with_baseline("gradients-kept");
    // At the peak, the gradients of all parameters are live, not only those computed so far.
    let bytes = with.report.figures["parameter_bytes"].as_u64().expect("a size");
    assert!(with.peak_bytes_of(Category::Gradient) >= bytes);
    let added = with.peak_bytes_of(Category::Gradient) - without.peak_bytes_of(Category::Gradient);
    assert_eq!(added, with.report.peak_allocated_bytes - without.report.peak_allocated_bytes);
    // The gradients of a block's four linear layers are the largest ones.
    for layer in ["self.qkv.forward", "self.project.forward", "self.up.forward", "self.down.forward"] {
        let at_layer = |recorded: &Recorded| -> u64 {
            let sites = recorded.at_peak.iter().filter(|(site, _)| {
                let (file, line) = recorded.line_of(**site);
                let is_gradient = recorded.definitions.site(**site).category == Category::Gradient;
                is_gradient && file == "gpt.rs" && source[line as usize - 1].contains(layer)
            });
            sites.map(|(_, bytes)| bytes).sum()
        };
        assert!(at_layer(with) > 4 * 128 * 128 * 4, "{layer}: {} bytes", at_layer(with));
        assert!(at_layer(without) < at_layer(with), "{layer}");
    }
}

#[test]
fn batch_search_recovers_from_failures_and_nearly_fills_the_limit() {
    let search = run("batch-search");
    let report = &search.report;
    let (batch, limit) = (figure(report, "largest_batch"), figure(report, "limit_bytes"));
    let Figure::List(failed) = &report.figures["failed_batches"] else { panic!("a list of batches") };
    assert!(!failed.is_empty() && failed.iter().all(|failed| *failed > batch), "{batch}, {failed:?}");
    assert_eq!(search.out_of_memory, failed.len() as u64, "the recording shows the failures");
    assert_eq!(figure(report, "out_of_memory_errors"), failed.len() as u64);
    assert!((0.7..=1.0).contains(&(report.peak_reserved_bytes as f64 / limit as f64)));
    assert_eq!(report.losses.len(), 3, "it trains after the search");
}

#[test]
fn record_stream_delays_frees_and_a_wait_does_not() {
    let [with, without] = run_with_baseline("record-stream");
    assert_eq!(figure(&with.report, "pending_free_bytes"), figure(&with.report, "data_bytes"));
    assert_eq!(figure(&without.report, "pending_free_bytes"), 0);
    for recorded in [with, without] {
        assert_eq!(figure(&recorded.report, "overwritten_steps"), 0);
    }
    let overwritten = figure(&run("no-record-stream").report, "overwritten_steps");
    assert_eq!(overwritten > 0, device_kind() == DeviceKind::Cuda, "{overwritten} steps");
    // A pending free completes at the next request, which may be the next event.
    assert!(with.delayed_frees >= without.delayed_frees);
}

#[test]
fn generated_text_and_single_figures_are_those_of_the_baseline() {
    let [with, without] = run_with_baseline("kv-cache");
    assert_eq!(with.report.figures["generated_tokens"], without.report.figures["generated_tokens"]);
    let added = with.report.end_allocated_bytes - without.report.end_allocated_bytes;
    assert_eq!(added, figure(&with.report, "cache_bytes"));
    let [with, without] = run_with_baseline("free-early");
    let logits = 4 * 64 * 4096 * 4;
    assert_eq!(without.report.peak_allocated_bytes - with.report.peak_allocated_bytes, logits, "one tensor of logits");
    let [with, _] = run_with_baseline("in-place");
    assert_eq!(figure(&with.report, "refused_changes"), 1);
    let [with, without] = run_with_baseline("loading-lazy");
    let saved = without.report.peak_allocated_bytes - with.report.peak_allocated_bytes;
    let idle = figure(&with.report, "data_bytes") - figure(&with.report, "batch_bytes");
    assert_eq!(saved, idle, "all data but one batch");
}
