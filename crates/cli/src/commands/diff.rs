//! `vramscope diff`: compares two recordings site by site.

use std::cmp::{Ordering, Reverse};
use std::path::{Path, PathBuf};

use clap::Args;
use comfy_table::CellAlignment;
use serde::Serialize;
use vramscope_trace::{
    BlockTotals, ByteSize, Comparison, Count, DeviceChange, DeviceTotals, PerRecording, Percent, SiteChange,
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

/// Most rows of a table of sites; of more sites, those with the largest growth and the largest
/// shrinkage are shown.
const MAX_SITE_ROWS: usize = 20;

/// Arguments of `vramscope diff`: the two recordings, and whether to print JSON.
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

/// The output of `diff --json`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    files: FileNames,
    /// Size in bytes of the request that the unusable shares refer to.
    unusable_request_bytes: u64,
    devices: Vec<DeviceReport>,
    sites: Vec<SiteReport<'a>>,
}

/// Paths of the two recordings as given on the command line, in the output of `diff --json`.
#[derive(Debug, Serialize)]
struct FileNames {
    a: String,
    b: String,
}

/// A device's totals in both recordings, in the output of `diff --json`; `a` or `b` is `None` if
/// that recording lacks the device.
#[derive(Debug, Serialize)]
struct DeviceReport {
    device: u16,
    a: Option<TotalsReport>,
    b: Option<TotalsReport>,
}

/// A device's totals in one recording, in the output of `diff --json`. Bytes and fragmentation are
/// those at the end unless named peak.
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
    allocations: u64,
    allocated_bytes_total: u64,
}

/// A site (call stack, scope path and category of allocations) in the output of `diff --json`: the
/// memory that its live blocks hold in both recordings, at the peak of allocated bytes and at the
/// end; and its allocations over the whole recordings, freed ones included.
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
    a_allocations: u64,
    b_allocations: u64,
    delta_allocations: i128,
    a_allocated_bytes_total: u64,
    b_allocated_bytes_total: u64,
    delta_allocated_bytes_total: i128,
}

/// Compares two recordings and prints the differences as tables or as JSON.
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
        for table in [&AT_PEAK, &AT_END, &ALLOCATIONS] {
            out += &format!("\n{}", table.text(&sites, terminal::columns()));
        }
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
        Self { files, unusable_request_bytes: UNUSABLE_REQUEST_BYTES, devices: devices.collect(), sites }
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
            allocations: totals.churn.allocations,
            allocated_bytes_total: totals.churn.bytes,
        }
    }
}

impl<'a> SiteReport<'a> {
    fn new(change: &'a SiteChange) -> Self {
        let (delta_bytes, delta_end_bytes) = change.growth();
        let PerRecording { a: a_churn, b: b_churn } = change.churn;
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
            a_allocations: a_churn.allocations,
            b_allocations: b_churn.allocations,
            delta_allocations: i128::from(b_churn.allocations) - i128::from(a_churn.allocations),
            a_allocated_bytes_total: a_churn.bytes,
            b_allocated_bytes_total: b_churn.bytes,
            delta_allocated_bytes_total: i128::from(b_churn.bytes) - i128::from(a_churn.bytes),
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

/// Returns `b` minus `a` with its sign: `+1.50 GiB`, `-3 MiB`, `0`. `format` makes text of a
/// number.
fn change(a: u64, b: u64, format: fn(u64) -> String) -> String {
    match a.cmp(&b) {
        Ordering::Less => format!("+{}", format(b - a)),
        Ordering::Equal => "0".to_owned(),
        Ordering::Greater => format!("-{}", format(a - b)),
    }
}

/// Returns a table of a device's totals in recordings a and b, with their differences.
fn totals_table(device: &DeviceChange) -> String {
    /// Table cell of a figure that is missing because a recording lacks the device.
    const ABSENT: &str = "-";
    let PerRecording { a, b } = device.totals;
    let title = device.device.to_string();
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
    row("allocations", |totals| totals.churn.allocations, count);
    row("bytes of all allocations", |totals| totals.churn.bytes, bytes);
    let mut row = |name: &str, value: fn(&DeviceTotals) -> f64| {
        let text = |totals: Option<DeviceTotals>| {
            totals.map_or(ABSENT.to_owned(), |totals| Percent(value(&totals)).to_string())
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

/// A table of the sites that changed most: two figures of each site, and the texts that name them.
/// The table is ordered by the first figure.
struct SitesTable {
    /// The end of the table's title, after "site, ".
    title: &'static str,
    /// Heading of the second figure's column.
    second_heading: &'static str,
    figures: fn(&SiteChange) -> PerRecording<[u64; 2]>,
    /// Whether a site is listed if only its second figure changed.
    lists_second: bool,
    /// Make text of the two figures.
    formats: [fn(u64) -> String; 2],
    /// What one site does, and what several sites do.
    verbs: (&'static str, &'static str),
    /// What sites without a change do, after the verb.
    unchanged: &'static str,
}

/// The table of the memory that sites hold at the peak of allocated bytes.
const AT_PEAK: SitesTable = SitesTable {
    title: "at the peak of allocated bytes",
    second_heading: "blocks",
    figures: |site| held(site.peak),
    lists_second: true,
    formats: [bytes, count],
    verbs: ("site holds", "sites hold"),
    unchanged: "the same amount in both",
};

/// The table of the memory that sites hold at the end.
const AT_END: SitesTable = SitesTable { title: "at the end", figures: |site| held(site.end), ..AT_PEAK };

/// The table of the allocations of sites over the whole recordings, freed ones included.
const ALLOCATIONS: SitesTable = SitesTable {
    title: "allocations in the whole recording",
    second_heading: "bytes",
    figures: |site| {
        let PerRecording { a, b } = site.churn;
        PerRecording { a: [a.allocations, a.bytes], b: [b.allocations, b.bytes] }
    },
    // Sizes often depend on the input.
    lists_second: false,
    formats: [count, bytes],
    verbs: ("site makes", "sites make"),
    unchanged: "the same number of allocations in both",
};

/// Returns, for each of the two recordings, the bytes and the number of blocks that a site holds.
fn held(blocks: PerRecording<BlockTotals>) -> PerRecording<[u64; 2]> {
    let PerRecording { a, b } = blocks;
    PerRecording { a: [a.bytes, a.blocks], b: [b.bytes, b.blocks] }
}

impl SitesTable {
    /// Returns the table as text, growth first. `columns` is the terminal's width; `None` shows
    /// sites in full length.
    fn text(&self, sites: &[&SiteChange], columns: Option<u16>) -> String {
        let mut sites: Vec<_> = sites.iter().map(|site| (*site, (self.figures)(site))).collect();
        sites.retain(|(_, figures)| *figures != PerRecording::default());
        let all = sites.len();
        sites.retain(|(_, PerRecording { a, b })| if self.lists_second { a != b } else { a[0] != b[0] });
        let unchanged = (all - sites.len()) as u64;
        let (verb, verb_of_several) = self.verbs;
        let unchanged_text = format!("{} {}", Count(unchanged).of(verb, verb_of_several), self.unchanged);
        if sites.is_empty() {
            return format!("{}: {unchanged_text}\n", self.title);
        }
        let delta = |figures: &PerRecording<[u64; 2]>| i128::from(figures.b[0]) - i128::from(figures.a[0]);
        // A stable sort keeps the comparison's order among equal changes.
        sites.sort_by_key(|(_, figures)| Reverse(delta(figures)));
        let title = format!("site, {}", self.title);
        let mut table = table::new(["change", "a", "b", self.second_heading, title.as_str()], 0);
        table.column_mut(4).expect("the table has five columns").set_cell_alignment(CellAlignment::Left);
        let shown: Vec<_> = if sites.len() > MAX_SITE_ROWS {
            // The largest growth and the largest shrinkage.
            let half = MAX_SITE_ROWS / 2;
            sites.iter().take(half).chain(&sites[sites.len() - half..]).collect()
        } else {
            sites.iter().collect()
        };
        let [format, second_format] = self.formats;
        for (site, PerRecording { a, b }) in &shown {
            table.add_row([
                change(a[0], b[0], format),
                format(a[0]),
                format(b[0]),
                change(a[1], b[1], second_format),
                escape_controls(&site.name),
            ]);
        }
        let mut out = table::render(table, columns);
        let omitted = (sites.len() - shown.len()) as u64;
        if omitted > 0 {
            out += &format!("{} changed less; use --json to see all\n", Count(omitted).of("site", "sites"));
        }
        if unchanged > 0 {
            out += &format!("{unchanged_text}\n");
        }
        out
    }
}
