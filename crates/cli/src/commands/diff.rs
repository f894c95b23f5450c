//! `vramscope diff`: compares two recordings site by site.

use std::cmp::{Ordering, Reverse};
use std::path::{Path, PathBuf};

use clap::Args;
use comfy_table::CellAlignment;
use serde::Serialize;
use vramscope_trace::{
    BlockTotals, ByteSize, Comparison, Count, DeviceChange, DeviceTotals, PerRecording, SiteChange,
    UNUSABLE_REQUEST_BYTES, compare,
};

use crate::error::{CommandError, Result};
use crate::escape::escape_controls;
use crate::input::Input;
use crate::table;
use crate::terminal;

/// Text after the options in `vramscope diff --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope diff before.vram after.vram
  vramscope diff before.pickle after.pickle --json";

/// Largest number of rows of a table of sites.
const MAX_SITE_ROWS: usize = 20;

/// Arguments of `diff`.
#[derive(Args, Debug)]
pub(crate) struct DiffArguments {
    /// First recording (.vram, or an .html export), PyTorch snapshot (.pickle, .json) or RMM log
    /// (.csv); each also with .gz or .zst
    #[arg(value_name = "A")]
    a: PathBuf,
    /// Second recording
    #[arg(value_name = "B")]
    b: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    files: FileNames,
    devices: Vec<DeviceReport>,
    sites: Vec<SiteReport<'a>>,
}

/// Paths of the two recordings as given on the command line, in the output of `--json`.
#[derive(Debug, Serialize)]
struct FileNames {
    a: String,
    b: String,
}

/// A device in the output of `--json`; `a` or `b` is `None` if that recording lacks the device.
#[derive(Debug, Serialize)]
struct DeviceReport {
    device: u16,
    a: Option<TotalsReport>,
    b: Option<TotalsReport>,
}

/// A device's totals in one recording, in the output of `--json`. Bytes and fragmentation are those
/// at the end unless named peak.
#[derive(Debug, Serialize)]
struct TotalsReport {
    events: u64,
    allocated_bytes: u64,
    reserved_bytes: u64,
    peak_allocated_bytes: u64,
    peak_reserved_bytes: u64,
    ooms: u64,
    peak_fragmentation: f64,
    fragmentation: f64,
    highest_fragmentation: f64,
    highest_fragmentation_event: u64,
    mean_fragmentation: f64,
    highest_unusable_share: f64,
    highest_unusable_share_event: u64,
    mean_unusable_share: f64,
}

/// A site (call stack, scope path and category of allocations) in the output of `--json`: the
/// memory that its live blocks hold in both recordings, at the peak of allocated bytes and at the
/// end.
#[derive(Debug, Serialize)]
struct SiteReport<'a> {
    device: u16,
    site: &'a str,
    scope: &'a str,
    category: &'static str,
    stack: &'a [String],
    a_bytes: u64,
    b_bytes: u64,
    delta_bytes: i128,
    a_blocks: u64,
    b_blocks: u64,
    a_end_bytes: u64,
    b_end_bytes: u64,
    delta_end_bytes: i128,
    a_end_blocks: u64,
    b_end_blocks: u64,
}

/// Prints the comparison.
pub(crate) fn run(arguments: &DiffArguments) -> Result {
    let read = |path: &Path| Input::open(path)?.into_recording();
    let (a, b) = (read(&arguments.a)?, read(&arguments.b)?);
    let comparison = compare(&a, &b).map_err(CommandError::new)?;
    let name = |path: &Path| path.to_string_lossy().into_owned();
    let files = FileNames { a: name(&arguments.a), b: name(&arguments.b) };
    if arguments.json {
        let json = serde_json::to_string(&Report::new(files, &comparison)).expect("finite numbers always serialize");
        return terminal::print(&format!("{json}\n"));
    }
    let mut out = format!("a: {}\nb: {}\n", escape_controls(&files.a), escape_controls(&files.b));
    for device in &comparison.devices {
        out += &format!("\n{}", totals_table(device));
        let sites: Vec<&SiteChange> = comparison.sites.iter().filter(|site| site.device == device.device).collect();
        let at_peak: Vec<_> = sites.iter().map(|site| (*site, site.peak)).collect();
        let at_end: Vec<_> = sites.iter().map(|site| (*site, site.end)).collect();
        out += &format!("\n{}", sites_table("at the peak of allocated bytes", at_peak, terminal::columns()));
        out += &format!("\n{}", sites_table("at the end", at_end, terminal::columns()));
    }
    terminal::print(&out)
}

impl<'a> Report<'a> {
    fn new(files: FileNames, comparison: &'a Comparison) -> Self {
        let devices = comparison.devices.iter().map(|device| DeviceReport {
            device: device.device.0,
            a: device.totals.a.map(TotalsReport::from),
            b: device.totals.b.map(TotalsReport::from),
        });
        let sites = comparison.sites.iter().map(SiteReport::new).collect();
        Self { files, devices: devices.collect(), sites }
    }
}

impl From<DeviceTotals> for TotalsReport {
    fn from(totals: DeviceTotals) -> Self {
        let (fragmentation, unusable_share) = (totals.fragmentation_over_time, totals.unusable_share_over_time);
        Self {
            events: totals.events,
            allocated_bytes: totals.allocated_bytes,
            reserved_bytes: totals.reserved_bytes,
            peak_allocated_bytes: totals.peak_allocated_bytes,
            peak_reserved_bytes: totals.peak_reserved_bytes,
            ooms: totals.ooms,
            peak_fragmentation: totals.peak_fragmentation,
            fragmentation: totals.fragmentation,
            highest_fragmentation: fragmentation.highest,
            highest_fragmentation_event: fragmentation.highest_event,
            mean_fragmentation: fragmentation.mean,
            highest_unusable_share: unusable_share.highest,
            highest_unusable_share_event: unusable_share.highest_event,
            mean_unusable_share: unusable_share.mean,
        }
    }
}

impl<'a> SiteReport<'a> {
    fn new(change: &'a SiteChange) -> Self {
        let (delta_bytes, delta_end_bytes) = change.growth();
        Self {
            device: change.device.0,
            site: &change.name,
            scope: &change.scope,
            category: change.category.name(),
            stack: &change.stack,
            a_bytes: change.peak.a.bytes,
            b_bytes: change.peak.b.bytes,
            delta_bytes,
            a_blocks: change.peak.a.blocks,
            b_blocks: change.peak.b.blocks,
            a_end_bytes: change.end.a.bytes,
            b_end_bytes: change.end.b.bytes,
            delta_end_bytes,
            a_end_blocks: change.end.a.blocks,
            b_end_blocks: change.end.b.blocks,
        }
    }
}

/// Formats bytes in binary units: `1.50 GiB`.
fn bytes(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

/// Formats a number with thousands separators.
fn count(count: u64) -> String {
    Count(count).to_string()
}

/// Returns the difference with its sign: `+1.50 GiB`, `-3 MiB`, `0`.
fn change(a: u64, b: u64, format: fn(u64) -> String) -> String {
    match a.cmp(&b) {
        Ordering::Less => format!("+{}", format(b - a)),
        Ordering::Equal => "0".to_owned(),
        Ordering::Greater => format!("-{}", format(a - b)),
    }
}

/// Returns a table of a device's totals in recordings a and b, with their differences.
fn totals_table(device: &DeviceChange) -> String {
    /// Cell of a recording that lacks the device.
    const ABSENT: &str = "-";
    let PerRecording { a, b } = device.totals;
    let title = format!("device {}", device.device.0);
    let unusable = ByteSize(UNUSABLE_REQUEST_BYTES);
    let mut table = table::new([title.as_str(), "a", "b", "change"], 1);
    let mut row = |name: &str, value: fn(&DeviceTotals) -> u64, format: fn(u64) -> String| {
        let text = |totals: Option<DeviceTotals>| totals.map_or(ABSENT.to_owned(), |totals| format(value(&totals)));
        let change = a.zip(b).map_or(ABSENT.to_owned(), |(a, b)| change(value(&a), value(&b), format));
        table.add_row([format!("  {name}"), text(a), text(b), change]);
    };
    row("peak allocated", |totals| totals.peak_allocated_bytes, bytes);
    row("peak reserved", |totals| totals.peak_reserved_bytes, bytes);
    row("allocated at the end", |totals| totals.allocated_bytes, bytes);
    row("reserved at the end", |totals| totals.reserved_bytes, bytes);
    row("out of memory", |totals| totals.ooms, count);
    row("events", |totals| totals.events, count);
    let mut row = |name: &str, value: fn(&DeviceTotals) -> f64| {
        let text = |totals: Option<DeviceTotals>| {
            totals.map_or(ABSENT.to_owned(), |totals| format!("{:.1} %", value(&totals) * 100.0))
        };
        let points = |(a, b): (DeviceTotals, DeviceTotals)| format!("{:+.1} points", (value(&b) - value(&a)) * 100.0);
        table.add_row([format!("  {name}"), text(a), text(b), a.zip(b).map_or(ABSENT.to_owned(), points)]);
    };
    row("fragmentation at peak", |totals| totals.peak_fragmentation);
    row("fragmentation at the end", |totals| totals.fragmentation);
    row("highest fragmentation", |totals| totals.fragmentation_over_time.highest);
    row("mean fragmentation", |totals| totals.fragmentation_over_time.mean);
    row(&format!("highest unusable share for {unusable}"), |totals| totals.unusable_share_over_time.highest);
    row(&format!("mean unusable share for {unusable}"), |totals| totals.unusable_share_over_time.mean);
    table::render(table, None)
}

/// Returns a table of the sites that changed most at `moment` (text for the title), growth first.
/// `columns` is the terminal's width; `None` shows sites in full length.
fn sites_table(moment: &str, mut sites: Vec<(&SiteChange, PerRecording<BlockTotals>)>, columns: Option<u16>) -> String {
    sites.retain(|(_, held)| *held != PerRecording::default());
    let unchanged = sites.iter().filter(|(_, held)| held.a == held.b).count() as u64;
    sites.retain(|(_, held)| held.a != held.b);
    let delta = |held: &PerRecording<BlockTotals>| i128::from(held.b.bytes) - i128::from(held.a.bytes);
    // A stable sort keeps the comparison's order among equal changes.
    sites.sort_by_key(|(_, held)| Reverse(delta(held)));
    if sites.is_empty() {
        let sites = Count(unchanged).of("site holds", "sites hold");
        return format!("{moment}: {sites} memory, the same amount in both\n");
    }
    let title = format!("site, {moment}");
    let mut table = table::new(["change", "a", "b", "blocks", title.as_str()], 0);
    table.column_mut(4).expect("the table has five columns").set_cell_alignment(CellAlignment::Left);
    let shown: Vec<_> = if sites.len() > MAX_SITE_ROWS {
        // The largest growth and the largest shrinkage.
        let half = MAX_SITE_ROWS / 2;
        sites.iter().take(half).chain(&sites[sites.len() - half..]).collect()
    } else {
        sites.iter().collect()
    };
    for (site, held) in &shown {
        table.add_row([
            change(held.a.bytes, held.b.bytes, bytes),
            bytes(held.a.bytes),
            bytes(held.b.bytes),
            change(held.a.blocks, held.b.blocks, count),
            escape_controls(&site.name),
        ]);
    }
    let mut out = table::render(table, columns);
    let omitted = (sites.len() - shown.len()) as u64;
    if omitted > 0 {
        out += &format!("{} changed less; use --json to see all\n", Count(omitted).of("site", "sites"));
    }
    if unchanged > 0 {
        out += &format!("{} the same amount in both\n", Count(unchanged).of("site holds", "sites hold"));
    }
    out
}
