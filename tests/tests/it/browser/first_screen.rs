//! What a user sees first: the verdict, linked elements, two dropped files, and a program that is
//! killed.

use std::fs;
use std::time::Instant;

use serde_json::json;
use vramscope_tests::fixtures::workspace_root;
use vramscope_tests::{Browser, ColorScheme, Page, Program, Window};

/// The window of a common notebook.
const WINDOW: Window = Window { width: 1440, height: 900, scale: 1, colors: ColorScheme::Light };

/// Opens a recording of the tour, and waits until it was analyzed.
fn open<'b>(browser: &'b Browser, name: &str) -> (Program, Page<'b>) {
    let path = workspace_root().join("tests/data/tour").join(name).with_extension("vram");
    let view = Program::start(["view".as_ref(), path.as_os_str()]);
    let page = Page::open(browser, view.url());
    page.wait_until("the recording is open", |state| state.events > 0);
    page.run("return window.vramscope.rows('verdict').then(() => true)");
    (view, page)
}

/// Returns the text of the first element that a CSS selector matches.
fn text(page: &Page<'_>, selector: &str) -> String {
    let script = format!("return document.querySelector({})?.textContent ?? ''", json!(selector));
    page.run(&script).as_str().expect("a text").to_owned()
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn verdict_remedy_and_evidence_are_one_click_away() {
    let browser = Browser::start(WINDOW);
    let (_view, page) = open(&browser, "gpt_varlen");
    page.wait("the verdict is shown", "return document.querySelector('.verdict-line.found') !== null");
    assert!(text(&page, "#verdict .said .summary").contains("wasted"));
    for (sign, value) in [("unused now", "7.85 GiB reserved"), ("growing", "no"), ("failed", "no"), ("step", "of 30")] {
        let script = "return [...document.querySelectorAll('.moment-figures li')].map(item => item.textContent)";
        let signs: Vec<String> = page.json(script);
        let line = signs.iter().find(|line| line.starts_with(sign)).expect("a sign");
        assert!(line.contains(value), "{line}");
    }
    assert_eq!(
        page.run("return document.querySelector('#verdict button.copy').title"),
        json!("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
    );
    page.run(
        "[...document.querySelectorAll('#verdict button')].find(one => one.innerText === 'Where to look').click()",
    );
    page.wait(
        "the evidence is beside the map",
        "return document.querySelector('#pane-right').dataset.view === 'fragmentation'",
    );
    page.wait("its memory is lit", "return document.querySelector('.parts [aria-pressed=true]') !== null");
    assert_eq!(text(&page, ".parts [aria-pressed=true]"), "whole free segments");
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn element_under_the_pointer_lights_its_memory_everywhere() {
    let browser = Browser::start(WINDOW);
    let (_view, page) = open(&browser, "gpt_varlen");
    page.wait("the timeline is stacked", "return document.querySelector('.stack-legend [data-light]') !== null");
    page.wait(
        "the holders are listed",
        "return document.querySelector('.parts [data-light^=\"group line\"]') !== null",
    );
    let picture = || page.run("return document.getElementById('picture-left').toDataURL()");
    let plain = picture();
    let point = |selector: &str| {
        let script = format!(
            "document.querySelector({}).dispatchEvent(new PointerEvent('pointerover', {{ bubbles: true }}));",
            json!(selector)
        );
        page.run(&script);
    };
    let is_lit = "return [...document.querySelectorAll('.lit')].map(one => one.dataset.light)";
    point(".parts [data-light='category activation']");
    page.wait("the bar, both legends are lit", "return document.querySelectorAll('.lit').length === 3");
    assert_eq!(page.run(is_lit), json!(vec!["category activation"; 3]));
    page.wait_until("the map is drawn", |_| picture() != plain);
    let lit = picture();
    point("#details h2");
    page.wait("the light goes out", "return document.querySelectorAll('.lit').length === 0");
    page.wait_until("the map is drawn again", |_| picture() != lit);
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn line_numbers_never_break() {
    let browser = Browser::start(WINDOW);
    let (_view, page) = open(&browser, "oom_frag");
    page.wait("the holders are listed", "return document.querySelector('.parts .name-end') !== null");
    let broken =
        "return [...document.querySelectorAll('.name-end')].filter(one => one.getClientRects().length > 1).length";
    assert_eq!(page.run(broken), json!(0));
    // The recording opens at the failure that the verdict is about, with what was in its way.
    assert!(text(&page, "#content-left").contains("failed here"), "{}", text(&page, "#content-left"));
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn two_dropped_files_are_compared() {
    let browser = Browser::start(WINDOW);
    let (_view, page) = open(&browser, "mlp_train");
    let file = fs::read(workspace_root().join("tests/data/tour/ring.vram")).expect("the repository contains the file");
    let file = json!(file.into_iter().map(char::from).collect::<String>());
    let script = "
        const bytes = Uint8Array.from(arguments[0], letter => letter.charCodeAt(0));
        const files = [0, 1].map(index => new File([bytes], `run${index}.vram`));
        const dataTransfer = new DataTransfer();
        files.forEach(file => dataTransfer.items.add(file));
        const init = { dataTransfer, bubbles: true, cancelable: true, composed: true };
        document.body.dispatchEvent(new DragEvent('drop', init));
        return true;";
    let _: bool = page.json_of(script, &[file]);
    page.wait("the files are compared", "return document.querySelector('[data-view=compare]') !== null");
    page.wait("the first file is open", "return window.vramscope.state().source === 'run0.vram'");
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn page_says_that_a_program_is_gone() {
    let browser = Browser::start(WINDOW);
    let demo = Program::start(["demo", "--device", "host"]);
    let page = Page::open(&browser, demo.url());
    page.wait_until("events arrive", |state| state.live && state.events > 1000);
    drop(demo);
    let killed = Instant::now();
    page.wait("the page says so", "return document.querySelector('#verdict .ended') !== null");
    println!("shown {:.1} s after the kill", killed.elapsed().as_secs_f64());
    let text = text(&page, "#verdict .ended");
    assert!(text.contains("was killed") && text.contains("events are kept") && text.contains("Save"), "{text}");
}
