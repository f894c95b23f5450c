//! The findings of `autopsy` in a recording, and their report as JSON.

use std::path::Path;

use serde::Serialize;
use vramscope_insight::autopsy::{Autopsy, Defect, MAX_SEARCHES, OutOfMemory, Remedies, RemedySearch, defects};
use vramscope_insight::diagnosis::Rule;
use vramscope_insight::failures::ReservedCap;
use vramscope_insight::verdict::{Status, Verdict, VerdictReport};
use vramscope_insight::what_if::DeviceWorkload;
use vramscope_pool::Settings;
use vramscope_trace::{ByteSize, DeviceId, FreeSpace, PoolKind, Recording};

use crate::error::{CommandError, Result};
use crate::operation::Operation;
use crate::reports::diagnose::{Problems, check, problems};
use crate::simulation::{self, LimitArguments};

/// The output of `autopsy --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub(crate) struct AutopsyReport {
    /// `found` with a failed request, `nothing` without one, `cannot_tell` without a history.
    pub(crate) status: &'static str,
    /// What to say first about the recording, as in `diagnose --json`.
    pub(crate) verdict: VerdictReport,
    pub(crate) ooms: Vec<OomReport>,
    /// Number of further failures that were not examined.
    pub(crate) omitted: u64,
    /// Defects of PyTorch's allocator that waste memory, whether a request failed or not.
    pub(crate) defects: Vec<DefectReport>,
}

/// A defect of PyTorch's allocator in the output of `autopsy --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub(crate) struct DefectReport {
    pub(crate) pytorch_issue: u32,
    pub(crate) device: u16,
    pub(crate) event: u64,
    pub(crate) bytes: u64,
    pub(crate) summary: String,
    pub(crate) remedy: &'static str,
    /// Bytes by which the simulated reserved peak is lower with the remedy; null if the simulation
    /// cannot apply it.
    pub(crate) saves_bytes: Option<u64>,
}

/// A failure, with all equal failures, in the output of `autopsy --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub(crate) struct OomReport {
    pub(crate) device: u16,
    /// The first event.
    pub(crate) event: u64,
    /// The number of equal failures: of the same site, size and stream.
    pub(crate) count: u64,
    pub(crate) last_event: u64,
    pub(crate) requested_bytes: u64,
    pub(crate) rounded_bytes: u64,
    pub(crate) stream: u64,
    pub(crate) pool: &'static str,
    /// The line that made the request; null without a call stack.
    pub(crate) request_site: Option<String>,
    pub(crate) cause: &'static str,
    /// The line at fault.
    pub(crate) site: String,
    pub(crate) summary: String,
    /// The issue of pytorch/pytorch, if the cause is a defect of its allocator.
    pub(crate) pytorch_issue: Option<u32>,
    /// The cap, if it is recorded or was given.
    pub(crate) cap_bytes: Option<u64>,
    /// The bounds of a cap that follows from the failures.
    pub(crate) cap_at_least_bytes: Option<u64>,
    pub(crate) cap_below_bytes: Option<u64>,
    pub(crate) reserved_bytes: u64,
    pub(crate) device_free_bytes: u64,
    /// The recorded size of the device.
    pub(crate) device_bytes: Option<u64>,
    /// Bytes held outside of the pool, if the device's size is recorded.
    pub(crate) outside_bytes: Option<u64>,
    pub(crate) outside_at_least_bytes: u64,
    pub(crate) free: FreeReport,
    pub(crate) pinning: Option<PinningReport>,
    pub(crate) holders: Vec<HolderReport>,
    /// Whether the simulated program fails as the recorded one did. Remedies can only be checked
    /// then. Null if remedies were not tried.
    pub(crate) reproduced: Option<bool>,
    /// How far the simulated runs were followed.
    pub(crate) follows: Option<&'static str>,
    /// The reserved peak of the unchanged program with enough memory.
    pub(crate) unchanged_peak_bytes: Option<u64>,
    pub(crate) remedies: Vec<RemedyReport>,
}

/// Free memory at a failure in the output of `autopsy --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub(crate) struct FreeReport {
    pub(crate) own_bytes: u64,
    pub(crate) own_largest_bytes: u64,
    pub(crate) other_stream_bytes: u64,
    pub(crate) other_stream_largest_bytes: u64,
    pub(crate) private_pool_bytes: u64,
    pub(crate) private_pool_largest_bytes: u64,
    /// Free in pools of the other size class.
    pub(crate) other_size_class_bytes: u64,
    pub(crate) releasable_bytes: u64,
    pub(crate) pending_bytes: u64,
}

/// The live blocks that keep a range apart that is large enough.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub(crate) struct PinningReport {
    pub(crate) segment_address: String,
    pub(crate) bytes: u64,
    pub(crate) live_bytes: u64,
    pub(crate) blocks: usize,
    /// The largest of the blocks.
    pub(crate) largest: Vec<PinReport>,
}

/// A block that pins a segment.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub(crate) struct PinReport {
    pub(crate) address: String,
    pub(crate) bytes: u64,
    pub(crate) site: String,
}

/// Memory that a line of the program holds, in the output of `autopsy --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub(crate) struct HolderReport {
    pub(crate) site: String,
    pub(crate) category: &'static str,
    pub(crate) bytes: u64,
    pub(crate) blocks: u64,
}

/// A remedy in the output of `autopsy --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub(crate) struct RemedyReport {
    pub(crate) kind: &'static str,
    pub(crate) detail: String,
    pub(crate) saves_bytes: u64,
    pub(crate) peak_reserved_bytes: u64,
    pub(crate) checked: bool,
}

/// The out-of-memory errors of a recording, explained.
pub(crate) struct Examination {
    /// The settings under which the recording was made.
    pub(crate) settings: Settings,
    /// What to say first about the recording.
    pub(crate) verdict: Verdict,
    pub(crate) autopsy: Autopsy,
    /// The remedies of each failure; `None` if they were not tried.
    pub(crate) checked: Vec<Option<Remedies>>,
    /// Defects of PyTorch's allocator that waste memory, whether a request failed or not, each with
    /// the bytes that its remedy saves.
    pub(crate) defects: Vec<(Defect, Option<u64>)>,
}

impl Examination {
    /// Explains the out-of-memory errors of a recording. `limit_bytes` is the limit that the
    /// recorded process ran under; `path` is for error messages.
    pub(crate) fn new(
        path: &Path,
        recording: &Recording,
        limit_bytes: Option<ByteSize>,
        operation: &Operation,
    ) -> Result<Self> {
        let error = |error| CommandError::file(path, error);
        let Problems { settings, history, diagnosed, workloads, remedies } =
            problems(path, recording, limit_bytes, operation)?;
        let verdict = Verdict::new(recording, &diagnosed);
        let autopsy = diagnosed.autopsy;
        // Requests are reconstructed only if they are needed.
        let mut workloads = Some(workloads).filter(|workloads| !workloads.is_empty());
        let limits = LimitArguments { capacity: None, limit_bytes };
        let mut failed = None;
        let found = defects(recording, &settings, &mut |device| {
            if workloads.is_none() {
                match simulation::workloads(path, recording, &limits, operation) {
                    Ok(read) => workloads = Some(read),
                    Err(error) => failed = Some(error),
                }
            }
            let of_device = workloads.iter().flatten().find(|one| one.workload.device() == device);
            of_device.iter().flat_map(|one| one.workload.private_pool_requests()).collect()
        });
        let found = found.map_err(error)?;
        if let Some(error) = failed {
            return Err(error);
        }
        let workloads = match workloads {
            Some(workloads) => workloads,
            None if autopsy.ooms().is_empty() && found.is_empty() => Vec::new(),
            None => simulation::workloads(path, recording, &limits, operation)?,
        };
        let of_device = |device| workloads.iter().find(|one| one.workload.device() == device);
        let saved = |defect: Defect| {
            let saved = of_device(defect.device).and_then(|one| defect.saved_bytes(&one.workload, &settings));
            (defect, saved)
        };
        let defects = found.into_iter().map(saved).collect();
        let mut checked: Vec<Option<Remedies>> = Vec::new();
        for oom in autopsy.ooms().iter().take(MAX_SEARCHES) {
            let of_failure = |((device, event), _): &&((DeviceId, u64), Remedies)| {
                (*device, *event) == (oom.failure.device, oom.failure.event)
            };
            if let Some((_, found)) = remedies.iter().find(of_failure) {
                checked.push(Some(found.clone()));
                continue;
            }
            checked.push(match of_device(oom.failure.device) {
                Some(DeviceWorkload { workload, capacity_bytes, .. }) => {
                    let search = RemedySearch::new(recording, &history, &autopsy, oom, workload, *capacity_bytes);
                    Some(check(search.map_err(error)?, workload, operation)?)
                }
                None => None,
            });
        }
        checked.resize(autopsy.ooms().len(), None);
        Ok(Self { settings, verdict, autopsy, checked, defects })
    }

    /// Returns whether a request failed.
    pub(crate) fn status(&self) -> Status {
        let is_unanswered = self.verdict.unanswered.iter().any(|one| one.rule == Rule::Failures);
        match self.autopsy.ooms() {
            [_, ..] => Status::Found,
            [] if is_unanswered => Status::CannotTell,
            [] => Status::Nothing,
        }
    }

    /// Returns the report that `autopsy --json` prints.
    pub(crate) fn report(&self) -> AutopsyReport {
        let ooms = self.autopsy.ooms().iter().zip(&self.checked);
        AutopsyReport {
            status: self.status().id(),
            verdict: VerdictReport::from(&self.verdict),
            ooms: ooms.map(|(oom, checked)| OomReport::new(oom, checked.as_ref())).collect(),
            omitted: self.autopsy.omitted(),
            defects: self.defects.iter().map(DefectReport::from).collect(),
        }
    }
}

impl From<&(Defect, Option<u64>)> for DefectReport {
    fn from((defect, saves_bytes): &(Defect, Option<u64>)) -> Self {
        Self {
            pytorch_issue: defect.pytorch_issue,
            device: defect.device.0,
            event: defect.event,
            bytes: defect.bytes,
            summary: defect.summary.clone(),
            remedy: defect.remedy,
            saves_bytes: *saves_bytes,
        }
    }
}

impl FreeReport {
    fn new(oom: &OutOfMemory) -> Self {
        let (failure, free) = (&oom.failure, &oom.failure.free);
        let bytes = |space: FreeSpace| (space.total, space.largest);
        let (other_stream_bytes, other_stream_largest_bytes) = bytes(free.other_streams);
        let (private_pool_bytes, private_pool_largest_bytes) = bytes(free.private_pools);
        Self {
            own_bytes: failure.own_free_bytes,
            own_largest_bytes: failure.largest_own_bytes,
            other_stream_bytes,
            other_stream_largest_bytes,
            private_pool_bytes,
            private_pool_largest_bytes,
            other_size_class_bytes: free.other_size_class.total,
            releasable_bytes: free.releasable_bytes,
            pending_bytes: free.pending.total,
        }
    }
}

impl OomReport {
    fn new(oom: &OutOfMemory, checked: Option<&Remedies>) -> Self {
        let failure = &oom.failure;
        let holders = oom.holders.iter().map(|holder| HolderReport {
            site: holder.name.clone(),
            category: holder.category.name(),
            bytes: holder.bytes,
            blocks: holder.blocks,
        });
        let remedies = checked.iter().flat_map(|found| &found.remedies).map(|remedy| RemedyReport {
            kind: remedy.kind.id(),
            detail: remedy.detail.clone(),
            saves_bytes: remedy.saves_bytes,
            peak_reserved_bytes: remedy.peak_reserved_bytes,
            checked: remedy.is_checked,
        });
        let (cap_bytes, bounds) = match oom.cap {
            ReservedCap::None => (None, None),
            ReservedCap::Exact { bytes } => (Some(bytes), None),
            ReservedCap::Bounds { at_least_bytes, below_bytes } => (None, Some((at_least_bytes, below_bytes))),
        };
        let pin = |pin: &vramscope_insight::autopsy::Pin| PinReport {
            address: format!("{:#x}", pin.address),
            bytes: pin.bytes,
            site: pin.site.clone(),
        };
        Self {
            device: failure.device.0,
            event: failure.event,
            count: oom.events.len() as u64,
            last_event: oom.last_event(),
            requested_bytes: failure.requested_bytes,
            rounded_bytes: failure.rounded_bytes,
            stream: failure.stream.0,
            pool: if failure.pool.kind == PoolKind::Small { "small" } else { "large" },
            request_site: oom.request_line.clone(),
            cause: oom.cause.id(),
            site: oom.site.clone(),
            summary: oom.summary.clone(),
            pytorch_issue: oom.pytorch_issue,
            cap_bytes,
            cap_at_least_bytes: bounds.map(|(at_least_bytes, _)| at_least_bytes),
            cap_below_bytes: bounds.map(|(_, below_bytes)| below_bytes),
            reserved_bytes: failure.usage.reserved_bytes,
            device_free_bytes: failure.device_free_bytes,
            device_bytes: oom.device.total_bytes,
            outside_bytes: oom.device.total_bytes.map(|_| oom.device.outside_at_least_bytes),
            outside_at_least_bytes: oom.device.outside_at_least_bytes,
            free: FreeReport::new(oom),
            pinning: oom.pinning.as_ref().map(|pinning| PinningReport {
                segment_address: format!("{:#x}", pinning.segment_address),
                bytes: pinning.bytes,
                live_bytes: pinning.live_bytes,
                blocks: pinning.blocks.len(),
                largest: oom.pins.iter().map(pin).collect(),
            }),
            holders: holders.collect(),
            reproduced: checked.map(|found| found.is_reproduced),
            follows: checked.map(|found| found.follows.id()),
            unchanged_peak_bytes: checked.filter(|found| found.is_reproduced).map(|found| found.unchanged_peak_bytes),
            remedies: remedies.collect(),
        }
    }
}
