//! What a recorded training held over time.

use std::path::Path;

use vramscope_insight::fleet::DeviceSummary;
use vramscope_insight::spans::Marks;
use vramscope_insight::steps::find_steps;
use vramscope_trace::{DeviceId, live_bytes_by_site};

use crate::fixtures::workspace_root;
use crate::recorded;
use crate::recorded_events::RECORDED_TRAINING;

/// Samples of each step; at ten summaries a second, a step takes one second.
const STEP_SAMPLES: u64 = 10;
/// Steps at the start of the recording that are left out: the optimizer's state grows in them.
const FIRST_STEP: usize = 2;
/// The allocated bytes at the highest sample; the recording's sizes are scaled to it.
const PEAK_BYTES: u64 = 40 << 30;

/// The totals of a device at regular moments of a training.
#[derive(Clone, Debug)]
pub struct RecordedTraining(Vec<DeviceSummary>);

impl RecordedTraining {
    /// Reads the recording.
    ///
    /// # Panics
    /// Panics if the recording is missing or damaged.
    #[must_use]
    pub fn read() -> Self {
        let recording = recorded::Recorded::open(&Path::new(workspace_root()).join(RECORDED_TRAINING));
        let mut marks = Marks::default();
        marks.update(&recording.recording);
        let steps = find_steps(&recording.recording, &marks, DeviceId(0), recording.lifetimes(), None, |event| event);
        let steps = steps.as_slice().iter().skip(FIRST_STEP);
        let moments = steps.flat_map(|step| {
            let events = step.to_event - step.from_event;
            (0..STEP_SAMPLES).map(move |sample| step.from_event + events * sample / STEP_SAMPLES)
        });
        let sample = |moment: u64| {
            let state = recording.state_of(DeviceId(0), moment);
            let (counters, free) = (state.counters(), state.free_space());
            DeviceSummary {
                device: 0,
                allocated: counters.allocated,
                reserved: counters.reserved,
                active: counters.active,
                requested: counters.requested,
                free: free.total,
                largest_free: free.largest,
                segments: state.segments().len() as u32,
                blocks: state.blocks().len() as u32,
                ooms: 0,
                sites: live_bytes_by_site(&state).iter().take(4).map(|site| (site.site.0, site.bytes)).collect(),
            }
        };
        let mut samples: Vec<DeviceSummary> = moments.map(sample).collect();
        assert!(!samples.is_empty(), "the recording has steps");
        let peak = samples.iter().map(|sample| sample.allocated).max().unwrap_or(0).max(1);
        let scale = |bytes: u64| (u128::from(bytes) * u128::from(PEAK_BYTES) / u128::from(peak)) as u64;
        for sample in &mut samples {
            let DeviceSummary { allocated, reserved, active, requested, free, largest_free, sites, .. } = sample;
            for bytes in [allocated, reserved, active, requested, free, largest_free] {
                *bytes = scale(*bytes);
            }
            sites.iter_mut().for_each(|(_, bytes)| *bytes = scale(*bytes));
        }
        Self(samples)
    }

    /// Returns the totals at tick number `tick`, ten a second.
    #[must_use]
    pub fn at(&self, tick: u64) -> DeviceSummary {
        self.0[(tick % self.0.len() as u64) as usize].clone()
    }

    /// Returns the number of the step at a tick.
    #[must_use]
    pub fn step(&self, tick: u64) -> u64 {
        tick / STEP_SAMPLES
    }
}
