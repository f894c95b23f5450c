//! What `autopsy` finds in a recording, and its report as JSON.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde::Serialize;
use vramscope_insight::autopsy::{Autopsy, Defect, OutOfMemory, Remedy, RemedySearch, defects};
use vramscope_pool::Settings;
use vramscope_trace::{ByteSize, PoolKind, Recording};

use crate::error::{CommandError, Result};
use crate::history::read_history;
use crate::operation::Operation;
use crate::recorded;
use crate::simulation::{self, DeviceWorkload, LimitArguments};

/// The most failures whose remedies are simulated. Programs that catch the error repeat it.
const MAX_CHECKED: usize = 4;

/// The output of `autopsy --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub(crate) struct Report {
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
}

/// One failure in the output of `autopsy --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub(crate) struct OomReport {
    pub(crate) device: u16,
    pub(crate) event: u64,
    pub(crate) requested_bytes: u64,
    pub(crate) rounded_bytes: u64,
    pub(crate) stream: u64,
    pub(crate) pool: &'static str,
    /// The line that made the request.
    pub(crate) request_site: String,
    pub(crate) cause: &'static str,
    /// The line at fault.
    pub(crate) site: String,
    pub(crate) summary: String,
    /// The issue of pytorch/pytorch, if the cause is a defect of its allocator.
    pub(crate) pytorch_issue: Option<u32>,
    pub(crate) cap_bytes: Option<u64>,
    pub(crate) reserved_bytes: u64,
    pub(crate) device_free_bytes: u64,
    pub(crate) outside_bytes: Option<u64>,
    pub(crate) free: FreeReport,
    pub(crate) pinning: Option<PinningReport>,
    pub(crate) holders: Vec<HolderReport>,
    /// Whether the simulated program fails as the recorded one did. Remedies can only be checked
    /// then.
    pub(crate) reproduced: Option<bool>,
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
}

/// What a line of the program holds, in the output of `autopsy --json`.
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

/// What the remedies of one failure were found to be: whether the failure could be reproduced, and
/// the remedies that help.
pub(crate) type Checked = Option<(bool, Vec<Remedy>)>;

/// The out-of-memory errors of a recording, explained.
pub(crate) struct Examination {
    /// The settings under which the recording was made.
    pub(crate) settings: Settings,
    pub(crate) autopsy: Autopsy,
    /// The remedies of each failure.
    pub(crate) checked: Vec<Checked>,
    /// Defects of PyTorch's allocator that waste memory, whether a request failed or not.
    pub(crate) defects: Vec<Defect>,
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
        let settings = recorded::settings(path, recording, limit_bytes)?;
        let history = read_history(path, recording, operation)?;
        let error = |error| CommandError::file(path, error);
        let autopsy = Autopsy::new(recording, &history, &settings).map_err(error)?;
        let defects = defects(recording, &settings).map_err(error)?;
        let mut checked: Vec<Checked> = Vec::new();
        if !autopsy.ooms.is_empty() {
            let limits = LimitArguments { capacity: None, limit_bytes };
            let workloads = simulation::workloads(path, recording, &limits, operation)?;
            for oom in autopsy.ooms.iter().take(MAX_CHECKED) {
                let of_device = workloads.iter().find(|one| one.workload.device() == oom.failure.device);
                checked.push(match of_device {
                    Some(device) => {
                        let capacity = device.capacity_bytes;
                        let search = RemedySearch::new(recording, &history, &autopsy, oom, &settings, capacity);
                        Some(check(&search.map_err(error)?, device, operation)?)
                    }
                    None => None,
                });
            }
        }
        checked.resize(autopsy.ooms.len(), None);
        Ok(Self { settings, autopsy, checked, defects })
    }

    /// Returns the report that `autopsy --json` prints.
    pub(crate) fn report(&self) -> Report {
        let ooms = self.autopsy.ooms.iter().zip(&self.checked);
        Report {
            ooms: ooms.map(|(oom, checked)| OomReport::new(oom, checked)).collect(),
            omitted: self.autopsy.omitted,
            defects: self.defects.iter().map(DefectReport::from).collect(),
        }
    }
}

/// Simulates the candidates of a failure, as many at once as there are processors.
fn check(search: &RemedySearch, device: &DeviceWorkload, operation: &Operation) -> Result<(bool, Vec<Remedy>)> {
    operation.check()?;
    if !search.is_reproduced(&device.workload) {
        return Ok((false, Vec::new()));
    }
    let candidates = search.candidates();
    let bar = operation.stage("Checking remedies".to_owned());
    bar.set_length(candidates.len() as u64);
    let threads = thread::available_parallelism().map_or(1, usize::from).min(candidates.len());
    let next = AtomicUsize::new(0);
    let mut found: Vec<(usize, Remedy)> = thread::scope(|scope| {
        let check_next = || {
            let mut found = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(candidate) = candidates.get(index).filter(|_| !operation.is_cancelled()) else {
                    return found;
                };
                found.extend(search.check(&device.workload, candidate).map(|remedy| (index, remedy)));
                bar.inc(1);
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(check_next)).collect();
        let join = |worker: thread::ScopedJoinHandle<'_, Vec<_>>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().flat_map(join).collect()
    });
    bar.finish_and_clear();
    operation.check()?;
    found.sort_by_key(|&(index, _)| index);
    Ok((true, found.into_iter().map(|(_, remedy)| remedy).collect()))
}

impl From<&Defect> for DefectReport {
    fn from(defect: &Defect) -> Self {
        Self {
            pytorch_issue: defect.pytorch_issue,
            device: defect.device.0,
            event: defect.event,
            bytes: defect.bytes,
            summary: defect.summary.clone(),
            remedy: defect.remedy,
        }
    }
}

impl OomReport {
    fn new(oom: &OutOfMemory, checked: &Checked) -> Self {
        let (failure, free) = (&oom.failure, &oom.free);
        let holders = oom.holders.iter().map(|holder| HolderReport {
            site: holder.name.clone(),
            category: holder.category.name(),
            bytes: holder.bytes,
            blocks: holder.blocks,
        });
        let remedies = checked.iter().flat_map(|(_, remedies)| remedies).map(|remedy| RemedyReport {
            kind: remedy.kind.id(),
            detail: remedy.detail.clone(),
            saves_bytes: remedy.saves_bytes,
            peak_reserved_bytes: remedy.peak_reserved_bytes,
            checked: true,
        });
        Self {
            device: failure.device.0,
            event: failure.event,
            requested_bytes: failure.requested_bytes,
            rounded_bytes: failure.rounded_bytes,
            stream: failure.stream.0,
            pool: if failure.pool.kind == PoolKind::Small { "small" } else { "large" },
            request_site: oom.request_line.clone(),
            cause: oom.cause.id(),
            site: oom.site.clone(),
            summary: oom.summary.clone(),
            pytorch_issue: oom.cause.pytorch_issue(),
            cap_bytes: oom.cap.about_bytes(),
            reserved_bytes: failure.usage.reserved_bytes,
            device_free_bytes: failure.device_free_bytes,
            outside_bytes: oom.outside_bytes,
            free: FreeReport {
                own_bytes: free.own_bytes,
                own_largest_bytes: free.own_largest_bytes,
                other_stream_bytes: free.other_stream_bytes,
                other_stream_largest_bytes: free.other_stream_largest_bytes,
                private_pool_bytes: free.private_bytes,
                private_pool_largest_bytes: free.private_largest_bytes,
                releasable_bytes: free.releasable_bytes,
                pending_bytes: free.pending_bytes,
            },
            pinning: oom.pinning.as_ref().map(|pinning| PinningReport {
                segment_address: format!("{:#x}", pinning.segment_address),
                bytes: pinning.bytes,
                live_bytes: pinning.live_bytes,
                blocks: pinning.blocks.len(),
            }),
            holders: holders.collect(),
            reproduced: checked.as_ref().map(|&(reproduced, _)| reproduced),
            remedies: remedies.collect(),
        }
    }
}
