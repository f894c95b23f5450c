//! The settings that need least memory.

use serde::Serialize;
use vramscope_insight::advice::{Advisor, Trial, required_pytorch, smallest_card};
use vramscope_insight::what_if::{DeviceWorkload, FiguresReport};
use vramscope_pool::Settings;
use vramscope_trace::Count;

use crate::request::Observer;

/// The answer to [`Request::Advice`](crate::Request::Advice).
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AdviceReport {
    device: u16,
    capacity_bytes: Option<u64>,
    recorded: FiguresReport,
    floor_bytes: u64,
    /// The settings tried: first the simplest that are at most 1% worse than the best, then the
    /// best ones.
    tried: Vec<TrialReport>,
    /// Whether the best settings are more than 1% better than the recorded ones.
    worthwhile: bool,
    smallest: Option<SmallestReport>,
}

/// Settings and their simulated figures.
#[derive(Clone, Debug, Serialize)]
struct TrialReport {
    alloc_conf: String,
    predicted: FiguresReport,
    /// Whether they are the recorded settings.
    is_recorded: bool,
    /// The first version of PyTorch that accepts them, such as `2.6`; null if all of 2.x do.
    needs_pytorch: Option<String>,
}

/// The least memory that the program runs in.
#[derive(Clone, Debug, Serialize)]
struct SmallestReport {
    capacity_bytes: u64,
    alloc_conf: String,
    /// The smallest GPU with `capacity_bytes` of usable memory.
    card: Option<&'static str>,
}

/// Makes all runs that the advice for a device needs, and returns the advice. `settings` are the
/// recorded ones.
pub(crate) fn advice(
    device: &DeviceWorkload,
    settings: &Settings,
    capacity_bytes: Option<u64>,
    observer: &mut impl Observer,
) -> Option<AdviceReport> {
    let workload = &device.workload;
    let capacity_bytes = capacity_bytes.or(device.capacity_bytes);
    let mut advisor = Advisor::new(workload, settings, capacity_bytes);
    while let Some(run) = advisor.next_run() {
        let summary = run.simulate(workload);
        advisor.finish(&run, summary);
        let (finished, all) = advisor.progress();
        let text = format!("Trying settings: {} of {} runs", Count(finished as u64), Count(all as u64));
        observer.progress(finished as f64 / all.max(1) as f64, &text);
    }
    let advice = advisor.into_advice()?;
    let trial = |trial: &Trial| TrialReport {
        alloc_conf: trial.settings.to_conf(),
        predicted: trial.predicted.into(),
        is_recorded: trial.is_recorded,
        needs_pytorch: Some(required_pytorch(&trial.settings))
            .filter(|version| *version > (2, 0))
            .map(|(major, minor)| format!("{major}.{minor}")),
    };
    let simplest = advice.simpler();
    let others = advice.tried.iter().filter(|trial| simplest.is_none_or(|one| !std::ptr::eq(one, *trial)));
    Some(AdviceReport {
        device: workload.device().0,
        capacity_bytes,
        recorded: advice.recorded.into(),
        floor_bytes: advice.floor_bytes,
        tried: simplest.into_iter().chain(others).map(trial).collect(),
        worthwhile: advice.is_worthwhile(),
        smallest: advice.smallest().map(|smallest| SmallestReport {
            capacity_bytes: smallest.capacity_bytes,
            alloc_conf: smallest.settings.to_conf(),
            card: smallest_card(smallest.capacity_bytes).map(|card| card.name),
        }),
    })
}
