//! Tests of a small training run: it learns, stops, and records scopes, categories and marks.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use vramscope_collector::{HostDevice, HostPool, Settings};
use vramscope_demo::{DemoError, Device, Options, Step, Summary, run};
use vramscope_trace::{
    AnnotationStage, Category, Definition, Definitions, DeviceId, Event, EventKind, MemoryState, Sink,
};

/// A sink that summarizes the recording. Clones share the summary.
#[derive(Clone, Default)]
struct SummarySink(Arc<Mutex<RecordedSummary>>);

/// A summary of a recording: the memory state, marks, and scopes with categories.
#[derive(Default)]
struct RecordedSummary {
    state: MemoryState,
    definitions: Definitions,
    marks: Vec<(AnnotationStage, String)>,
    /// Scope path and category of every allocation.
    uses: BTreeSet<(String, Category)>,
    peak_bytes: u64,
}

impl Sink for SummarySink {
    fn event(&mut self, event: &Event) {
        let mut record = self.0.lock().unwrap();
        record.state.apply(event);
        let record = &mut *record;
        match event.kind {
            EventKind::Mark { stage, name, .. } => {
                record.marks.push((stage, record.definitions.string(name).to_owned()))
            }
            EventKind::BlockAllocated { site, .. } => {
                let site = record.definitions.site(site);
                record.uses.insert((record.definitions.string(site.scope).to_owned(), site.category));
                record.peak_bytes =
                    record.peak_bytes.max(record.state.device(DeviceId(0)).unwrap().counters().allocated);
            }
            _ => {}
        }
    }

    fn define(&mut self, definition: &Definition) {
        self.0.lock().unwrap().definitions.define(definition.clone());
    }
}

/// Returns the options of a small training of 200 steps.
fn small_options() -> Options {
    Options {
        steps: Some(200),
        min_step_time: Duration::ZERO,
        training_digits: 1500,
        held_out_digits: 300,
        batch: (20, 40),
        hidden: vec![64, 32],
        evaluate_every: 100,
    }
}

/// Trains on a pool that is large enough, and returns the result and the recording's summary.
fn train(
    options: &Options,
    stop: &AtomicBool,
    on_step: &mut dyn FnMut(Step),
) -> (Result<Summary, DemoError>, SummarySink) {
    train_with(512 << 20, options, stop, on_step)
}

/// Trains on a pool of `capacity_bytes`, and returns the result and the recording's summary.
fn train_with(
    capacity_bytes: u64,
    options: &Options,
    stop: &AtomicBool,
    on_step: &mut dyn FnMut(Step),
) -> (Result<Summary, DemoError>, SummarySink) {
    let recorded = SummarySink::default();
    let (device, ticks) = (HostDevice::new(capacity_bytes), AtomicU64::new(0));
    let clock = move || ticks.fetch_add(1, Ordering::Relaxed);
    let pool = HostPool::new(device, Settings::default(), recorded.clone(), clock);
    let device = Device::host(pool).unwrap();
    (run(options, &device, stop, on_step), recorded)
}

#[test]
fn loss_falls_and_held_out_images_are_classified() {
    let mut losses = Vec::new();
    let (summary, _) = train(&small_options(), &AtomicBool::new(false), &mut |step| losses.push(step.loss));
    let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
    let (first, last) = (mean(&losses[..10]), mean(&losses[190..]));
    println!("loss {first:.3} -> {last:.3}, {summary:?}");
    assert!(last < first * 0.6, "loss {first} -> {last}");
    let accuracy = summary.unwrap().accuracy.expect("two of the steps measured it");
    assert!(accuracy > 0.7, "accuracy {accuracy}; guessing gives 0.1");
}

#[test]
fn allocations_have_scopes_and_categories() {
    let (summary, recorded) = train(
        &Options { steps: Some(30), evaluate_every: 30, ..small_options() },
        &AtomicBool::new(false),
        &mut |_| {},
    );
    let summary = summary.unwrap();
    assert_eq!(summary.steps, 30);
    let active = || recorded.0.lock().unwrap().state.device(DeviceId(0)).unwrap().counters().active;
    assert!(active() > 1 << 20, "the model stays in memory until the summary is dropped");
    drop(summary);
    assert_eq!(active(), 0);
    let record = recorded.0.lock().unwrap();
    let device = record.state.device(DeviceId(0)).unwrap();
    assert_eq!((device.inconsistencies(), device.ooms()), (0, 0));
    assert!(record.peak_bytes > 1 << 20);
    let assert_used =
        |path: &str, category| assert!(record.uses.contains(&(path.to_owned(), category)), "{path} {category:?}");
    assert_used("model/perceptron/layer1", Category::Parameter);
    assert_used("data/training", Category::Input);
    assert_used("loader/batch", Category::Input);
    assert_used("step/forward/perceptron/layer2", Category::Activation);
    assert_used("step/backward/perceptron/layer2", Category::Gradient);
    assert_used("step/backward/perceptron/layer2", Category::Temporary);
    assert_used("step/optimizer/perceptron/layer1", Category::OptimizerState);
    assert_used("evaluate/checkpoint", Category::Parameter);
    assert!(
        record.uses.iter().all(|(path, category)| !path.is_empty() && *category != Category::Unknown),
        "{:?}",
        record.uses
    );
    assert_eq!(
        record.marks[..8],
        [
            (AnnotationStage::Begin, "step 1"),
            (AnnotationStage::Begin, "forward"),
            (AnnotationStage::End, "forward"),
            (AnnotationStage::Begin, "backward"),
            (AnnotationStage::End, "backward"),
            (AnnotationStage::Begin, "optimizer"),
            (AnnotationStage::End, "optimizer"),
            (AnnotationStage::End, "step 1"),
        ]
        .map(|(stage, name)| (stage, name.to_owned()))
    );
    assert_eq!(record.marks.last(), Some(&(AnnotationStage::End, "evaluate".to_owned())));
}

#[test]
fn training_stops_when_the_flag_is_set() {
    let stop = AtomicBool::new(false);
    let (summary, _) = train(&Options { steps: None, ..small_options() }, &stop, &mut |step| {
        stop.store(step.number == 3, Ordering::Relaxed)
    });
    assert_eq!(summary.unwrap().steps, 3);
}

#[test]
fn too_small_a_pool_is_an_error() {
    let (summary, recorded) = train_with(24 << 20, &Options::default(), &AtomicBool::new(false), &mut |_| {});
    let error = summary.unwrap_err();
    assert!(error.to_string().starts_with("training stopped: out of memory"), "{error}");
    assert_eq!(recorded.0.lock().unwrap().state.device(DeviceId(0)).unwrap().ooms(), 1);
}
