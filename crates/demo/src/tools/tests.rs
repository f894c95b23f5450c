//! Tests of the tools, which watch a small GPT in training, against the pool's counters.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;

use vramscope_collector::{HostDevice, HostPool, Settings};
use vramscope_trace::NullSink;

use super::*;
use crate::models::{Gpt, GptConfig, Recompute};
use crate::operation::{Module, Observation, Operation};
use crate::optimizers::{Adam, ClearGradients, Method, Optimizer};
use crate::training::{Callback, Phase, StepOptions, ThreadCallback, Trainer};
use crate::{Device, Result, Tensor};

fn host() -> Device {
    let pool = HostPool::new(HostDevice::new(1 << 28), Settings::default(), NullSink, || 0);
    Device::host(pool).expect("the host always works")
}

/// A small GPT in training.
struct Training {
    device: Device,
    model: Gpt,
    trainer: Trainer,
    recompute: Recompute,
}

impl Training {
    fn new(device: &Device, clear: ClearGradients, recompute: Recompute) -> Self {
        let config = GptConfig { vocabulary: 67, layers: 2, width: 16, heads: 2, length: 24 };
        let model = Gpt::new(device, config, 1).expect("the pool is large enough");
        let optimizer = Optimizer::new(Method::Adam(Adam::default()), 1e-3);
        let options = StepOptions { parts: 2, clear, ..StepOptions::default() };
        let trainer = Trainer::new(device, model.parameters(), optimizer, options).expect("no memory is needed");
        Self { device: device.clone(), model, trainer, recompute }
    }

    fn step(&mut self) -> Result<Vec<Tensor>> {
        let Self { device, model, trainer, recompute } = self;
        trainer.step(|part| {
            let tokens: Vec<u32> = (0..72).map(|n| (n * 7 + part as u32) % 67).collect();
            let tokens = Tensor::from_u32(device, &[3, 24], &tokens)?;
            model.forward(&tokens, *recompute)?.cross_entropy(&tokens)
        })
    }
}

/// Returns the requested and the allocated bytes of the pool.
fn counters(device: &Device) -> [i64; 2] {
    let stats = device.stats();
    [stats.requested_bytes, stats.allocated_bytes].map(|stat| stat.all.current as i64)
}

/// A callback that logs every call as text.
#[derive(Default)]
struct Calls(RefCell<Vec<String>>);

impl Callback for Calls {
    fn before(&self, phase: Phase, step: u64, _device: &Device) {
        self.0.borrow_mut().push(format!("+{} {step}", phase.name()));
    }

    fn after(&self, phase: Phase, step: u64, _device: &Device) {
        self.0.borrow_mut().push(format!("-{} {step}", phase.name()));
    }

    fn before_layer(&self, layer: &str, _step: u64, _device: &Device) {
        self.0.borrow_mut().push(format!("+{layer}"));
    }

    fn after_layer(&self, layer: &str, _step: u64, _device: &Device) {
        self.0.borrow_mut().push(format!("-{layer}"));
    }

    fn after_step(&self, losses: &[Tensor], step: u64, _device: &Device) {
        self.0.borrow_mut().push(format!("{} losses of {step}", losses.len()));
    }
}

#[test]
fn callbacks_are_called_for_phases_and_layers() {
    let device = host();
    let calls = Rc::new(Calls::default());
    let optimizer = Optimizer::new(Method::Sgd { momentum: 0.0 }, 0.1);
    let weight = Tensor::from_f32(&device, &[2], &[1.0, 2.0]).expect("the pool is large enough").with_grad();
    let mut trainer =
        Trainer::new(&device, Vec::new(), optimizer, StepOptions::default()).expect("no memory is needed");
    trainer.add_callback(calls.clone());
    let forward = |_| {
        let _model = Module::enter("model");
        let scaled = {
            let _first = Module::enter("first");
            weight.scale(2.0)?.scale(3.0)?
        };
        let _second = Module::enter("second");
        scaled.mean()
    };
    trainer.step(forward).expect("the step works");
    let expected = "+step 1 +forward 1 +model +model/first -model/first +model/second -model/second -model -forward 1 \
        +backward 1 +model +model/second -model/second +model/first -model/first -model -backward 1 \
        +optimizer 1 -optimizer 1 -step 1 1 losses of 1";
    assert_eq!(calls.0.take().join(" "), expected);
    // A step that fails leaves no layer open.
    let failing = |_| {
        let _model = Module::enter("model");
        weight.add(&Tensor::from_f32(&device, &[1], &[0.0])?)
    };
    trainer.step(failing).expect_err("the shapes differ");
    calls.0.take();
    trainer.step(forward).expect("the step works");
    assert_eq!(calls.0.take().join(" "), expected.replace(" 1", " 3").replace("3 losses", "1 losses"));
}

/// A callback that measures phases by resetting and reading the allocator's peaks.
#[derive(Default)]
struct PoolPeaks {
    before: Cell<u64>,
    /// Each phase with its allocated bytes: before, peak and after.
    measured: RefCell<Vec<(Phase, [u64; 3])>>,
}

impl Callback for PoolPeaks {
    fn before(&self, _phase: Phase, _step: u64, device: &Device) {
        device.memory().reset_peaks();
        self.before.set(device.memory().allocated_bytes());
    }

    fn after(&self, phase: Phase, _step: u64, device: &Device) {
        let allocated = device.stats().allocated_bytes.all;
        self.measured.borrow_mut().push((phase, [self.before.get(), allocated.peak, allocated.current]));
    }
}

#[test]
fn phase_table_has_the_peaks_of_the_pool() {
    for recompute in [Recompute::Nothing, Recompute::Blocks] {
        let device = host();
        let mut training = Training::new(&device, ClearGradients::ToNone, recompute);
        let table = Rc::new(PhaseTable::new(&device, Timing::Synchronized, 2));
        let pool = Rc::new(PoolPeaks::default());
        training.trainer.add_callback(table.clone());
        training.trainer.add_callback(pool.clone());
        for _ in 0..3 {
            training.step().expect("the step works");
        }
        let report = table.report();
        let row = |name: &str| report.rows.iter().find(|row| row.name == name).expect("the phase has a row");
        let mut peak_of_step = 0;
        for (phase, calls) in [(Phase::Forward, 6), (Phase::Backward, 6), (Phase::Optimizer, 3)] {
            let measured = pool.measured.borrow();
            let of_phase: Vec<_> = measured.iter().filter(|(of, _)| *of == phase).map(|(_, bytes)| *bytes).collect();
            let highest = of_phase.iter().max_by(|a, b| a[1].cmp(&b[1]).then(std::cmp::Ordering::Greater));
            let row = row(phase.name());
            assert_eq!(row.calls, calls);
            assert_eq!(Some(&[row.before_bytes, row.peak_bytes, row.after_bytes]), highest, "{}", row.name);
            let kept: i64 = of_phase.iter().map(|[before, _, after]| *after as i64 - *before as i64).sum();
            assert_eq!(
                (row.kept_bytes, row.kept_in_all_bytes),
                (row.after_bytes as i64 - row.before_bytes as i64, kept)
            );
            assert!(row.median_ns > 0);
            peak_of_step = peak_of_step.max(row.peak_bytes);
        }
        assert_eq!((row("step").calls, row("step").peak_bytes), (3, peak_of_step));
        let (forward, model, block) = (row("forward"), row("forward gpt"), row("forward gpt/block1"));
        assert!(block.peak_bytes <= model.peak_bytes && model.peak_bytes <= forward.peak_bytes);
        assert_eq!((model.calls, block.calls), (6, 6));
        assert_eq!(row("backward gpt/block0").calls, 6, "{recompute:?}");
        assert!(report.rows.iter().all(|row| row.name.matches('/').count() < 2), "layers are two names deep");
        assert!(report.to_string().contains("  forward gpt/block1\n"), "{report}");
    }
}

#[test]
fn bytes_kept_in_and_outside_steps_add_up_to_the_counter() {
    for clear in [ClearGradients::ToNone, ClearGradients::ToZero, ClearGradients::Never] {
        let device = host();
        let mut training = Training::new(&device, clear, Recompute::Nothing);
        let mut kept = training.step().expect("the step works");
        let start = counters(&device)[1];
        let table = Rc::new(PhaseTable::new(&device, Timing::Host, 1));
        // A callback of the thread is called without being added to a trainer.
        let callback = ThreadCallback::add(table.clone());
        for _ in 0..2 {
            kept.extend(training.step().expect("the step works"));
        }
        kept.truncate(1);
        let failing = |_| {
            let weight = training.model.parameters()[0].value.scale(2.0)?;
            kept.push(weight.clone());
            weight.add(&Tensor::from_f32(&device, &[1], &[0.0])?)
        };
        training.trainer.step(failing).expect_err("the shapes differ");
        training.step().expect("the step works");
        let input = Tensor::zeros(&device, &[1000], crate::DType::F32).expect("the pool is large enough");
        let report = table.report();
        let row = |name: &str| report.rows.iter().find(|row| row.name == name).expect("the row exists");
        let parts = ["forward", "backward", "optimizer"].map(|name| row(name).kept_in_all_bytes);
        // Nothing but these phases keeps memory in a step, once gradients are allocated.
        assert_eq!(row("step").calls, 3);
        if clear != ClearGradients::ToNone {
            assert_eq!(row("step").kept_in_all_bytes, parts.iter().sum::<i64>(), "{report}");
        }
        assert_eq!(row("step").kept_in_all_bytes + report.outside_bytes, report.pool_allocated_bytes, "{report}");
        assert_eq!(report.pool_allocated_bytes, counters(&device)[1] - start);
        assert!(report.to_string().contains(" outside of steps, "), "{report}");
        drop((input, callback));
        training.step().expect("the step works");
        assert_eq!(table.report().rows, report.rows, "a callback ends when it is dropped");
    }
}

#[test]
fn memory_lines_have_every_phase_of_chosen_steps() {
    let device = host();
    let mut training = Training::new(&device, ClearGradients::ToNone, Recompute::Nothing);
    let lines = Rc::new(RefCell::new(Vec::new()));
    let every = std::num::NonZeroU64::new(2).expect("2 is not 0");
    let received = lines.clone();
    let callback = MemoryLog::new(&device, every, move |line| received.borrow_mut().push(line));
    let _callback = ThreadCallback::add(Rc::new(callback));
    for _ in 0..3 {
        training.step().expect("the step works");
    }
    let lines = lines.take();
    let phases: Vec<_> = lines.iter().map(|line| (line.step, line.phase)).collect();
    let in_step = ["forward", "backward", "forward", "backward", "optimizer", "step"];
    let expected: Vec<_> = [1, 2].into_iter().flat_map(|step| in_step.map(|phase| (step, phase))).collect();
    assert_eq!(phases, expected);
    for line in &lines {
        assert!(line.allocated_bytes <= line.peak_allocated_bytes && line.peak_allocated_bytes <= line.reserved_bytes);
    }
    let text = lines[0].to_string();
    assert!(text.starts_with("step   1  forward    allocated ") && text.contains("  reserved "), "{text}");
}

#[test]
fn tools_reset_no_peak_of_the_allocator() {
    let device = host();
    let mut training = Training::new(&device, ClearGradients::ToNone, Recompute::Nothing);
    let high = Tensor::zeros(&device, &[1 << 20], crate::DType::F32).expect("the pool is large enough");
    drop(high);
    let before = device.stats().allocated_bytes.all.peak;
    let table = Rc::new(PhaseTable::new(&device, Timing::Host, 0));
    training.trainer.add_callback(table.clone());
    let (lines, profiler) = (LineTable::new(&device), Profiler::new(&device, Timing::Host));
    training.step().expect("the step works");
    assert_eq!(device.stats().allocated_bytes.all.peak, before);
    assert!(table.report().rows.iter().all(|row| row.peak_bytes < before && !row.name.contains(' ')));
    drop((lines, profiler));
}

#[test]
fn own_bytes_of_operations_add_up_to_the_counters() {
    for (clear, recompute) in [
        (ClearGradients::ToNone, Recompute::Nothing),
        (ClearGradients::ToZero, Recompute::Blocks),
        (ClearGradients::Never, Recompute::Layers),
    ] {
        let device = host();
        let mut training = Training::new(&device, clear, recompute);
        let older = training.step().expect("the step works");
        let start = counters(&device);
        let profiler = Profiler::new(&device, Timing::Host);
        let mut kept = Vec::new();
        for _ in 0..3 {
            kept.extend(training.step().expect("the step works"));
        }
        drop((kept.pop(), older));
        let report = profiler.report(SortBy::OwnBytes);
        let change: Vec<i64> = counters(&device).iter().zip(start).map(|(now, start)| now - start).collect();
        let own = |of: fn(&ProfileRow) -> i64| report.rows.iter().map(of).sum::<i64>();
        let sums = [own(|row| row.own_requested_bytes), own(|row| row.own_allocated_bytes)];
        assert_eq!(sums.as_slice(), change);
        assert_eq!([report.pool_requested_bytes, report.pool_allocated_bytes], sums);
        let row = |name: &str| report.rows.iter().find(|row| row.name == name).expect("the operation has a row");
        let outside = row("(outside of operations)");
        assert!(outside.own_allocated_bytes < 0, "tensors are dropped outside of operations");
        assert_eq!((outside.calls, outside.total_allocated_bytes), (0, outside.own_allocated_bytes));
        let backward = row("backward");
        assert_eq!(backward.calls, 6);
        assert!(backward.total_ns >= backward.own_ns + row("linear_backward").own_ns);
        assert!(report.rows.iter().all(|row| row.own_ns <= row.total_ns), "{report}");
        assert!(report.rows.is_sorted_by(|a, b| a.own_allocated_bytes >= b.own_allocated_bytes));
    }
}

#[test]
fn totals_count_recursive_operations_once() {
    let device = host();
    let request =
        |bytes: usize| Tensor::empty(&device, &[bytes / 4], crate::DType::F32).expect("the pool is large enough");
    let profiler = Profiler::new(&device, Timing::Host);
    let outer = Operation::enter("outer");
    let a = request(1000);
    let inner = Operation::enter("inner");
    let b = request(2000);
    let again = Operation::enter("outer");
    let c = request(4000);
    drop(a);
    drop(again);
    drop(inner);
    let open = profiler.report(SortBy::TotalBytes);
    drop(outer);
    drop(b);
    let report = profiler.report(SortBy::TotalBytes);
    let rows = |report: &ProfileReport| -> Vec<(String, u64, [i64; 4])> {
        let bytes = |row: &ProfileRow| {
            [row.own_requested_bytes, row.total_requested_bytes, row.own_allocated_bytes, row.total_allocated_bytes]
        };
        report.rows.iter().map(|row| (row.name.clone(), row.calls, bytes(row))).collect()
    };
    let row = |name: &str, calls, bytes| (name.to_owned(), calls, bytes);
    let (outer, inner) = ([4000, 6000 - 1000 + 1000, 4096, 6144], [2000, 5000, 2048, 5120]);
    assert_eq!(
        rows(&open),
        [row("outer", 1, outer.map(|b| b)), row("inner", 1, inner), row("(outside of operations)", 0, [0; 4])]
    );
    let outside = [-2000, -2000, -2048, -2048];
    assert_eq!(
        rows(&report),
        [row("outer", 2, outer), row("inner", 1, inner), row("(outside of operations)", 0, outside)]
    );
    drop(c);
}

#[test]
fn lines_add_up_to_the_counters() {
    let device = host();
    let mut training = Training::new(&device, ClearGradients::ToZero, Recompute::Blocks);
    let older = training.step().expect("the step works");
    let table = LineTable::new(&device);
    for _ in 0..2 {
        training.step().expect("the step works");
    }
    drop(older);
    let report = table.report(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    let live: u64 = report.rows.iter().map(|row| row.live_bytes).sum();
    assert_eq!(live + report.start_bytes, report.end_bytes + report.freed_older_bytes);
    assert_eq!(report.end_bytes, device.memory().allocated_bytes());
    assert!(report.freed_older_bytes >= 512);
    assert!(report.rows.iter().all(|row| row.live_bytes <= row.peak_bytes && row.peak_bytes <= row.allocated_bytes));
}

#[test]
fn line_table_has_bytes_and_source_text_of_a_line() -> Result {
    let device = host();
    let x = Tensor::zeros(&device, &[512], crate::DType::F32)?;
    let table = LineTable::new(&device);
    let mut kept = Vec::new();
    for _ in 0..3 {
        kept.push(x.scale(2.0)?); // The line of the test.
    }
    kept.pop();
    let line = line!() - 3;
    let report = table.report(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    let row = report.rows.iter().find(|row| row.line == line).unwrap_or_else(|| panic!("{line}: {report}"));
    assert!(row.file.ends_with("tests.rs"));
    assert_eq!(row.source, "kept.push(x.scale(2.0)?); // The line of the test.");
    assert_eq!((row.calls, row.allocations, row.allocated_bytes), (3, 3, 3 * 2048));
    assert_eq!((row.live_bytes, row.peak_bytes), (2 * 2048, 3 * 2048));
    assert_eq!((row.total_after_bytes, row.change_bytes), (Some(4 * 2048), Some(2048)));
    assert!(report.to_string().contains("tests.rs:"), "{report}");
    let unknown = table.report(Path::new("no such folder"));
    assert!(unknown.rows.iter().all(|row| row.source.is_empty()));
    Ok(())
}

#[test]
fn tools_ignore_other_devices_and_work_after_they_are_dropped() -> Result {
    let (device, other) = (host(), host());
    let (lines, profiler) = (LineTable::new(&device), Profiler::new(&device, Timing::Host));
    let x = Tensor::zeros(&other, &[512], crate::DType::F32)?.scale(2.0)?;
    assert!(lines.report(Path::new("")).rows.iter().all(|row| row.allocations == 0));
    assert!(profiler.report(SortBy::Calls).rows.iter().all(|row| row.total_allocated_bytes == 0));
    drop((lines, profiler, x));
    let calls = Rc::new(super::intervals::Intervals::new(&device));
    let observation = Observation::start(calls.clone());
    assert_eq!(Rc::strong_count(&calls), 3);
    drop(observation);
    assert_eq!(Rc::strong_count(&calls), 1);
    Ok(())
}

#[test]
fn print_memory_writes_a_short_summary() -> Result {
    let device = host();
    let x = Tensor::zeros(&device, &[1000], crate::DType::F32)?;
    drop(Tensor::zeros(&device, &[1000], crate::DType::F32)?);
    let summary = MemorySummary::of(&device);
    assert_eq!(summary.allocated_bytes, NowAndPeak { now: 4096, peak: 8192 });
    assert_eq!(summary.requested_bytes, NowAndPeak { now: 4000, peak: 8000 });
    assert_eq!(summary.free_bytes, Some((2 << 20) - 4096));
    let mut text = Vec::new();
    print_memory(&device, &mut text).expect("a vector can be written");
    let expected = "     now      peak  memory\n   4 KiB     8 KiB  allocated\n   4 KiB     8 KiB  active\n";
    let text = String::from_utf8(text).expect("the table is UTF-8");
    assert!(text.starts_with(expected), "{text}");
    assert!(text.contains("largest free block"), "{text}");
    drop(x);
    Ok(())
}

#[test]
fn event_file_grows_with_every_step() {
    let folder = std::env::temp_dir().join(format!("vramscope-tensorboard-{}", std::process::id()));
    let device = host();
    let mut training = Training::new(&device, ClearGradients::ToNone, Recompute::Nothing);
    let log = TensorboardLog::create(&folder, &device, Timing::Host, 2).expect("the folder can be written");
    let log = Rc::new(log);
    training.trainer.add_callback(log.clone());
    let bytes = || std::fs::read(log.path()).expect("the file can be read");
    let count = |tag: &str| bytes().windows(tag.len()).filter(|part| *part == tag.as_bytes()).count();
    for steps in 1..=4 {
        training.step().expect("the step works");
        assert_eq!(count("memory/peak"), steps);
        assert_eq!(count("loss"), steps / 2);
    }
    log.add_scalar("accuracy", 4, 0.5);
    assert_eq!([count("accuracy"), count("memory/fragmentation"), count("step_time_ms")], [1, 4, 4]);
    let second = TensorboardLog::create(&folder, &device, Timing::Host, 0).expect("a second file can be written");
    assert_ne!(second.path(), log.path());
    assert!(log.take_error().is_none());
    std::fs::remove_dir_all(&folder).expect("the folder can be removed");
}
