//! Random moments and ranges of every recording.

use fastrand::Rng;
use serde_json::Value;
use vramscope_tests::fixtures::{self, Fixture};
use vramscope_tests::snapshot_model::{Questions, ask};
use vramscope_tests::{Browser, Page, Program, Window};
use vramscope_trace::{DeviceId, EventKind};

use super::rows::{count_of, is_full, number, rows, show_device};
use super::subject::Subject;
use super::{moments, ranges, tables};

/// Recordings in `tests/data` whose block sizes follow from the snapshot alone.
const RECORDINGS: [&str; 22] = [
    "tiny_inference",
    "mlp_train",
    "frag_a_expandable",
    "ring",
    "graphs",
    "streams",
    "mempool",
    "mempool_expandable",
    "nested_pools",
    "two_pools_expandable",
    "alloc_stacks",
    "annotated",
    "compiled_graphs",
    "cudnn_benchmark_all",
    "late",
    "ring_graphs_expandable",
    "ring_small",
    "ring_threads",
    "second_device",
    "state_only",
    "stopped",
    "two_devices",
];
/// Most events in a range whose events and allocations are compared one by one.
const MAX_RANGE: u64 = 3_000;
/// Moments and ranges of each recording in a full run.
const MANY: usize = 200;
/// Those of `big`, of which the model takes minutes.
const MANY_OF_BIG: usize = 20;

/// Checks `count` random moments and ranges of a recording on the page. Returns their number.
fn check_recording(page: Page<'_>, fixture: &Fixture, count: usize, seed: u64) -> usize {
    let subject = Subject::new(fixture);
    page.open_file(&fixture.file_name(), &fixture.bytes());
    let mut random = Rng::with_seed(seed);
    let (first, end) = (subject.recording.first_event(), subject.recording.end_event());
    let devices: Vec<DeviceId> = subject.devices();
    let mut questions = Questions::default();
    for index in 0..count {
        let device = devices[index % devices.len()].0;
        questions.moments.push((device, random.u64(first..=end)));
        let from = random.u64(first..=end);
        questions.ranges.push((device, from, end.min(from + random.u64(0..=MAX_RANGE)), random.u64(1..40)));
        questions.addresses.extend(subject.random_address(DeviceId(device), &mut random).map(|one| (device, one)));
    }
    // The failures are checked at their own moments.
    let failures = subject.failures();
    questions.moments.extend(failures.iter().map(|(event, failed)| (failed.device.0, *event)));
    let answers = ask(&subject.pickle, &questions);
    assert_eq!(answers.events, end, "{}: number of events", subject.name);

    let checked = questions.moments.len() - failures.len();
    for device in devices {
        show_device(page, device);
        for (&(_, moment), answer) in
            questions.moments[..checked].iter().zip(&answers.moments).filter(|((of, _), _)| *of == device.0)
        {
            moments::check(page, &subject, device, moment, answer);
            tables::check(page, &subject, device, moment);
        }
        for (&(_, from, to, within), answer) in
            questions.ranges.iter().zip(&answers.ranges).filter(|((of, ..), _)| *of == device.0)
        {
            ranges::check(page, &subject, device, (from, to, within), answer);
        }
        for (&(_, at), uses) in
            questions.addresses.iter().zip(&answers.addresses).filter(|((of, _), _)| *of == device.0)
        {
            ranges::check_address(page, &subject, at, uses);
        }
        ranges::check_steps(page, &subject, device);
        let peak = answers.peaks[usize::from(device.0)];
        ranges::check_peak(page, &subject, device, peak);
    }
    let found = &rows(page, &[("ooms", Value::Null)])[0];
    assert_eq!(found.len(), failures.len(), "{}: failures", subject.name);
    for ((row, (event, failed)), answer) in found.iter().zip(&failures).zip(&answers.moments[checked..]) {
        let EventKind::OutOfMemory { requested, .. } = failed.kind else { unreachable!("only failures are listed") };
        let shown = ["event", "device", "requested_bytes", "allocated_bytes", "reserved_bytes"];
        let expected = [*event, u64::from(failed.device.0), requested, answer.allocated_bytes, answer.reserved_bytes];
        assert_eq!(shown.map(|field| number(row, field)), expected.map(Some), "{}: {row}", subject.name);
    }
    eprintln!("{}: {count} moments and ranges agree", subject.name);
    count
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn numbers_of_small_recordings_equal_trace_and_the_model() {
    let view = Program::start(["view".as_ref(), Fixture::small("tiny_inference").path.as_os_str()]);
    let browser = Browser::start(Window::default());
    let page = Page::open(&browser, view.url());
    let mut checked = 0;
    for (seed, name) in (0..).zip(RECORDINGS) {
        checked += check_recording(page, &Fixture::small(name), count_of(4, MANY), seed);
    }
    eprintln!("{checked} moments and ranges of {} recordings agree", RECORDINGS.len());
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn numbers_of_large_recordings_equal_trace_and_the_model() {
    let view = Program::start(["view".as_ref(), Fixture::small("tiny_inference").path.as_os_str()]);
    let browser = Browser::start(Window::default());
    let page = Page::open(&browser, view.url());
    let mut checked = 0;
    for (seed, name) in (100..).zip(fixtures::LARGE) {
        let Some(fixture) = Fixture::large(name) else { return };
        checked += check_recording(page, &fixture, count_of(2, MANY), seed);
    }
    eprintln!("{checked} moments and ranges of {} recordings agree", fixtures::LARGE.len());
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn numbers_of_big_equal_trace_and_the_model_in_a_full_run() {
    if !is_full() {
        println!("SKIPPED: VRAMSCOPE_FULL is not set");
        return;
    }
    let view = Program::start(["view".as_ref(), Fixture::small("tiny_inference").path.as_os_str()]);
    let browser = Browser::start(Window::default());
    let page = Page::open(&browser, view.url());
    let Some(fixture) = Fixture::large("big") else { return };
    check_recording(page, &fixture, MANY_OF_BIG, 200);
}
