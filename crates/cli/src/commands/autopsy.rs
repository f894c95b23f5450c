//! `vramscope autopsy`: why each request failed with out of memory, and what would have prevented
//! it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use clap::Args;
use serde::Serialize;
use vramscope_insight::autopsy::{Autopsy, Defect, OutOfMemory, Remedy, RemedySearch, defects};
use vramscope_pool::Settings;
use vramscope_trace::{ByteSize, Category, Count, PoolKind, Recording};

use crate::error::{CommandError, Result};
use crate::history::read_history;
use crate::input::Input;
use crate::recorded;
use crate::signals;
use crate::simulation::{self, DeviceWorkload, LimitArguments};
use crate::table;
use crate::terminal;

/// Text after the options in `vramscope autopsy --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope autopsy run.vram
  vramscope autopsy failed.pickle --limit-bytes 40GiB --json

Exit status: 0 without an out-of-memory error, 1 with one or more";

/// Number of lines of the program in the table of what held memory.
const TABLE_ROWS: usize = 8;
/// The most failures whose remedies are simulated. Programs that catch the error repeat it.
const MAX_CHECKED: usize = 4;

/// Arguments of `vramscope autopsy`: the recording and its memory limit.
#[derive(Args, Debug)]
pub(crate) struct AutopsyArguments {
    /// Recording (.vram, or an .html export), PyTorch snapshot (.pickle, .json) or RMM log (.csv);
    /// each also with .gz or .zst
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Memory limit that the recorded process ran under, such as 40GiB [default: inferred from the
    /// out-of-memory errors]
    #[arg(long, value_name = "SIZE")]
    limit_bytes: Option<ByteSize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The output of `autopsy --json`.
#[derive(Debug, Serialize)]
struct Report {
    ooms: Vec<OomReport>,
    /// Number of further failures that were not examined.
    omitted: u64,
    /// Defects of PyTorch's allocator that waste memory, whether a request failed or not.
    defects: Vec<DefectReport>,
}

/// A defect of PyTorch's allocator in the output of `autopsy --json`.
#[derive(Debug, Serialize)]
struct DefectReport {
    pytorch_issue: u32,
    device: u16,
    event: u64,
    bytes: u64,
    summary: String,
    remedy: &'static str,
}

/// One failure in the output of `autopsy --json`.
#[derive(Debug, Serialize)]
struct OomReport {
    device: u16,
    event: u64,
    requested_bytes: u64,
    rounded_bytes: u64,
    stream: u64,
    pool: &'static str,
    /// The line that made the request.
    request_site: String,
    cause: &'static str,
    /// The line at fault.
    site: String,
    summary: String,
    /// The issue of pytorch/pytorch, if the cause is a defect of its allocator.
    pytorch_issue: Option<u32>,
    cap_bytes: Option<u64>,
    reserved_bytes: u64,
    device_free_bytes: u64,
    outside_bytes: Option<u64>,
    free: FreeReport,
    pinning: Option<PinningReport>,
    holders: Vec<HolderReport>,
    /// Whether the simulated program fails as the recorded one did. Remedies can only be checked
    /// then.
    reproduced: Option<bool>,
    remedies: Vec<RemedyReport>,
}

/// Free memory at a failure in the output of `autopsy --json`.
#[derive(Debug, Serialize)]
struct FreeReport {
    own_bytes: u64,
    own_largest_bytes: u64,
    other_stream_bytes: u64,
    other_stream_largest_bytes: u64,
    private_pool_bytes: u64,
    private_pool_largest_bytes: u64,
    releasable_bytes: u64,
    pending_bytes: u64,
}

/// The live blocks that keep a range apart that is large enough.
#[derive(Debug, Serialize)]
struct PinningReport {
    segment_address: String,
    bytes: u64,
    live_bytes: u64,
    blocks: usize,
}

/// What a line of the program holds, in the output of `autopsy --json`.
#[derive(Debug, Serialize)]
struct HolderReport {
    site: String,
    category: &'static str,
    bytes: u64,
    blocks: u64,
}

/// A remedy in the output of `autopsy --json`.
#[derive(Debug, Serialize)]
struct RemedyReport {
    kind: &'static str,
    detail: String,
    saves_bytes: u64,
    peak_reserved_bytes: u64,
    checked: bool,
}

/// What the remedies of one failure were found to be: whether the failure could be reproduced, and
/// the remedies that help.
type Checked = Option<(bool, Vec<Remedy>)>;

/// Explains the out-of-memory errors of a recording. Returns false if there is one.
pub(crate) fn run(arguments: &AutopsyArguments) -> Result<bool> {
    signals::exit_on_signal(|| {})?;
    let recording = Input::open(&arguments.file)?.into_recording()?;
    let settings = recorded::settings(&arguments.file, &recording, arguments.limit_bytes)?;
    let history = read_history(&arguments.file, &recording)?;
    let error = |error| CommandError::file(&arguments.file, error);
    let autopsy = Autopsy::new(&recording, &history, &settings).map_err(error)?;
    let found = defects(&recording, &settings).map_err(error)?;
    let mut checked: Vec<Checked> = Vec::new();
    if !autopsy.ooms.is_empty() {
        let limits = LimitArguments { capacity: None, limit_bytes: arguments.limit_bytes };
        let workloads = simulation::workloads(&arguments.file, &recording, &limits)?;
        for oom in autopsy.ooms.iter().take(MAX_CHECKED) {
            let of_device = workloads.iter().find(|one| one.workload.device() == oom.failure.device);
            checked.push(match of_device {
                Some(device) => {
                    let capacity = device.capacity_bytes;
                    let search = RemedySearch::new(&recording, &history, &autopsy, oom, &settings, capacity);
                    Some(check(&search.map_err(error)?, device))
                }
                None => None,
            });
        }
    }
    checked.resize(autopsy.ooms.len(), None);
    if arguments.json {
        let ooms = autopsy.ooms.iter().zip(&checked).map(|(oom, checked)| OomReport::new(oom, checked)).collect();
        let report =
            Report { ooms, omitted: autopsy.omitted, defects: found.into_iter().map(DefectReport::from).collect() };
        let json = serde_json::to_string(&report).expect("finite numbers always serialize");
        terminal::print(&format!("{json}\n"))?;
    } else {
        terminal::print(&(text(&recording, &settings, &autopsy, &checked) + &defects_text(&found)))?;
    }
    Ok(autopsy.ooms.is_empty())
}

/// Simulates the candidates of a failure, as many at once as there are processors.
fn check(search: &RemedySearch, device: &DeviceWorkload) -> (bool, Vec<Remedy>) {
    if !search.is_reproduced(&device.workload) {
        return (false, Vec::new());
    }
    let candidates = search.candidates();
    let threads = thread::available_parallelism().map_or(1, usize::from).min(candidates.len());
    let next = AtomicUsize::new(0);
    let mut found: Vec<(usize, Remedy)> = thread::scope(|scope| {
        let check_next = || {
            let mut found = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(candidate) = candidates.get(index) else { return found };
                found.extend(search.check(&device.workload, candidate).map(|remedy| (index, remedy)));
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(check_next)).collect();
        let join = |worker: thread::ScopedJoinHandle<'_, Vec<_>>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().flat_map(join).collect()
    });
    found.sort_by_key(|&(index, _)| index);
    (true, found.into_iter().map(|(_, remedy)| remedy).collect())
}

impl From<Defect> for DefectReport {
    fn from(defect: Defect) -> Self {
        Self {
            pytorch_issue: defect.pytorch_issue,
            device: defect.device.0,
            event: defect.event,
            bytes: defect.bytes,
            summary: defect.summary,
            remedy: defect.remedy,
        }
    }
}

/// Returns the defects of PyTorch's allocator as text, each with its remedy.
fn defects_text(defects: &[Defect]) -> String {
    let text = |defect: &Defect| {
        format!(
            "\nDefect of PyTorch on {}, event {}: {}\n  {}\n  https://github.com/pytorch/pytorch/issues/{}\n",
            defect.device,
            Count(defect.event),
            defect.summary,
            defect.remedy,
            defect.pytorch_issue
        )
    };
    defects.iter().map(text).collect()
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

/// Returns all failures as text for the terminal.
fn text(recording: &Recording, settings: &Settings, autopsy: &Autopsy, checked: &[Checked]) -> String {
    if autopsy.ooms.is_empty() {
        return format!("No out-of-memory error in {}.\n", Count(recording.events()).of("event", "events"));
    }
    let parts: Vec<String> = autopsy.ooms.iter().zip(checked).map(|(oom, found)| oom_text(oom, found)).collect();
    let mut text = parts.join("\n");
    if autopsy.omitted > 0 {
        text += &format!("\n{} were not examined.\n", Count(autopsy.omitted).of("further error", "further errors"));
    }
    if !settings.to_conf().is_empty() {
        text += &format!("\nRecorded settings: {}\n", settings.to_conf());
    }
    text
}

/// Returns one failure as text: the headline, the cause, what held memory, what was free, remedies.
fn oom_text(oom: &OutOfMemory, checked: &Checked) -> String {
    let failure = &oom.failure;
    let mut text = format!(
        "OUT OF MEMORY on {}, event {}: {}, cause {}\n\n{}\n",
        failure.device,
        Count(failure.event),
        ByteSize(failure.requested_bytes),
        oom.cause.id(),
        oom.summary
    );
    if let Some(issue) = oom.cause.pytorch_issue() {
        text += &format!("This is a known defect of PyTorch: https://github.com/pytorch/pytorch/issues/{issue}\n");
    }
    text += "\n";
    let mut table = table::new(["  What held memory", "category", "bytes"], 2);
    for holder in oom.holders.iter().take(TABLE_ROWS) {
        let category = if holder.category == Category::Unknown { "" } else { holder.category.name() };
        table.add_row([format!("  {}", holder.name), category.to_owned(), ByteSize(holder.bytes).to_string()]);
    }
    let others: u64 = oom.holders.iter().skip(TABLE_ROWS).map(|holder| holder.bytes).sum();
    if others > 0 {
        table.add_row(["  (all other lines)".to_owned(), String::new(), ByteSize(others).to_string()]);
    }
    text += &table::render(table, None);
    text += "\n";
    text += &free_text(oom);
    text += "\n";
    text += &match checked {
        None => "Remedies are checked for the first errors only.\n".to_owned(),
        Some((false, _)) => "The simulation does not reproduce this error, so no remedy could be checked.\n".to_owned(),
        Some((true, remedies)) if remedies.is_empty() => "No remedy that was simulated prevents it.\n".to_owned(),
        Some((true, remedies)) => {
            let lines = remedies.iter().map(|remedy| {
                let peak = ByteSize(remedy.peak_reserved_bytes);
                format!("  {}\n      reserves {} less: {peak} at most\n", remedy.detail, ByteSize(remedy.saves_bytes))
            });
            format!("Each of these prevents it (simulated), the smallest change first:\n{}", lines.collect::<String>())
        }
    };
    text
}

/// Returns what was free and for whom, one line for each kind of free memory that existed.
fn free_text(oom: &OutOfMemory) -> String {
    let (failure, free) = (&oom.failure, &oom.free);
    let rows = [
        ("free in its pool and stream", free.own_bytes, Some(free.own_largest_bytes)),
        ("free for other streams", free.other_stream_bytes, Some(free.other_stream_largest_bytes)),
        ("free in private pools", free.private_bytes, Some(free.private_largest_bytes)),
        ("pending free", free.pending_bytes, None),
        ("free on the device", failure.device_free_bytes, None),
        ("held outside of the pool", oom.outside_bytes.filter(|_| !oom.is_capped()).unwrap_or(0), None),
    ];
    let mut table = table::new(["  What was free", "bytes", "largest block"], 1);
    for (name, bytes, largest) in rows.into_iter().filter(|&(_, bytes, _)| bytes > 0) {
        let largest = largest.map_or_else(String::new, |bytes| ByteSize(bytes).to_string());
        table.add_row([format!("  {name}"), ByteSize(bytes).to_string(), largest]);
    }
    let mut text = table::render(table, None);
    if let Some(bytes) = oom.cap.about_bytes() {
        text += &format!("  {} reserved, of a cap of {}\n", ByteSize(failure.usage.reserved_bytes), ByteSize(bytes));
    }
    text
}
