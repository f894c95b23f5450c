//! The tables of a compared device for the terminal.

use std::cmp::{Ordering, Reverse};

use comfy_table::CellAlignment;
use vramscope_insight::comparison::{
    BlockTotals, DeviceComparison, DeviceTotals, FirstDifferenceKind, Moment, RecordingLabel, RequestAt, SiteChange,
    UNUSABLE_REQUEST_BYTES,
};
use vramscope_trace::{ByteSize, Count, PerRecording, Percent};

use super::checks::device_names;
use crate::escape::escape_controls;
use crate::table;

/// Maximum number of rows of a table of sites; of more sites, the table shows the largest changes.
pub(crate) const MAX_SITE_ROWS: usize = 20;

/// Text of a figure that is missing because a recording lacks the device.
pub(crate) const ABSENT: &str = "-";

/// Returns all tables of a device. `columns` is the terminal's width; `None` shows sites in full
/// length.
pub(crate) fn device_text(device: &DeviceComparison, moments: [&Moment; 2], columns: Option<u16>) -> String {
    let mut out = format!("\n{}", totals_table(device, moments));
    if let Some(text) = less_memory_text(device) {
        out += &format!("\n{text}\n");
    }
    if let Some(text) = first_difference_text(device) {
        out += &format!("\n{}\n", escape_controls(&text));
    }
    let when = moments_text(device, moments);
    if let Some(table) = categories_table(device, &when) {
        out += &format!("\n{table}");
    }
    let sites: Vec<&SiteChange> = device.sites.iter().collect();
    out += &format!("\n{}", AT_MOMENT.text(&sites, &when, columns));
    if let Some(text) = pending_text(device) {
        out += &format!("{text}\n");
    }
    // If the user has chosen moments, only the tables at these moments are shown.
    if moments == [&Moment::Peak; 2] {
        out += &format!("\n{}", AT_END.text(&sites, "at the end", columns));
        out += &format!("\n{}", ALLOCATIONS.text(&sites, "allocations in the whole recording", columns));
    }
    out
}

/// Returns the compared moments as text: `at the peak of allocated bytes`, `at event 12 in a, event
/// 30 in b`.
pub(crate) fn moments_text(device: &DeviceComparison, moments: [&Moment; 2]) -> String {
    match moments {
        [Moment::Peak, Moment::Peak] => "at the peak of allocated bytes".to_owned(),
        [Moment::End, Moment::End] => "at the end".to_owned(),
        _ => {
            let event = |totals: Option<DeviceTotals>, name| {
                totals.map(|totals| format!("event {} in {name}", Count(totals.moment)))
            };
            let events = [event(device.totals.a, "a"), event(device.totals.b, "b")];
            format!("at {}", events.into_iter().flatten().collect::<Vec<_>>().join(", "))
        }
    }
}

/// Returns where the programs' requests first differ, as a sentence.
pub(crate) fn first_difference_text(device: &DeviceComparison) -> Option<String> {
    let difference = device.first_difference?;
    let site = device.sites.first().filter(|site| site.is_first_difference)?;
    let PerRecording { a, b } = difference.requests;
    let bytes = |request: Option<RequestAt>| ByteSize(request.map_or(0, |request| request.requested_bytes));
    let what = match difference.kind {
        FirstDifferenceKind::Size => format!("requests {} instead of {}", bytes(b), bytes(a)),
        FirstDifferenceKind::OnlyInA => format!("requests {} in a only", bytes(a)),
        FirstDifferenceKind::OnlyInB => format!("requests {} in b only", bytes(b)),
        FirstDifferenceKind::Replaced => "makes another request".to_owned(),
        FirstDifferenceKind::FreedEarlierInA => format!("{} are kept longer in b", bytes(b)),
        FirstDifferenceKind::FreedEarlierInB => format!("{} are kept longer in a", bytes(a)),
    };
    let events = [(a, "a"), (b, "b")];
    let events =
        events.into_iter().filter_map(|(request, name)| Some(format!("event {} in {name}", Count(request?.event))));
    let requests = Count(difference.equal_requests).of("equal request", "equal requests");
    let events: Vec<String> = events.collect();
    Some(format!("first difference, after {requests}: {}: {what} ({})", site.name, events.join(", ")))
}

/// Returns which recording's pool could get less memory for equal requests, as a sentence.
pub(crate) fn less_memory_text(device: &DeviceComparison) -> Option<String> {
    let less = device.less_memory?;
    let PerRecording { a, b } = less.obtainable_bytes;
    let (failed, served, failed_bytes, served_bytes) = match less.failed_in {
        RecordingLabel::A => ("a", "b", a, b),
        RecordingLabel::B => ("b", "a", b, a),
    };
    let reason = match less.is_capped {
        true => format!("a cap limits {failed}"),
        false => format!("the device had less memory for {failed} (other processes, libraries, or a smaller device)"),
    };
    Some(format!(
        "equal requests until one for {} failed in {failed} (event {}), after {}: its pool could get {}, that of \
         {served} at least {}: {reason}",
        ByteSize(less.requested_bytes),
        Count(less.event),
        Count(less.equal_requests).of("request", "requests"),
        ByteSize(failed_bytes),
        ByteSize(served_bytes)
    ))
}

/// Returns the live bytes that are pending free, as a sentence; `None` if there are none.
fn pending_text(device: &DeviceComparison) -> Option<String> {
    let pending = |totals: Option<DeviceTotals>| totals.map_or(0, |totals| totals.at_moment.pending_bytes());
    let (a, b) = (pending(device.totals.a), pending(device.totals.b));
    (a > 0 || b > 0).then(|| format!("of these, {} in a and {} in b are pending free", ByteSize(a), ByteSize(b)))
}

/// Formats a number of bytes in binary units: `1.50 GiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

/// Formats a number with thousands separators.
pub(crate) fn count(count: u64) -> String {
    Count(count).to_string()
}

/// Returns `b` minus `a` with its sign: `+1.50 GiB`, `-3 MiB`, `0`. `format` makes text of a
/// number.
pub(crate) fn change(a: u64, b: u64, format: fn(u64) -> String) -> String {
    match a.cmp(&b) {
        Ordering::Less => format!("+{}", format(b - a)),
        Ordering::Equal => "0".to_owned(),
        Ordering::Greater => format!("-{}", format(a - b)),
    }
}

/// A total of a device: its name, the function that returns its value, and the one that formats it.
type Total = (&'static str, fn(&DeviceTotals) -> u64, fn(u64) -> String);

/// The figures of whole recordings.
const TOTALS: [Total; 8] = [
    ("peak allocated", |totals| totals.peak_allocated_bytes, bytes),
    ("peak reserved", |totals| totals.peak_reserved_bytes, bytes),
    ("allocated at the end", |totals| totals.allocated_bytes, bytes),
    ("reserved at the end", |totals| totals.reserved_bytes, bytes),
    ("out of memory", |totals| totals.ooms, count),
    ("events", |totals| totals.events, count),
    ("allocations", |totals| totals.churn.allocations, count),
    ("bytes of all allocations", |totals| totals.churn.bytes, bytes),
];

/// The figures at chosen moments.
const AT_MOMENT_TOTALS: [Total; 3] = [
    ("allocated at the moment", |totals| totals.at_moment.counters.allocated, bytes),
    ("live at the moment", |totals| totals.at_moment.counters.active, bytes),
    ("reserved at the moment", |totals| totals.at_moment.counters.reserved, bytes),
];

/// Returns rows of a device's totals: the name, the values in recordings a and b, and the change.
pub(crate) fn totals_rows(device: &DeviceComparison, moments: [&Moment; 2]) -> Vec<[String; 4]> {
    let at_moment = if moments == [&Moment::Peak; 2] { &[][..] } else { &AT_MOMENT_TOTALS };
    let rows = at_moment.iter().chain(&TOTALS).map(|&(name, value, format)| {
        row(name, device, &|totals| format(value(totals)), &|a, b| change(value(a), value(b), format))
    });
    rows.chain([share_row("fragmentation at peak", device, |totals| totals.peak_fragmentation)]).collect()
}

/// Returns a row of a device's totals whose value is a share, such as the fragmentation.
fn share_row(name: &str, device: &DeviceComparison, share: fn(&DeviceTotals) -> f64) -> [String; 4] {
    let points = |a: &DeviceTotals, b: &DeviceTotals| format!("{:+.1} points", (share(b) - share(a)) * 100.0);
    row(name, device, &|totals| Percent(share(totals)).to_string(), &points)
}

/// Returns a row of a device's totals. `text` formats the value of one recording, and `change` the
/// change between two.
fn row(
    name: &str,
    device: &DeviceComparison,
    text: &dyn Fn(&DeviceTotals) -> String,
    change: &dyn Fn(&DeviceTotals, &DeviceTotals) -> String,
) -> [String; 4] {
    let (a, b) = (device.totals.a.as_ref(), device.totals.b.as_ref());
    let change = a.zip(b).map(|(a, b)| change(a, b));
    let [a, b, change] = [a.map(text), b.map(text), change].map(|cell| cell.unwrap_or_else(|| ABSENT.to_owned()));
    [name.to_owned(), a, b, change]
}

/// Returns a table of a device's totals in recordings a and b, with their differences.
fn totals_table(device: &DeviceComparison, moments: [&Moment; 2]) -> String {
    let unusable = ByteSize(UNUSABLE_REQUEST_BYTES);
    let mut rows = totals_rows(device, moments);
    type Share = fn(&DeviceTotals) -> f64;
    let shares: [(&str, Share); 5] = [
        ("fragmentation at the end", |totals| totals.fragmentation),
        ("highest fragmentation", |totals| totals.fragmentation_over_time.highest),
        ("mean fragmentation", |totals| totals.fragmentation_over_time.mean),
        (&format!("highest unusable share for {unusable}"), |totals| totals.unusable_share_over_time.highest),
        (&format!("mean unusable share for {unusable}"), |totals| totals.unusable_share_over_time.mean),
    ];
    rows.extend(shares.map(|(name, share)| share_row(name, device, share)));
    let mut table = table::new([device_names(device.device).as_str(), "a", "b", "change"], 1);
    for [name, a, b, change] in rows {
        table.add_row([format!("  {name}"), a, b, change]);
    }
    table::render(table, None)
}

/// Returns a table of the live bytes of the categories that changed; `None` if none did, or if
/// there is only one.
fn categories_table(device: &DeviceComparison, when: &str) -> Option<String> {
    let changed = device.categories.iter().filter(|row| row.a_bytes != row.b_bytes || row.a_blocks != row.b_blocks);
    let changed: Vec<_> = changed.collect();
    if device.categories.len() < 2 || changed.is_empty() {
        return None;
    }
    let title = format!("category, {when}");
    let mut table = table::new(["change", "a", "b", "blocks", title.as_str()], 0);
    table.column_mut(4).expect("the table has five columns").set_cell_alignment(CellAlignment::Left);
    for row in changed {
        table.add_row([
            change(row.a_bytes, row.b_bytes, bytes),
            bytes(row.a_bytes),
            bytes(row.b_bytes),
            change(row.a_blocks, row.b_blocks, count),
            row.name.to_string(),
        ]);
    }
    Some(table::render(table, None))
}

/// A table of the sites that changed most: two figures of each site, and the texts that name them.
struct SitesTable {
    /// Heading of the second figure's column.
    second_heading: &'static str,
    figures: fn(&SiteChange) -> PerRecording<[u64; 2]>,
    /// Whether a site is listed if only its second figure changed.
    lists_second: bool,
    /// Whether the comparison's order is kept; else the largest change of the first figure comes
    /// first.
    keeps_order: bool,
    /// Functions that format the first and the second figure.
    formats: [fn(u64) -> String; 2],
    /// The verb for one site, and the verb for several sites.
    verbs: (&'static str, &'static str),
    /// The text after the verb for sites without a change.
    unchanged: &'static str,
}

/// The table of the live memory of sites at the compared moments.
const AT_MOMENT: SitesTable = SitesTable {
    second_heading: "blocks",
    figures: |site| live(site.at_moment),
    lists_second: true,
    keeps_order: true,
    formats: [bytes, count],
    verbs: ("site holds", "sites hold"),
    unchanged: "the same amount in both",
};

/// The table of the memory that sites hold at the end.
const AT_END: SitesTable = SitesTable { figures: |site| live(site.end), keeps_order: false, ..AT_MOMENT };

/// The table of the allocations of sites over the whole recordings, freed ones included.
const ALLOCATIONS: SitesTable = SitesTable {
    second_heading: "bytes",
    figures: |site| {
        let PerRecording { a, b } = site.churn;
        PerRecording { a: [a.allocations, a.bytes], b: [b.allocations, b.bytes] }
    },
    // The sizes of allocations often depend on the input.
    lists_second: false,
    keeps_order: false,
    formats: [count, bytes],
    verbs: ("site makes", "sites make"),
    unchanged: "the same number of allocations in both",
};

/// Returns, for each of the two recordings, the live bytes and the number of live blocks of a site.
pub(crate) fn live(blocks: PerRecording<BlockTotals>) -> PerRecording<[u64; 2]> {
    let PerRecording { a, b } = blocks;
    PerRecording { a: [a.live_bytes(), a.live_blocks()], b: [b.live_bytes(), b.live_blocks()] }
}

impl SitesTable {
    /// Returns the table as text, with the sum of all sites. `when` completes the title. `columns`
    /// is the terminal's width; `None` shows sites in full length.
    fn text(&self, sites: &[&SiteChange], when: &str, columns: Option<u16>) -> String {
        let mut sites: Vec<_> = sites.iter().map(|site| (*site, (self.figures)(site))).collect();
        sites.retain(|(_, figures)| *figures != PerRecording::default());
        let mut total = PerRecording::<[u64; 2]>::default();
        for (_, PerRecording { a, b }) in &sites {
            for index in [0, 1] {
                total.a[index] = total.a[index].saturating_add(a[index]);
                total.b[index] = total.b[index].saturating_add(b[index]);
            }
        }
        let all = sites.len();
        sites.retain(|(_, PerRecording { a, b })| if self.lists_second { a != b } else { a[0] != b[0] });
        let unchanged = (all - sites.len()) as u64;
        let (verb, verb_of_several) = self.verbs;
        let unchanged_text = format!("{} {}", Count(unchanged).of(verb, verb_of_several), self.unchanged);
        if sites.is_empty() {
            return format!("{when}: {unchanged_text}\n");
        }
        if !self.keeps_order {
            // A stable sort keeps the comparison's order among equal changes.
            sites.sort_by_key(|(_, PerRecording { a, b })| Reverse(a[0].abs_diff(b[0])));
        }
        let title = format!("site, {when}");
        let mut table = table::new(["change", "a", "b", self.second_heading, title.as_str()], 0);
        table.column_mut(4).expect("the table has five columns").set_cell_alignment(CellAlignment::Left);
        let [format, second_format] = self.formats;
        let mut row = |PerRecording { a, b }: &PerRecording<[u64; 2]>, name: &str| {
            let (first, second) = (change(a[0], b[0], format), change(a[1], b[1], second_format));
            table.add_row([first, format(a[0]), format(b[0]), second, escape_controls(name)]);
        };
        sites.iter().take(MAX_SITE_ROWS).for_each(|(site, figures)| row(figures, &site.name));
        row(&total, "total of all sites");
        let mut out = table::render(table, columns);
        let omitted = sites.len().saturating_sub(MAX_SITE_ROWS) as u64;
        if omitted > 0 {
            out += &format!("{} changed less; use --json to see all\n", Count(omitted).of("site", "sites"));
        }
        if unchanged > 0 {
            out += &format!("{unchanged_text}\n");
        }
        out
    }
}
