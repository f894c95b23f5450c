//! The page while a program runs, briefly; the program `live` measures it at full length.

use std::time::Duration;

use vramscope_tests::Browser;
use vramscope_tests::live::demo::demo;
use vramscope_tests::live::page::{self, Plan};

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn page_misses_no_event_while_keys_are_pressed() {
    let plan = Plan { rate: 300_000, time: Duration::from_secs(3) };
    let figures = page::follow(&Browser::start(page::window()), plan, true).expect("no event is lost");
    println!("{figures}");
    assert!(figures.pressed > 0 && figures.rate > 0.9 * plan.rate as f64, "{figures}");
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn event_is_shown_within_a_second() {
    let plan = Plan { rate: 100_000, time: Duration::from_secs(3) };
    let figures = page::follow(&Browser::start(page::window()), plan, false).expect("no event is lost");
    println!("{figures}");
    // Ten times the target for an idle machine.
    assert!((0.0..1000.0).contains(&figures.latency.at(0.95)), "{figures}");
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn page_native_viewer_and_pool_agree() {
    println!("{}", page::moments(&Browser::start(page::window()), 100_000, 10, 1).expect("all three agree"));
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn demo_is_seen_soon_after_its_start() {
    let figures = demo(&Browser::start(page::window()), Duration::from_secs(2)).expect("the recordings are complete");
    println!("{figures}");
    // Four times the target for an idle machine.
    assert!(figures.first_picture < 20.0, "{figures}");
}
