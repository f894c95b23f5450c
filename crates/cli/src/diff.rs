//! `vramscope diff`: what grew from one recording to another, by site.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use vramscope_trace::{Comparison, DeviceChange, Held, Pair, SiteChange, Totals, compare};

use crate::failure::{Failure, Outcome};
use crate::input::Input;
use crate::screen;
use crate::units;

/// Lines of a table for people.
const MOST_SITES: usize = 20;
/// Columns of a terminal that the tables keep to.
const WIDTH: usize = 100;
/// Columns before a site's name.
const BEFORE_SITE: usize = 49;

/// Arguments of `diff`.
#[derive(Args, Debug)]
pub(crate) struct DiffOptions {
    /// The recording to start from: .vram, a PyTorch snapshot (.pickle, .json) or an RMM log (.csv); each also with .gz or .zst
    #[arg(value_name = "A")]
    a: PathBuf,
    /// The recording to compare with it
    #[arg(value_name = "B")]
    b: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report<'a> {
    devices: Vec<DeviceReport>,
    sites: Vec<SiteReport<'a>>,
}

#[derive(Debug, Serialize)]
struct DeviceReport {
    device: u16,
    a: Option<TotalsReport>,
    b: Option<TotalsReport>,
}

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
}

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

/// Compares the recordings. That they differ is an answer as good as any.
pub(crate) fn run(options: &DiffOptions) -> Outcome {
    let read = |path: &Path| Input::open(path)?.recording();
    let (a, b) = (read(&options.a)?, read(&options.b)?);
    let comparison = compare(&a, &b).map_err(Failure::new)?;
    if options.json {
        let json = serde_json::to_string(&Report::of(&comparison)).expect("finite numbers always serialize");
        return screen::print(&format!("{json}\n"));
    }
    let mut out = String::new();
    for (name, path) in [("a", &options.a), ("b", &options.b)] {
        line(&mut out, &format!("{name}: {}", screen::one_line(&path.to_string_lossy())));
    }
    for device in &comparison.devices {
        out.push('\n');
        table_of_totals(&mut out, device);
        let sites: Vec<&SiteChange> = comparison.sites.iter().filter(|site| site.device == device.device).collect();
        let at_peak: Vec<_> = sites.iter().map(|site| (*site, site.peak)).collect();
        table_of_sites(&mut out, "at the peak of the allocated bytes", at_peak);
        table_of_sites(&mut out, "at the end", sites.iter().map(|site| (*site, site.end)).collect());
    }
    screen::print(&out)
}

impl<'a> Report<'a> {
    fn of(comparison: &'a Comparison) -> Self {
        let devices = comparison.devices.iter().map(|device| DeviceReport {
            device: device.device.0,
            a: device.totals.a.map(TotalsReport::from),
            b: device.totals.b.map(TotalsReport::from),
        });
        Self { devices: devices.collect(), sites: comparison.sites.iter().map(SiteReport::of).collect() }
    }
}

impl From<Totals> for TotalsReport {
    fn from(totals: Totals) -> Self {
        Self {
            events: totals.events,
            allocated_bytes: totals.allocated_bytes,
            reserved_bytes: totals.reserved_bytes,
            peak_allocated_bytes: totals.peak_allocated_bytes,
            peak_reserved_bytes: totals.peak_reserved_bytes,
            ooms: totals.ooms,
            peak_fragmentation: totals.peak_fragmentation,
            fragmentation: totals.fragmentation,
        }
    }
}

impl<'a> SiteReport<'a> {
    fn of(change: &'a SiteChange) -> Self {
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

fn line(out: &mut String, text: &str) {
    writeln!(out, "{}", text.trim_end()).expect("writing to a string does not fail");
}

/// `+1.50 GiB`, `-3.00 MiB`, `0`.
fn grown(from: u64, to: u64, of: fn(u64) -> String) -> String {
    match from.cmp(&to) {
        std::cmp::Ordering::Less => format!("+{}", of(to - from)),
        std::cmp::Ordering::Equal => "0".to_owned(),
        std::cmp::Ordering::Greater => format!("-{}", of(from - to)),
    }
}

fn table_of_totals(out: &mut String, change: &DeviceChange) {
    let Pair { a, b } = change.totals;
    line(out, &format!("device {:<19}{:>14}{:>14}{:>15}", change.device.0, "a", "b", "change"));
    let mut row = |name: &str, value: fn(&Totals) -> u64, text: fn(u64) -> String| {
        let told = |totals: Option<Totals>| totals.map_or_else(|| "-".to_owned(), |totals| text(value(&totals)));
        let grown = match (a, b) {
            (Some(a), Some(b)) => grown(value(&a), value(&b), text),
            _ => "-".to_owned(),
        };
        line(out, &format!("  {name:<24}{:>14}{:>14}{grown:>15}", told(a), told(b)));
    };
    row("peak allocated", |totals| totals.peak_allocated_bytes, units::bytes);
    row("peak reserved", |totals| totals.peak_reserved_bytes, units::bytes);
    row("allocated at the end", |totals| totals.allocated_bytes, units::bytes);
    row("reserved at the end", |totals| totals.reserved_bytes, units::bytes);
    row("requests that failed", |totals| totals.ooms, units::count);
    row("events", |totals| totals.events, units::count);
    let mut row = |name: &str, value: fn(&Totals) -> f64| {
        let told = |totals: Option<Totals>| {
            totals.map_or_else(|| "-".to_owned(), |totals| format!("{:.1} %", value(&totals) * 100.0))
        };
        let grown = match (a, b) {
            (Some(a), Some(b)) => format!("{:+.1} %", (value(&b) - value(&a)) * 100.0),
            _ => "-".to_owned(),
        };
        line(out, &format!("  {name:<24}{:>14}{:>14}{grown:>15}", told(a), told(b)));
    };
    row("fragmentation at peak", |totals| totals.peak_fragmentation);
    row("fragmentation at the end", |totals| totals.fragmentation);
}

/// The sites that changed most at one moment, the growth before the rest.
fn table_of_sites(out: &mut String, when: &str, mut sites: Vec<(&SiteChange, Pair<Held>)>) {
    sites.retain(|(_, held)| *held != Pair::default());
    let same = sites.iter().filter(|(_, held)| held.a == held.b).count();
    sites.retain(|(_, held)| held.a != held.b);
    let delta = |held: &Pair<Held>| i128::from(held.b.bytes) - i128::from(held.a.bytes);
    // Of two that differ equally in bytes, they stay in the order in which they came.
    sites.sort_by_key(|(_, held)| std::cmp::Reverse(delta(held)));
    out.push('\n');
    if sites.is_empty() {
        let sites = units::counted(same as u64, "site holds", "sites hold");
        line(out, &format!("{when}: {sites} memory, in both as much"));
        return;
    }
    line(out, &format!("{:>12}{:>13}{:>13}{:>9}  site, {when}", "change", "a", "b", "blocks"));
    let shown: Vec<_> = if sites.len() > MOST_SITES {
        // From both ends: what grew most, and what shrank most.
        let half = MOST_SITES / 2;
        sites.iter().take(half).chain(&sites[sites.len() - half..]).collect()
    } else {
        sites.iter().collect()
    };
    for (site, held) in &shown {
        let mut name = screen::one_line(&site.name);
        if name.chars().count() > WIDTH - BEFORE_SITE {
            name = name.chars().take(WIDTH - BEFORE_SITE - 1).chain(['…']).collect();
        }
        let bytes = grown(held.a.bytes, held.b.bytes, units::bytes);
        let blocks = grown(held.a.blocks, held.b.blocks, units::count);
        let (a, b) = (units::bytes(held.a.bytes), units::bytes(held.b.bytes));
        line(out, &format!("{bytes:>12}{a:>13}{b:>13}{blocks:>9}  {name}"));
    }
    let left_out = (sites.len() - shown.len()) as u64;
    if left_out > 0 {
        let sites = units::counted(left_out, "site", "sites");
        line(out, &format!("{sites} in between changed less and can be seen with --json"));
    }
    if same > 0 {
        let sites = units::counted(same as u64, "site holds", "sites hold");
        line(out, &format!("{sites} as much as before"));
    }
}
