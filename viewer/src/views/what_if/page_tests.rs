//! Computations over the whole recording: the page's session with an analyzer that answers at once,
//! as a worker does in a browser.

use serde_json::Value;
use vramscope_analyzer::{Analyzer, Observer, Request};
use vramscope_trace::{DeviceId, Recording};
use vramscope_viewer::app::{PageFacts, Session, SessionReport};
use vramscope_viewer::jobs::Job;
use vramscope_viewer::link::Link;
use vramscope_viewer::open::RecordingLoader;
use vramscope_viewer::protocol::{FrameRequest, PageUpdate, Screen, Surface};
use vramscope_viewer::ui::plain_text;

use crate::testing::{command, load_fixture, open, view_pictures};

/// Collects the simulated recording.
#[derive(Default)]
struct Simulated(RecordingLoader);

impl Observer for Simulated {
    fn part(&mut self, bytes: Vec<u8>) {
        self.0.push(&bytes);
    }

    fn progress(&mut self, share: f64, _: &str) {
        assert!((0.0..=1.0).contains(&share), "{share}");
    }
}

/// A session on a recording of `tests/data`, and the analyzer of the same recording.
pub(crate) struct Page {
    pub(crate) session: Session,
    analyzer: Analyzer,
    /// The jobs that were made.
    jobs: Vec<Job>,
}

impl Page {
    pub(crate) fn open(name: &str) -> Self {
        let mut session = open(name);
        session.show("whatif").expect("the view exists");
        Self { session, analyzer: Analyzer::new(load_fixture(name).recording), jobs: Vec::new() }
    }

    /// Runs commands, makes the jobs that the session wants, and returns the last frame.
    pub(crate) fn run(&mut self, commands: &[&str]) -> PageUpdate {
        let actions = commands.iter().map(command).collect();
        let screen = Some(Screen { sizes: [(900, 160), (900, 500), (900, 500)], scale: 1.0, is_dark: false });
        let mut report = SessionReport::default();
        let request = FrameRequest { actions, screen, ..FrameRequest::default() };
        let first = self.session.frame(&request, &PageFacts::default(), &mut report);
        assert_eq!(report.messages, Vec::<String>::new());
        while let Some(job) = self.session.wanted_job() {
            self.session.job_started(Some(job.clone()));
            self.make(job);
        }
        self.session.resend();
        let last = self.session.frame(&FrameRequest::default(), &PageFacts::default(), &mut report);
        PageUpdate { details: last.details.or(first.details), ..last }
    }

    /// Makes a job.
    fn make(&mut self, job: Job) {
        let request: Request = serde_json::from_str(&job.request()).expect("the analyzer knows the request");
        let mut simulated = Simulated::default();
        let answer = self.analyzer.answer(&request, &mut simulated).map_err(|error| error.to_string());
        let run = job.simulates().then(|| simulated.0.finish().ok()).flatten().map(|file| file.recording);
        let events = self.session.model.recording().end_event();
        self.jobs.push(job.clone());
        self.session.job_finished(job, events, answer, run);
        assert!(self.jobs.len() < 20, "{:?}", self.jobs);
    }

    fn rows(&mut self, view: &str) -> Vec<Value> {
        serde_json::from_str(&self.session.rows(view, "").expect("rows")).expect("a list of objects")
    }

    pub(crate) fn simulated(&self) -> Option<&Recording> {
        self.session.model.comparison.run()
    }
}

#[test]
fn a_setting_shows_a_second_run_with_its_figures() {
    let mut page = Page::open("cudnn_benchmark_all.pickle.gz");
    page.run(&["pane 0 device", "pane 1 whatif"]);
    assert!(page.simulated().is_none());
    let recorded = page.rows("whatif");
    assert_eq!((recorded.len(), &recorded[0]["ooms"]), (1, &Value::from(5)));
    let frame = page.run(&["filter whatif expandable_segments:True"]);
    let run = page.simulated().expect("a simulated run");
    assert_eq!(run.info().alloc_conf, "expandable_segments:True");
    let peak = run.series(DeviceId(0)).expect("a series").peak_reserved().bytes;
    let rows = page.rows("whatif");
    assert_eq!((rows.len(), rows[1]["peak_reserved_bytes"].as_u64()), (2, Some(peak)));
    assert_eq!(rows[1]["alloc_conf"], "expandable_segments:True");
    assert!(frame.link.ends_with("panes=device,whatif;find:expandable_segments:True"), "{}", frame.link);
    assert!(frame.pictures.iter().any(|(surface, ..)| *surface == Surface::Right), "both curves and maps");
    let bar = plain_text(&frame.timeline_bar.expect("a bar"));
    assert!(bar.contains("what if: reserved, up to"), "{bar}");
    // The other settings are kept, and the link restores the run.
    page.run(&["what-if max_split_size_mb 64", "what-if capacity 5GiB"]);
    let rows = page.rows("whatif");
    assert_eq!(rows[1]["alloc_conf"], "expandable_segments:True,max_split_size_mb:64");
    assert_eq!(rows[1]["ooms"], 0, "more memory");
    let link = page.session.link().fragment();
    let mut other = Page::open("cudnn_benchmark_all.pickle.gz");
    other.session.go_to_link(&Link::parse(&link)).expect("the link is valid");
    other.run(&[]);
    assert_eq!(other.rows("whatif"), rows);
}

#[test]
fn a_failed_request_fits_or_fails_in_the_run() {
    let mut page = Page::open("cudnn_benchmark_all.pickle.gz");
    let text = |frame: PageUpdate| {
        let pane = frame.panes.into_iter().flatten().find(|pane| pane.view == "whatif").expect("the view");
        plain_text(&pane.content)
    };
    let fails = |text: &str| text.contains("that fails at this moment");
    page.run(&["pane 0 device", "pane 1 whatif"]);
    let less = text(page.run(&["filter whatif expandable_segments:True", "what-if capacity 300MiB"]));
    assert!(less.contains("that fails at this moment fails in the run, too."), "{less}");
    let fits = text(page.run(&["what-if capacity 5GiB"]));
    assert!(fits.contains("that fails at this moment fits in the run."), "{fits}");
    let failure = page.session.model.state().event();
    let other = text(page.run(&[&format!("seek {}", failure - 1)]));
    assert!(fails(&fits) && !fails(&other), "{other}");
}

#[test]
fn all_settings_are_ranked_and_each_is_shown_by_a_click() {
    let mut page = Page::open("cudnn_benchmark_all.pickle.gz");
    let frame = page.run(&["what-if all"]);
    assert!(matches!(page.jobs[..], [Job::WhatIf { conf: None, .. }, Job::Advice { .. }, Job::Findings]));
    let rows = page.rows("whatif");
    let reserved = |row: &Value| (row["ooms"].as_u64(), row["peak_reserved_bytes"].as_u64());
    // The simplest settings close to the best come first.
    assert!(rows.len() > 5 && rows[2..].is_sorted_by_key(reserved), "{rows:?}");
    let content = frame.panes.iter().flatten().find(|pane| pane.view == "whatif").expect("the view");
    let text = plain_text(&content.content);
    assert!(text.contains("Best: "), "{text}");
    let has_keys = |row: &&Value| row["alloc_conf"].as_str().is_some_and(|conf| conf.contains(':'));
    let best = rows[1..].iter().find(has_keys).expect("settings");
    let frame = page.run(&[&format!("filter whatif {}", best["alloc_conf"].as_str().expect("a text"))]);
    let content = frame.panes.iter().flatten().find(|pane| pane.view == "whatif").expect("the view");
    let text = plain_text(&content.content);
    assert!(["saves ", "avoids ", " more"].iter().any(|part| text.contains(part)), "{text}");
    let run = page.simulated().expect("a simulated run");
    assert_eq!(run.series(DeviceId(0)).map(|series| series.peak_reserved().bytes), reserved(best).1);
}

#[test]
fn invalid_settings_are_explained_and_empty_values_remove_settings() {
    let mut page = Page::open("ring.pickle.zst");
    let content = |frame: PageUpdate| {
        let pane = frame.panes.into_iter().flatten().find(|pane| pane.view == "whatif").expect("the view");
        plain_text(&pane.content)
    };
    let text = content(page.run(&["filter whatif max_split_size:3"]));
    assert!(text.contains("did you mean max_split_size_mb?") && page.simulated().is_none(), "{text}");
    let text = content(page.run(&["filter whatif garbage_collection_threshold:0.5"]));
    assert!(page.simulated().is_some() || text.contains("set a capacity"), "{text}");
    page.run(&["filter whatif expandable_segments:True"]);
    assert!(page.simulated().is_some());
    page.run(&["filter whatif "]);
    assert!(page.simulated().is_none());
}

#[test]
fn simulated_run_has_the_times_of_the_recording() {
    let mut page = Page::open("ring.pickle.zst");
    page.run(&["what-if expandable_segments True"]);
    let (recorded, run) = (page.session.model.recording(), page.simulated().expect("a run"));
    assert!(run.start_ns() >= recorded.start_ns() && run.end_ns() <= recorded.end_ns());
    let mut simulated = Simulated::default();
    let request = r#"{ "kind": "what_if", "device": 0, "alloc_conf": "", "capacity_bytes": null }"#;
    let request: Request = serde_json::from_str(request).expect("a request");
    page.analyzer.answer(&request, &mut simulated).expect("an answer");
    assert!(simulated.0.finish().expect("a recording").warning.is_none());
}

#[test]
fn findings_are_one_click_from_their_view_and_moment() {
    let mut page = Page::open("cudnn_benchmark_all.pickle.gz");
    page.run(&["pane 0 device"]);
    let findings = page.rows("findings");
    assert_eq!(findings[0]["severity"], "critical");
    let section = page.session.jobs().findings.list.clone();
    assert_eq!(findings, section);
    let event = findings[0]["events"][1].as_u64().expect("an event");
    let frame = page.run(&["finding 0"]);
    assert_eq!(page.session.model.state().event(), event);
    assert!(frame.link.contains("panes=device,failures"), "{}", frame.link);
    let details = frame.details.expect("a details panel");
    let text = vramscope_viewer::ui::Element::new(vramscope_viewer::ui::Tag::Div);
    let text = vramscope_viewer::ui::Element { children: details, ..text }.text_content();
    assert!(text.contains("Findings (") && text.contains("critical severity"), "{text}");
    // The list is no part of the details that are copied.
    let mut report = SessionReport::default();
    copy_details(&mut page.session, &mut report);
    assert!(!report.clipboard.expect("a text").contains("Findings"));
}

/// Copies the details as text.
fn copy_details(session: &mut Session, report: &mut SessionReport) {
    session.act(&[command("copy-details")], 0.0, report);
}

#[test]
fn simulated_run_looks_as_before() {
    let mut page = Page::open("cudnn_benchmark_all.pickle.gz");
    page.run(&["filter whatif expandable_segments:True"]);
    assert!(page.simulated().is_some());
    view_pictures::check(
        &mut page.session,
        &[command("pane 0 whatif")],
        Surface::Left,
        "views/what_if",
        "simulated_run",
    );
}
