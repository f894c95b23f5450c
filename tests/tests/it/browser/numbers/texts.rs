//! The text on the page, as a user reads it, equals what `trace` and `insight` say.

use std::collections::BTreeMap;

use fastrand::Rng;
use vramscope_insight::group::GroupBy;
use vramscope_insight::placement::recorded_settings;
use vramscope_insight::pools::device_usage;
use vramscope_insight::sites::live_groups;
use vramscope_tests::fixtures::Fixture;
use vramscope_tests::{Browser, Page, Program, Window};
use vramscope_trace::{DeviceId, DeviceState};

use super::open_recording::{exact, hexadecimal};
use super::pointer::{choose, is_share, is_size, legend, read, show, size, table_cells, texts, whole};
use super::rows::{count_of, is_full, show_device};
use super::subject::Subject;

/// Ids of the header's counters and of the texts about the moment.
const COUNTERS: [&str; 11] = [
    "count-allocated",
    "count-active",
    "count-reserved",
    "count-stuck",
    "count-releasable",
    "count-segments",
    "count-blocks",
    "count-events",
    "event",
    "event-of",
    "moment-title",
];

/// Checks the header and the texts about the moment.
fn check_header(page: Page<'_>, subject: &Subject, state: &DeviceState, moment: u64, context: &str) {
    let shown = texts(page, COUNTERS);
    let [allocated, active, reserved, stuck, releasable, segments, blocks, events, event, event_of, title] = &shown;
    let counters = state.counters();
    for (text, bytes) in [(allocated, counters.allocated), (active, counters.active), (reserved, counters.reserved)] {
        assert!(is_size(text, bytes), "{context}: {bytes} bytes are shown as {text}");
    }
    let usage = device_usage(state, &recorded_settings(subject.recording.info()));
    for (text, bytes) in [(stuck, usage.stuck_bytes), (releasable, usage.releasable_bytes)] {
        let (shown, share) = text.split_once(" (").unwrap_or_default();
        assert!(is_size(shown, bytes), "{context}: {bytes} bytes are shown as {text}");
        let of_reserved = if counters.reserved == 0 { 0.0 } else { bytes as f64 / counters.reserved as f64 };
        assert!(is_share(share.trim_end_matches(')'), of_reserved), "{context}: {text}");
    }
    let numbers = [segments, blocks, events, event, event_of].map(|text| whole(text));
    let (segments, blocks, end) = (state.segments().len(), state.blocks().len(), subject.recording.end_event());
    assert_eq!(numbers, [segments as u64, blocks as u64, end, moment, end], "{context}: {shown:?}");
    let (of, all) = title.split_once(" of ").unwrap_or_default();
    assert_eq!((whole(of), whole(all)), (moment, end), "{context}: {title}");
}

/// Checks the details of the device.
fn check_device(page: Page<'_>, subject: &Subject, state: &DeviceState, context: &str) {
    let shown = read(page, "sites");
    assert_eq!(shown.heading, "Device", "{context}");
    let (counters, free) = (state.counters(), state.free_space());
    assert!(shown.value(0, "requested").ends_with(&exact(counters.requested)), "{context}: {shown:?}");
    assert!(shown.value(0, "largest free").ends_with(&exact(free.largest)), "{context}: {shown:?}");
    assert!(is_size(shown.value(0, "rounding"), counters.active - counters.requested), "{context}: {shown:?}");
    let usage = device_usage(state, &recorded_settings(subject.recording.info()));
    for (name, rest, bytes) in [
        ("releasable", " in free segments", usage.releasable_bytes),
        ("stuck", " beside live blocks", usage.stuck_bytes),
    ] {
        let text = shown.value(0, name);
        assert!(text.strip_suffix(rest).is_some_and(|text| is_size(text, bytes)), "{context}: {name} {text}");
    }
    assert_eq!(whole(shown.value(0, "free blocks")), free.blocks, "{context}: {shown:?}");
}

/// Checks the cells of the table of who holds the memory, and its summary.
fn check_sites(
    page: Page<'_>,
    subject: &Subject,
    (device, state): (DeviceId, &DeviceState),
    by: GroupBy,
    context: &str,
) {
    choose(page, "sites", "by sites", by.name());
    let mut grouping = subject.grouping(by, device);
    let mut groups = live_groups(state, subject.recording.definitions(), &mut grouping);
    let cells = table_cells(page, "sites");
    assert_eq!(cells.len(), groups.len(), "{context}: rows");
    // Groups of equal bytes may be in another order.
    let mut shown: Vec<(&str, &[String])> = cells.iter().map(|row| (row[0].as_str(), &row[1..])).collect();
    groups.sort_by_key(|one| (one.name.to_string(), one.bytes, one.blocks));
    shown.sort_by(|one, other| {
        let key = |row: &(&str, &[String])| (row.0.to_owned(), size(&row.1[0]) as u64, whole(&row.1[2]));
        key(one).cmp(&key(other))
    });
    let counters = state.counters();
    for ((name, cells), group) in shown.into_iter().zip(&groups) {
        let is_same = name == group.name.trim() && is_size(&cells[0], group.bytes);
        assert!(is_same, "{context}: {name} {cells:?} is {group:?}");
        assert!(is_share(&cells[1], group.bytes as f64 / counters.active as f64), "{context}: {name} {cells:?}");
        assert_eq!(whole(&cells[2]), group.blocks, "{context}: {name} {cells:?}");
    }
    let sum: f64 = cells.iter().map(|row| size(&row[1])).sum();
    assert!((sum - counters.active as f64).abs() <= sum * 0.006, "{context}: the rows add up to {sum}");
    let summary = read(page, "sites").summary;
    if let Some((bytes, rest)) = summary.split_once(" in ") {
        let blocks = rest.split(' ').next().unwrap_or_default();
        assert!(is_size(bytes, counters.active), "{context}: {summary}");
        assert_eq!(whole(blocks), state.blocks().len() as u64, "{context}: {summary}");
    }
}

/// Checks the rows of the list of live allocations that are on the page: the largest first.
fn check_list(page: Page<'_>, subject: &Subject, device: DeviceId, moment: u64, context: &str) {
    let mut live: Vec<_> = subject.lifetimes(device).iter().filter(|one| one.is_active_at(moment)).collect();
    live.sort_by_key(|one| std::cmp::Reverse(one.size));
    let cells = table_cells(page, "list");
    assert!(cells.len() >= live.len().min(5), "{context}: {} rows of {}", cells.len(), live.len());
    for (index, row) in cells.iter().enumerate() {
        let (at, context) = (hexadecimal(&row[7]), format!("{context}: row {index}, {row:?}"));
        let one = live.iter().find(|one| one.address == at).unwrap_or_else(|| panic!("{context} is not live"));
        assert_eq!(one.size, live[index].size, "{context}: the largest come first");
        assert!(is_size(&row[0], one.size) && is_size(&row[8], one.requested), "{context}");
        if one.start_observed {
            assert_eq!(whole(&row[5]), one.first_moment, "{context}");
        }
        let freed = Some(row[6].as_str()).filter(|text| !text.is_empty()).map(whole);
        assert_eq!(freed, one.allocated_until, "{context}");
        assert_eq!(whole(&row[9]), one.stream.0, "{context}");
    }
}

/// Checks the legend of the picture of all allocations, whose entries add up to the live bytes.
fn check_legend(page: Page<'_>, subject: &Subject, state: &DeviceState, context: &str) {
    let mut grouping = subject.grouping(GroupBy::Site, DeviceId(0));
    let groups = live_groups(state, subject.recording.definitions(), &mut grouping);
    let mut by_name: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    groups.iter().for_each(|one| by_name.entry(one.name.trim()).or_default().push(one.bytes));
    let entries = legend(page, "allocations");
    for (name, bytes) in entries.iter().filter(|(name, _)| name != "all others") {
        let known = by_name.get(name.as_str()).unwrap_or_else(|| panic!("{context}: {name} holds nothing"));
        assert!(known.iter().any(|one| is_size(bytes, *one)), "{context}: {name} has {bytes}, not {known:?}");
    }
    let (sum, active) = (entries.iter().map(|(_, bytes)| size(bytes)).sum::<f64>(), state.counters().active);
    assert!((sum - active as f64).abs() <= sum * 0.006, "{context}: {active} bytes, {entries:?}");
}

/// Checks the text on the page at random moments of a recording.
fn check_texts(page: Page<'_>, fixture: &Fixture, moments: usize, seed: u64) {
    let subject = Subject::new(fixture);
    page.open_file(&fixture.file_name(), &fixture.bytes());
    let mut random = Rng::with_seed(seed);
    let end = subject.recording.end_event();
    for device in subject.devices() {
        show_device(page, device);
        for index in 0..moments {
            let moment = random.u64(0..=end);
            let state = subject.state(device, moment);
            let context = format!("{}, device {}, moment {moment}", subject.name, device.0);
            page.seek(moment);
            check_header(page, &subject, &state, moment, &context);
            show(page, "sites");
            let by = [GroupBy::Line, GroupBy::Category, GroupBy::Module, GroupBy::Stream][index % 4];
            check_sites(page, &subject, (device, &state), by, &format!("{context}, by {}", by.name()));
            check_device(page, &subject, &state, &context);
            show(page, "list");
            check_list(page, &subject, device, moment, &context);
            show(page, "allocations");
            check_legend(page, &subject, &state, &context);
        }
    }
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn text_on_the_page_equals_trace() {
    let view = Program::start(["view".as_ref(), Fixture::small("tiny_inference").path.as_os_str()]);
    let browser = Browser::start(Window::default());
    let page = Page::open(&browser, view.url());
    let moments = count_of(4, 50);
    for (seed, name) in (0..).zip(["mlp_train", "streams", "ring", "two_devices"]) {
        check_texts(page, &Fixture::small(name), moments, seed);
    }
    if is_full() {
        for (seed, name) in (10..).zip(["gpt_varlen", "resnet50_train", "oom_frag", "two_gpus"]) {
            let Some(fixture) = Fixture::large(name) else { return };
            check_texts(page, &fixture, moments, seed);
        }
    }
    eprintln!("the text on the page equals trace at {moments} moments of each recording");
}
