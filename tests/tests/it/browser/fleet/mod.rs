//! The fleet page, with a made-up run.

mod simulated;

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vramscope_tests::{Browser, ColorScheme, Window};

use super::accessibility::{CHECK, axe_script};
use simulated::{Fault, SimulatedFleet, identity};

/// Longest wait for the page, on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(120);
const ENTER: char = '\u{e007}';
const RIGHT: char = '\u{e014}';
const END: char = '\u{e010}';

/// The fleet page in a browser.
struct FleetPage<'b>(&'b Browser);

impl<'b> FleetPage<'b> {
    fn open(browser: &'b Browser, fleet: &SimulatedFleet) -> Self {
        browser.open(&fleet.url());
        let page = Self(browser);
        page.wait_for_page();
        page
    }

    /// Waits until the page has started.
    #[track_caller]
    fn wait_for_page(&self) {
        let deadline = Instant::now() + TIMEOUT;
        let script = "return window.vramscopeFleet?.ready.then(() => true) ?? false";
        while self.0.run(script, &[]) != json!(true) {
            assert!(Instant::now() < deadline, "waited {TIMEOUT:?} for the page");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn state(&self) -> Value {
        self.0.run("return window.vramscopeFleet.state()", &[])
    }

    /// Waits until a JavaScript expression is true; `state` is the page's state.
    #[track_caller]
    fn wait(&self, expression: &str) {
        let deadline = Instant::now() + TIMEOUT;
        let script = format!("const state = window.vramscopeFleet?.state?.(); return Boolean({expression})");
        while self.0.run(&script, &[]) != json!(true) {
            assert!(Instant::now() < deadline, "waited {TIMEOUT:?} for {expression}: {}", self.state());
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn focus_cells(&self) {
        self.0.run("document.getElementById('grid').focus()", &[]);
    }
}

fn window() -> Window {
    Window { width: 1440, height: 900, scale: 1, colors: ColorScheme::Light }
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn planted_outlier_is_marked_and_listed_first() {
    let fleet = SimulatedFleet::start(1024, "pp=4,dp=32,tp=8");
    let browser = Browser::start(window());
    let page = FleetPage::open(&browser, &fleet);
    page.wait("state.ranks === 1024 && state.ticks > 40");
    assert_eq!(page.state()["outliers"], json!([]));
    let start = Instant::now();
    fleet.set_fault(700, Fault::Extra(6000));
    page.wait("state.outliers.length > 0");
    // The page needs 0.3 s by its definition, and 0.1 s for each of the two servers' ticks.
    println!("marked after {:?}", start.elapsed());
    fleet.set_fault(3, Fault::Extra(3000));
    page.wait("state.outliers.length === 2 && state.outliers[0].rank === 700");
    let listed = browser.run("return document.querySelector('#marked-list button').textContent", &[]);
    assert_eq!(listed, json!("700"));
    page.wait("state.ticks > 80");
    let state = page.state();
    println!("frames: {} ms, drawing: {} ms", state["frame_ms_p95"], state["draw_ms_p95"]);
    assert_eq!((&state["connected"], &state["lost_summaries"]), (&json!(true), &json!(0)));
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn faults_are_marked_and_ended_ranks_are_not() {
    let fleet = SimulatedFleet::start(64, "pp=4,dp=2,tp=8");
    let browser = Browser::start(window());
    let page = FleetPage::open(&browser, &fleet);
    page.wait("state.ranks === 64 && state.ticks > 10");
    for (rank, fault) in [(5, Fault::Leak(300)), (20, Fault::Stuck), (37, Fault::Silent), (50, Fault::Ended)] {
        fleet.set_fault(rank, fault);
    }
    let has = |rank: u32, metric: &str| {
        page.wait(&format!("state.outliers.some(one => one.rank === {rank} && one.metric === '{metric}')"));
    };
    has(5, "Growth");
    has(20, "StepsBehind");
    // A rank that sends nothing also stays in its step, which soon is further from the others'.
    page.wait("state.outliers.some(one => one.rank === 37)");
    page.wait("document.getElementById('counters').textContent.includes('64 (1 ended)')");
    page.wait("state.outliers.length === 3");
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn ranks_are_selected_and_opened_by_keyboard() {
    let fleet = SimulatedFleet::start(64, "pp=4,dp=2,tp=8");
    fleet.set_fault(40, Fault::Extra(6000));
    let browser = Browser::start(window());
    let page = FleetPage::open(&browser, &fleet);
    page.wait("state.outliers.length === 1");
    page.focus_cells();
    for (key, rank) in [(RIGHT, 0), (RIGHT, 1), (END, 63), ('n', 40)] {
        browser.press(key);
        page.wait(&format!("state.selected === {rank}"));
    }
    page.wait("document.getElementById('announcement').textContent.startsWith('rank 40 on node005')");
    // The events are started and stopped without leaving the page.
    browser.press('e');
    page.wait("document.getElementById('events').textContent === 'Stop its events'");
    assert_eq!(fleet.opened(), [identity(40).0]);
    browser.press('e');
    let deadline = Instant::now() + TIMEOUT;
    while !fleet.opened().is_empty() {
        assert!(Instant::now() < deadline, "the events are stopped");
        thread::sleep(Duration::from_millis(20));
    }
    browser.press(ENTER);
    page.wait("location.pathname === '/' && location.hash.includes('device=40')");
    assert_eq!(fleet.opened(), [identity(40).0]);
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn click_on_a_cell_opens_the_rank() {
    let fleet = SimulatedFleet::start(8, "tp=8");
    let browser = Browser::start(window());
    let page = FleetPage::open(&browser, &fleet);
    page.wait("state.ranks === 8 && state.ticks > 3");
    // One host: the cells begin below its title, eight pixels from the edge.
    let click = "
        const grid = document.getElementById('grid');
        const { left, top } = grid.getBoundingClientRect();
        const at = { clientX: left + 8 + 64 * 2.5, clientY: top + 8 + 19 + 20, bubbles: true };
        grid.dispatchEvent(new PointerEvent('pointermove', at));
        grid.dispatchEvent(new MouseEvent('click', at));
        return true";
    browser.run(click, &[]);
    page.wait("location.pathname === '/' && location.hash.includes('device=2')");
    // A button of the main page leads back.
    page.wait("document.getElementById('fleet')?.hidden === false");
    browser.click("//*[@id='fleet']");
    page.wait("location.pathname === '/fleet/'");
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn page_reconnects_and_keeps_its_choices() {
    let mut fleet = SimulatedFleet::start(64, "pp=4,dp=2,tp=8");
    let browser = Browser::start(window());
    let page = FleetPage::open(&browser, &fleet);
    page.wait("state.ranks === 64");
    let choose = "
        for (const [id, value] of [['color', 'lag'], ['group', 'host'], ['sort', 'value']]) {
            const list = document.getElementById(id);
            list.value = value;
            list.dispatchEvent(new Event('change'));
        }
        return location.hash";
    assert_eq!(browser.run(choose, &[]), json!("#color=lag&group=host&sort=value"));
    fleet.restart_server();
    page.wait("!state.connected || state.ticks > 0");
    page.wait("state.connected && state.ranks === 64");
    let ticks = page.state()["ticks"].as_u64().expect("a number");
    page.wait(&format!("state.ticks > {ticks} + 3"));
    browser.run("location.reload()", &[]);
    page.wait_for_page();
    page.wait("state.ranks === 64");
    let chosen = browser.run("return ['color', 'group', 'sort'].map(id => document.getElementById(id).value)", &[]);
    assert_eq!(chosen, json!(["lag", "host", "value"]));
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn fleet_page_follows_rules_of_accessibility() {
    let Some(axe) = axe_script() else { return };
    let fleet = SimulatedFleet::start(64, "pp=4,dp=2,tp=8");
    fleet.set_fault(40, Fault::Extra(6000));
    for colors in [ColorScheme::Light, ColorScheme::Dark] {
        let browser = Browser::start(Window { colors, ..window() });
        let page = FleetPage::open(&browser, &fleet);
        page.wait("state.outliers.length === 1");
        page.focus_cells();
        browser.press('n');
        page.wait("state.selected === 40");
        browser.run(&axe, &[]);
        assert_eq!(browser.run(CHECK, &[]), json!([]), "{colors:?}");
    }
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn nothing_leaves_the_window_at_any_size() {
    let fleet = SimulatedFleet::start(1024, "pp=4,dp=32,tp=8");
    fleet.set_fault(40, Fault::Extra(6000));
    let browser = Browser::start(window());
    for (width, height) in [(1920, 1080), (1280, 720), (1024, 768), (768, 1024), (420, 860)] {
        browser.emulate(Window { width, height, ..window() });
        let page = FleetPage::open(&browser, &fleet);
        page.wait("state.outliers.length === 1 && document.querySelector('#marked-list button')");
        let misplaced = "
            const parts = 'header *, .choices *, main, #grid, aside > *, aside h2, aside button, aside dd, .differ th';
            const isOutside = element => {
                const { left, right, width } = element.getBoundingClientRect();
                return width > 0 && (left < -1 || right > innerWidth + 1);
            };
            const sections = [...document.querySelectorAll('aside section')];
            const box = element => element.getBoundingClientRect();
            const overlap = sections.some((one, index) => sections[index + 1]?.getClientRects().length > 0
                && box(one.lastElementChild).bottom > box(sections[index + 1]).top + 1);
            const name = element => `${element.tagName} ${element.id} ${element.className}`;
            return [...document.querySelectorAll(parts)].filter(isOutside).map(name)
                .concat(overlap ? ['sections overlap'] : []);";
        assert_eq!(browser.run(misplaced, &[]), json!([]), "at {width} by {height}");
    }
}
