//! The page while a program runs, for a moment each; the program `live` measures it at full length.
//!
//! These tests need Chromium, chromedriver and a program with the page embedded, so they are ignored unless asked for; `cargo xtask test` sets
//! all of that up and asks for them.

use std::time::Duration;

use vramscope_tests::Browser;
use vramscope_tests::live::page::{self, Plan};

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn the_page_lacks_no_event_while_somebody_types() {
    let plan = Plan { rate: 300_000, time: Duration::from_secs(3) };
    let figures = page::follow(&Browser::start(page::window()), plan, true).expect("no event is lost");
    println!("{figures}");
    assert!(figures.pressed > 0 && figures.rate > 0.9 * plan.rate as f64, "{figures}");
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn an_event_is_soon_on_the_screen() {
    let plan = Plan { rate: 100_000, time: Duration::from_secs(3) };
    let figures = page::follow(&Browser::start(page::window()), plan, false).expect("no event is lost");
    println!("{figures}");
    // Ten times what it should be on a machine that does nothing else.
    assert!((0.0..1000.0).contains(&figures.latency.at(0.95)), "{figures}");
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn the_page_shows_what_the_pool_holds() {
    println!("{}", page::moments(&Browser::start(page::window()), 100_000, 10, 1).expect("the same everywhere"));
}
