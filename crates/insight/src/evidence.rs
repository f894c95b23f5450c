//! The evidence that a recording contains about a device, and how to record what is missing.
//!
//! A rule of [`diagnosis`](crate::diagnosis) can only answer if the recording has the evidence that
//! the rule needs. Otherwise its answer is "cannot tell", never "nothing found".

use std::collections::BTreeSet;

use vramscope_trace::{DeviceId, Recording, SiteId};

use crate::frames::{RecordedStacks, innermost_own_frame};
use crate::steps::{MIN_GROWTH_STEPS, Steps};

/// A kind of evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Evidence {
    /// Allocations and frees over time, not only the blocks of one moment.
    History,
    /// The history from the program's first allocation on.
    Beginning,
    /// The call stacks of requests.
    Stacks,
    /// Call stacks with frames of the program, not only of libraries.
    ProgramFrames,
    /// Counters that are possible: the peak of the allocated bytes is not above that of the
    /// reserved bytes.
    Counters,
    /// The segments, recorded or inferred.
    Segments,
    /// The streams and pools of requests, and when frees complete.
    Streams,
    /// Enough steps of training or inference to compare.
    Steps,
    /// The free memory of the device over time.
    DeviceMemory,
    /// A history whose reserved peak the simulation reproduces, so that other settings can be
    /// tried.
    Reproduction,
}

impl Evidence {
    /// Returns what a recording without this evidence lacks, as the end of a sentence.
    #[must_use]
    pub const fn missing(self) -> &'static str {
        match self {
            Self::History => "no history of allocations and frees",
            Self::Beginning => "no history from the program's start",
            Self::Stacks => "no call stacks",
            Self::ProgramFrames => "no frames of the program in its call stacks",
            Self::Counters => "counters that contradict each other: more bytes are allocated than reserved",
            Self::Segments => "no segments",
            Self::Streams => "no streams",
            Self::Steps => "too few steps to compare",
            Self::DeviceMemory => "no samples of the device's free memory",
            Self::Reproduction => "a history that the simulation does not reproduce",
        }
    }

    /// Returns how to record this evidence, as an imperative sentence.
    #[must_use]
    pub const fn how_to_record(self) -> &'static str {
        match self {
            Self::History => "Record with `vramscope run train.py`.",
            Self::Beginning => "Start recording before the model is created: `vramscope run train.py`.",
            Self::Stacks => "Record with stacks: `torch.cuda.memory._record_memory_history(stacks=\"python\")`.",
            Self::ProgramFrames => "Record with Python stacks: `vramscope run train.py`.",
            Self::Counters => "Record the whole run with `vramscope run train.py`.",
            Self::Segments | Self::Streams => {
                "Record a memory snapshot: `torch.cuda.memory._record_memory_history()`. A trace of the profiler has \
                 neither segments nor streams."
            }
            Self::Steps => "Call `vramscope.mark(\"step\")` in each step, and record at least 6 steps.",
            Self::DeviceMemory => {
                "Use a pool of vramscope, which samples the device's memory. With PyTorch's pool, it is known only \
                 when a request fails."
            }
            Self::Reproduction => {
                "Run the program with `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, and record that, too."
            }
        }
    }
}

/// Minimum number of events of a history that began late: fewer show nothing but their moment.
const MIN_LATE_EVENTS: u64 = 50;

/// The evidence that a recording has about one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceEvidence(BTreeSet<Evidence>);

impl DeviceEvidence {
    /// Finds the evidence about a device that has `events` recorded events and `memory_samples`
    /// samples of its free memory. `steps` are the steps that the recording shows on it.
    #[must_use]
    pub fn new(recording: &Recording, device: DeviceId, steps: &Steps, events: u64, memory_samples: usize) -> Self {
        let (info, definitions) = (recording.info(), recording.definitions());
        let is_complete = recording.first_event() == 0
            && recording.lost_events() == 0
            && info.device(device).is_none_or(|info| info.history_complete);
        let described = info.device(device);
        let has_history = events >= if is_complete { 1 } else { MIN_LATE_EVENTS };
        let stacks = RecordedStacks::new(definitions);
        let mut sites = (1..=definitions.site_count()).filter_map(|site| u32::try_from(site).ok()).map(SiteId);
        let has_program_frames =
            stacks.has_stacks() && sites.any(|site| innermost_own_frame(definitions, site).is_some());
        let series = recording.series(device);
        let are_possible = series.is_none_or(|series| series.peak_allocated().bytes <= series.peak_reserved().bytes);
        let has_steps = steps.len() >= steps.default_warm_up() + MIN_GROWTH_STEPS;
        let evidence = [
            (Evidence::History, has_history),
            (Evidence::Beginning, has_history && is_complete),
            (Evidence::Stacks, stacks.has_stacks()),
            (Evidence::ProgramFrames, has_program_frames),
            (Evidence::Counters, are_possible),
            (Evidence::Segments, described.is_none_or(|info| !info.segments.is_unknown())),
            (Evidence::Streams, described.is_none_or(|info| !info.lacks_streams)),
            (Evidence::Steps, has_steps),
            (Evidence::DeviceMemory, memory_samples > 1),
        ];
        Self(evidence.into_iter().filter(|&(_, has)| has).map(|(evidence, _)| evidence).collect())
    }

    /// Returns true if the recording has this evidence.
    #[must_use]
    pub fn has(&self, evidence: Evidence) -> bool {
        self.0.contains(&evidence)
    }

    /// Returns the evidence among `needed` that the recording lacks. Without a history, nothing
    /// else is listed: recording one brings the rest.
    #[must_use]
    pub fn missing(&self, needed: &[Evidence]) -> Vec<Evidence> {
        let missing: Vec<Evidence> = needed.iter().copied().filter(|&one| !self.has(one)).collect();
        if missing.contains(&Evidence::History) { vec![Evidence::History] } else { missing }
    }
}
