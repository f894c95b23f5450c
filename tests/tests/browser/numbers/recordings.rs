//! Random moments and ranges of every recording.

use fastrand::Rng;
use serde_json::Value;
use vramscope_tests::fixtures::{self, Fixture};
use vramscope_tests::snapshot_model::{Questions, ask};
use vramscope_tests::{Browser, Page, Program, Window};
use vramscope_trace::{DeviceId, EventKind};

use super::rows::{count_of, number, rows, show_device};
use super::subject::Subject;
use super::{moments, ranges};

/// Recordings in `tests/data` whose block sizes follow from the snapshot alone.
const RECORDINGS: [&str; 18] = [
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
    "ring_threads",
    "second_device",
    "two_devices",
];
/// Most events in a range whose events and allocations are compared one by one.
const MAX_RANGE: u64 = 3_000;

/// Checks random moments and ranges of a recording on the page. Returns their number.
fn check_recording(page: Page<'_>, fixture: &Fixture, few: usize, seed: u64) -> usize {
    let count = count_of(few, 200);
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
        checked += check_recording(page, &Fixture::small(name), 4, seed);
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
        checked += check_recording(page, &fixture, 2, seed);
    }
    eprintln!("{checked} moments and ranges of {} recordings agree", fixtures::LARGE.len());
}
