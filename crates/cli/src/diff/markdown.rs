//! The output of `diff --markdown`: a summary for a comment on a pull request.

use std::fmt::Write;

use vramscope_insight::comparison::{DeviceComparison, DeviceTotals, Moment, SiteChange};
use vramscope_trace::{ByteSize, Count, PerRecording};

use super::checks::{Check, device_names, outcome};
use super::compared::Compared;
use super::tables::{
    MAX_SITE_ROWS, bytes, change, count, first_difference_text, less_memory_text, live, moments_text, totals_rows,
};
use crate::escape::escape_controls;

/// Message of the impossible panic if writing to a string fails.
const WRITTEN: &str = "writing to a string does not fail";

/// Returns the whole summary.
pub(crate) fn text(compared: &Compared) -> String {
    let Compared { operands: PerRecording { a, b }, comparison, checks } = compared;
    let mut out = format!("### GPU memory: {}\n\n", escape(&headline(compared)));
    writeln!(out, "A is {}, B is {}.", code(&a.text), code(&b.text)).expect(WRITTEN);
    if let Some(note) = compared.matching_warning() {
        writeln!(out, "\n{note}").expect(WRITTEN);
    }
    if !checks.is_empty() {
        out += &conditions_table(checks);
    }
    for device in &comparison.devices {
        out += &device_text(device, compared.moments());
    }
    out
}

/// Returns the heading: the change of the peak of each device, and how many conditions hold.
fn headline(compared: &Compared) -> String {
    let devices = &compared.comparison.devices;
    let mut parts: Vec<String> = devices.iter().map(|device| device_headline(device, devices.len() > 1)).collect();
    if parts.is_empty() {
        parts.push("no device was used".to_owned());
    }
    let failed = compared.checks.iter().filter(|check| check.fails()).count();
    match compared.checks.len() {
        0 => {}
        all if failed > 0 => parts.push(format!("{failed} of {} FAIL", Count(all as u64).of("check", "checks"))),
        all => parts.push(format!("{} pass", Count(all as u64).of("check", "checks"))),
    }
    parts.join("; ")
}

/// Returns the change of a device's peak of allocated bytes; `is_named` adds the device.
fn device_headline(device: &DeviceComparison, is_named: bool) -> String {
    let name = if is_named { format!("{}: ", device_names(device.device)) } else { String::new() };
    let peak = |totals: Option<DeviceTotals>| totals.map(|totals| totals.peak_allocated_bytes);
    match (peak(device.totals.a), peak(device.totals.b)) {
        (Some(a), Some(b)) if a == b => format!("{name}peak allocated {} as before", ByteSize(b)),
        (Some(a), Some(b)) => {
            let percent =
                if a > 0 { format!(" ({:+.1}%)", (b as f64 - a as f64) / a as f64 * 100.0) } else { String::new() };
            format!("{name}peak allocated {} → {}, {}{percent}", ByteSize(a), ByteSize(b), change(a, b, bytes))
        }
        (Some(_), None) => format!("{name}only in A"),
        (None, _) => format!("{name}only in B"),
    }
}

/// Returns the table of the conditions of `--fail-if`.
fn conditions_table(checks: &[Check]) -> String {
    let mut out = "\n| check | fails if | A | B | change |\n| --- | --- | ---: | ---: | ---: |\n".to_owned();
    for check in checks {
        for (device, evaluation) in &check.devices {
            let name = if check.devices.len() > 1 { format!(", {}", device_names(*device)) } else { String::new() };
            let outcome = if evaluation.holds { format!("**{}**", outcome(true)) } else { outcome(false).to_owned() };
            let cells = [evaluation.values.a.text(), evaluation.values.b.text(), evaluation.change_text()];
            let [a, b, change] = cells.map(|cell| escape(&cell));
            let condition = format!("{}{}", code(&check.condition.to_string()), escape(&name));
            writeln!(out, "| {outcome} | {condition} | {a} | {b} | {change} |").expect(WRITTEN);
        }
    }
    out
}

/// Returns the totals and the changed sites of a device.
fn device_text(device: &DeviceComparison, moments: [&Moment; 2]) -> String {
    let title = escape(&device_names(device.device));
    let mut out = format!("\n| {title} | A | B | change |\n| --- | ---: | ---: | ---: |\n");
    for cells in totals_rows(device, moments) {
        let [name, a, b, change] = cells.map(|cell| escape(&cell));
        writeln!(out, "| {name} | {a} | {b} | {change} |").expect(WRITTEN);
    }
    for text in [less_memory_text(device), first_difference_text(device)].into_iter().flatten() {
        writeln!(out, "\n{}.", escape(&text)).expect(WRITTEN);
    }
    out += &sites_table(device, &moments_text(device, moments));
    out
}

/// Returns the table of the sites with the largest changes of live bytes.
fn sites_table(device: &DeviceComparison, when: &str) -> String {
    let changed = |site: &&SiteChange| site.live_growth() != 0 || site.is_first_difference;
    let sites: Vec<&SiteChange> = device.sites.iter().filter(changed).collect();
    if sites.is_empty() {
        return format!("\nNo site holds another number of bytes {}.\n", escape(when));
    }
    let title = escape(&format!("site, {when}"));
    let mut out = format!("\n| change | A | B | blocks | {title} |\n| ---: | ---: | ---: | ---: | --- |\n");
    let mut row = |live: PerRecording<[u64; 2]>, name: &str| {
        let [bytes_change, a, b, blocks] = [
            change(live.a[0], live.b[0], bytes),
            bytes(live.a[0]),
            bytes(live.b[0]),
            change(live.a[1], live.b[1], count),
        ]
        .map(|cell| escape(&cell));
        writeln!(out, "| {bytes_change} | {a} | {b} | {blocks} | {name} |").expect(WRITTEN);
    };
    sites.iter().take(MAX_SITE_ROWS).for_each(|site| row(live(site.at_moment), &code(&site.name)));
    let total = |totals: Option<DeviceTotals>| {
        totals.map_or([0, 0], |totals| [totals.at_moment.counters.active, totals.at_moment.blocks])
    };
    row(PerRecording { a: total(device.totals.a), b: total(device.totals.b) }, "total of all sites");
    let omitted = sites.len().saturating_sub(MAX_SITE_ROWS) as u64;
    if omitted > 0 {
        writeln!(out, "\n{} changed less.", Count(omitted).of("site", "sites")).expect(WRITTEN);
    }
    out
}

/// Returns untrusted text as code that Markdown does not interpret. Like backticks, `<code>` keeps
/// GitHub from turning it into mentions and references; unlike backticks, it can contain escapes.
fn code(text: &str) -> String {
    format!("<code>{}</code>", escape(text))
}

/// Escapes text so that Markdown shows it as it is, also within a cell of a table.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in escape_controls(text).chars() {
        match c {
            // A backslash before these would be shown by some renderers.
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '@' => escaped.push_str("&#64;"),
            '\\' | '`' | '*' | '_' | '{' | '}' | '[' | ']' | '#' | '|' | '~' | '!' | '$' => {
                escaped.push('\\');
                escaped.push(c);
            }
            _ => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_become_markup() {
        assert_eq!(escape("train.py:47 forward"), "train.py:47 forward");
        assert_eq!(
            escape("a|b <b>_x_</b> `c` *d* [e](f) @g #1 \\ & ~h~ !"),
            "a\\|b &lt;b&gt;\\_x\\_&lt;/b&gt; \\`c\\` \\*d\\* \\[e\\](f) &#64;g \\#1 \\\\ &amp; \\~h\\~ \\!"
        );
        assert_eq!(escape("two\nlines"), "two\\\\nlines");
        assert_eq!(code("__init__"), "<code>\\_\\_init\\_\\_</code>");
    }
}
