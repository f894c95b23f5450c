//! The page while a program runs, briefly; the program `live` measures it at full length.

use std::time::Duration;

use serde_json::{Value, json};
use vramscope_tests::live::demo::demo;
use vramscope_tests::live::page::{self, Plan};
use vramscope_tests::{Browser, Page, Program};

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn page_misses_no_event_while_keys_are_pressed() {
    let plan = Plan { rate: 300_000, time: Duration::from_secs(3) };
    let figures = page::follow(&Browser::start(page::window()), plan, true).expect("no event is lost");
    println!("{figures}");
    assert!(figures.pressed > 0, "{figures}");
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn every_event_is_shown() {
    let plan = Plan { rate: 100_000, time: Duration::from_secs(3) };
    let figures = page::follow(&Browser::start(page::window()), plan, false).expect("no event is lost");
    println!("{figures}");
    assert!(figures.latency.at(0.95) >= 0.0, "events are shown before they happen: {figures}");
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn page_native_viewer_and_pool_agree() {
    println!("{}", page::moments(&Browser::start(page::window()), 100_000, 10, 1).expect("all three agree"));
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn demo_is_seen_while_it_runs() {
    let figures = demo(&Browser::start(page::window()), Duration::from_secs(2)).expect("the recordings are complete");
    println!("{figures}");
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn growth_is_announced_once_and_saved_before_memory_is_full() {
    // The recording must still grow by an eighth when the first growth has been found.
    let arguments = ["demo", "--device", "host", "--technique", "keep-outputs", "--steps", "800"];
    let demo = Program::start(arguments);
    let browser = Browser::start(page::window());
    let page = Page::open(&browser, demo.url());
    // The page itself switches saving on as soon as the list is shown: a problem that is found
    // before is not saved.
    page.run(
        "window.saved = [];
         document.addEventListener('click', event => {
             if (!event.target.download) return;
             event.preventDefault();
             window.saved.push(event.target.download);
         });
         const switchOn = () => {
             const button = document.querySelector('[data-command=save-findings]');
             if (button) button.click(); else requestAnimationFrame(switchOn);
         };
         switchOn();",
    );
    page.wait("growth is found", "return document.querySelector('.findings li') !== null");
    page.wait("the recording is saved", "return window.saved.length > 0");
    let all = "return [await window.vramscope.rows('findings'), window.saved.length]";
    let first: Value = page.json(all);
    let growth = first[0].as_array().and_then(|found| found.iter().find(|one| one["steps_left"].is_u64()));
    let growth = growth.expect("growth with a forecast");
    assert!(growth["id"].as_str().is_some_and(|id| id.starts_with("growth.")), "{growth}");
    // Analyses of the longer recording find the same problem.
    let event = growth["events"][1].as_u64().expect("an event");
    let later: Value = page.json_of(
        "const [event] = arguments;
         let found = [];
         while (!found.some(one => one.events[1] > event)) {
             await new Promise(done => setTimeout(done, 200));
             found = await window.vramscope.rows('findings');
         }
         return [found, window.saved.length];",
        &[json!(event)],
    );
    assert!(later[1].as_u64() >= Some(1), "{later}");
    let named = |rows: &Value| rows.as_array().expect("rows").iter().map(|one| one["id"].clone()).collect::<Vec<_>>();
    assert_eq!(named(&first[0])[0], named(&later[0])[0]);
    let ids = named(&later[0]);
    assert_eq!(ids.iter().filter(|id| **id == growth["id"]).count(), 1, "{ids:?}");
}
