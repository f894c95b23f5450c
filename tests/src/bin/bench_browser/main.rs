//! Measures the page in headless Chromium: opening, seeking and scrubbing, on a snapshot and on a
//! recording of 4,000,000 events, which is also measured in wasm without a page.
//!
//! `--small` runs briefly on small recordings, to show that the benchmark still works; `--scale`
//! measures only recordings of many devices, blocks and events.
#![forbid(unsafe_code)]

mod large;
mod measure;
mod scripts;

use std::process::ExitCode;

use serde_json::json;
use vramscope_tests::fixtures::Fixture;
use vramscope_tests::{Browser, Page, Program};

use crate::measure::{Effort, FULL, SMALL, Target, WINDOW, navigate, row, times};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (small, scale_only) = match arguments[..] {
        [] => (false, false),
        ["--small"] => (true, false),
        ["--scale"] => (false, true),
        ref other => {
            eprintln!("unknown arguments {other:?}; usage: bench_browser [--small | --scale]");
            return ExitCode::from(2);
        }
    };
    let large = if small { None } else { Fixture::large("gpt_varlen") };
    let fixture = large.unwrap_or_else(|| Fixture::small("frag_a_expandable"));
    let other = Fixture::small("tiny_inference");

    let view = Program::start(["view".as_ref(), other.path.as_os_str()]);
    let browser = Browser::start(WINDOW);
    let page = Page::open(&browser, view.url());
    let effort = if small { SMALL } else { FULL };
    if !scale_only {
        snapshot(&browser, page, &fixture, &other, effort);
        large::measure(&browser, effort);
    }
    large::scale(&browser, effort);
    ExitCode::SUCCESS
}

fn snapshot(browser: &Browser, page: Page<'_>, fixture: &Fixture, other: &Fixture, effort: Effort) {
    page.keep_file(&fixture.file_name(), &fixture.bytes());
    let open = times(browser, scripts::OPEN, json!(effort.opens));
    let events = page.state().events;
    println!("{}, {events} events, 1600x900, headless Chromium\n", fixture.file_name());
    row("open(file) until usable", &open, effort.target(Target::Longest(1000.0)));
    page.open_file(&other.file_name(), &other.bytes());
    row("drop until usable", &times(browser, scripts::DROP, json!(events)), effort.target(Target::Longest(1000.0)));
    navigate(browser, effort, 1.0);
}
