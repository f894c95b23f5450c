//! Computations over the whole recording that the page makes in a worker: other allocator settings,
//! findings, and excerpts.

use std::fs;

use serde_json::{Value, json};
use vramscope_tests::fixtures::Fixture;
use vramscope_tests::{Browser, Page, Program, Window, vramscope};
use vramscope_trace::Recording;

/// Chooses a value of a setting in the view "What if", waits for the run, and returns its rows, the
/// milliseconds until the figures were on the page, and the frames that the page drew until then.
const CHOOSE: &str = "
    const [key, value] = arguments;
    const began = performance.now();
    const menu = document.querySelector(`[data-command='what-if ${key}']`);
    menu.value = value;
    menu.dispatchEvent(new Event('change', { bubbles: true }));
    let frames = 0;
    while (!document.querySelector('[data-view=whatif] tbody tr:nth-child(2)')?.textContent.includes(key)) {
        await new Promise(requestAnimationFrame);
        frames += 1;
    }
    return [await window.vramscope.rows('whatif'), performance.now() - began, frames];";

/// Opens a fixture with the view "What if" and waits until the requests are read.
fn open<'b>(browser: &'b Browser, view: &Program) -> Page<'b> {
    let page = Page::open(browser, view.url());
    page.run("return window.vramscope.show('whatif')");
    page.run("return window.vramscope.rows('whatif')");
    page
}

/// Returns the figures of a device that `vramscope simulate` prints.
fn simulated(fixture: &Fixture, conf: &str) -> Value {
    let output = vramscope().args(["simulate", "--alloc-conf", conf, "--json"]).arg(&fixture.path).output();
    let output = output.expect("vramscope starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    answer["devices"][0].clone()
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn setting_on_the_page_has_the_figures_of_the_command() {
    let fixture = Fixture::small("cudnn_benchmark_all");
    let view = Program::start(["view".as_ref(), fixture.path.as_os_str()]);
    let browser = Browser::start(Window::default());
    let page = open(&browser, &view);
    let answer: Value = page.json_of(CHOOSE, &[json!("expandable_segments"), json!("True")]);
    let rows = &answer[0];
    let conf = rows[1]["alloc_conf"].as_str().expect("settings");
    assert!(conf.ends_with(",expandable_segments:True"), "the other recorded settings are kept: {conf}");
    let expected = simulated(&fixture, conf);
    for name in ["peak_allocated_bytes", "peak_reserved_bytes", "ooms", "retries", "device_allocations"] {
        assert_eq!(rows[0][name], expected["recorded"][name], "recorded {name}");
        assert_eq!(rows[1][name], expected["simulated"][name], "simulated {name}");
    }
    // A copied link shows the same run.
    let fragment = page.run("return location.hash");
    browser.open("about:blank");
    let link = format!("{}{}", view.url(), fragment.as_str().expect("a fragment"));
    let page = Page::open(&browser, &link);
    assert_eq!(page.run("return window.vramscope.rows('whatif')"), *rows);
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn findings_are_listed_and_one_click_shows_them() {
    let fixture = Fixture::small("cudnn_benchmark_all");
    let view = Program::start(["view".as_ref(), fixture.path.as_os_str()]);
    let browser = Browser::start(Window::default());
    let page = Page::open(&browser, view.url());
    let findings = page.run("return window.vramscope.rows('findings')");
    let output = vramscope().args(["diagnose", "--json"]).arg(&fixture.path).output().expect("vramscope starts");
    let expected: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(findings, expected["findings"], "the page finds what the command finds");
    page.wait("the list is beside the panes", "return document.querySelectorAll('.findings li').length > 0");
    // The hints for new users stay at the bottom, above the end of the details.
    browser.click("//*[@id='hints-close']");
    browser.click("(//*[@class='findings']//li//button)[1]");
    page.wait("its view is shown", "return document.querySelector('[data-view=failures]') !== null");
    let event = &findings[0]["events"][1];
    page.wait_until("its moment is shown", |state| Some(state.event) == event.as_u64());
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn selected_range_is_saved_by_the_worker() {
    let view = Program::start(["view".as_ref(), Fixture::small("mlp_train").path.as_os_str()]);
    let browser = Browser::start(Window::default());
    let page = Page::open(&browser, view.url());
    page.run("return window.vramscope.select(100, 300)");
    let saved: Value = page.json(
        // The page's policy does not let scripts fetch a blob's URL.
        "const saved = new Promise(done => {
             const create = URL.createObjectURL.bind(URL);
             URL.createObjectURL = blob => { window.savedBlob = blob; return create(blob); };
             document.addEventListener('click', event => {
                 if (!event.target.download) return;
                 event.preventDefault();
                 done(event.target.download);
             });
         });
         document.querySelector('[data-command=save-range]').click();
         const name = await saved;
         return [name, [...new Uint8Array(await window.savedBlob.arrayBuffer())]];",
    );
    assert_eq!(saved[0], "mlp_train events 100-300.vram");
    let bytes: Vec<u8> = serde_json::from_value(saved[1].clone()).expect("bytes");
    let mut recording = Recording::new();
    recording.push(&bytes).expect("a valid recording");
    assert_eq!((recording.first_event(), recording.end_event()), (100, 300));
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn page_draws_while_a_setting_on_big_is_computed() {
    let Some(fixture) = Fixture::large("big") else { return };
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let path = folder.path().join("big.vram");
    let imported = vramscope().arg("import").arg(&fixture.path).arg("-o").arg(&path).output();
    assert!(imported.expect("vramscope starts").status.success());
    assert!(fs::metadata(&path).expect("the file was written").len() > 1 << 20);
    let view = Program::start(["view".as_ref(), path.as_os_str()]);
    let browser = Browser::start(Window::default());
    let page = open(&browser, &view);
    page.run(
        "window.longTasks = [0];
         new PerformanceObserver(list => list.getEntries().forEach(entry => window.longTasks.push(entry.duration)))
             .observe({ type: 'longtask' });",
    );
    let answer: Value = page.json_of(CHOOSE, &[json!("expandable_segments"), json!("True")]);
    let (time_s, rows) = (answer[1].as_f64().expect("a time") / 1000.0, &answer[0]);
    assert_eq!(
        rows[1]["peak_reserved_bytes"],
        simulated(&fixture, "expandable_segments:True")["simulated"]["peak_reserved_bytes"]
    );
    let longest_ms: f64 = page.json("return Math.max(...window.longTasks)");
    println!("a setting on big: {time_s:.2} s, longest task of the page {longest_ms:.0} ms");
    // A page that computed it itself would draw once, with the figures.
    assert!(answer[2].as_u64() > Some(2), "{} frames", answer[2]);
}
