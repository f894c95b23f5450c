//! The page for a person: whether everything has its place at any size, and whether what is typed is taken for what it is.
//!
//! These tests need Chromium, chromedriver and a binary with the page embedded, so they are ignored unless asked for;
//! `cargo xtask test` sets all of that up and asks for them.

use serde_json::{Value, json};
use vramscope_tests::fixtures::Fixture;
use vramscope_tests::{Browser, ColorScheme, Page, Program, Window};

/// What of the bars and panels that can be seen reaches out of the window, or lies over another part.
const MISPLACED: &str = "
    const seen = element => element.getClientRects().length > 0;
    const parts = ['header.bar', '.timeline', '.map', '.details', 'footer.bar'].map(name => document.querySelector(name));
    const box = element => element.getBoundingClientRect();
    const apart = (a, b) => a.right <= b.left + 1 || b.right <= a.left + 1 || a.bottom <= b.top + 1 || b.bottom <= a.top + 1;
    const found = [];
    const inside = element => box(element).left >= -1 && box(element).right <= innerWidth + 1;
    const named = element => element.id || element.className || element.textContent;
    document.querySelectorAll('.bar button, .bar select, .bar input, .bar dd, .bar output, .legend li, .legend button').forEach(element => {
        if (seen(element) && !inside(element)) found.push(`${named(element)} reaches out of the window`);
    });
    parts.forEach((part, index) => {
        if (!inside(part)) found.push(`${named(part)} reaches out of the window`);
        parts.slice(index + 1).forEach(other => {
            if (!apart(box(part), box(other))) found.push(`${named(part)} lies over ${named(other)}`);
        });
    });
    const map = box(document.getElementById('heatmap'));
    if (map.width < 150 || map.height < 60) found.push(`the heatmap is ${map.width} by ${map.height}`);
    return found";

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn everything_has_its_place_at_any_size() {
    let view = Program::start(["view".as_ref(), Fixture::small("mlp_train").path.as_os_str()]);
    for (width, height) in [(1920, 1080), (1280, 720), (1024, 768), (768, 1024), (500, 844), (844, 390)] {
        let browser = Browser::start(Window { width, height, scale: 1, colors: ColorScheme::Dark });
        let page = Page::open(&browser, view.url());
        page.wait_until("the file is open", |state| state.events > 0);
        assert_eq!(page.run(MISPLACED), json!([]), "at {width} by {height}");
    }
}

/// Types into the field of the event's number; gives back what it says then.
fn typed(page: Page<'_>, browser: &Browser, text: &str, end: char) -> Value {
    page.run("const field = document.getElementById('event'); field.focus(); field.select(); return true");
    text.chars().chain([end]).for_each(|key| browser.press(key));
    page.run("return new Promise(requestAnimationFrame).then(() => document.getElementById('event').value)")
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn only_numbers_are_taken_for_numbers_of_events() {
    const ENTER: char = '\u{e007}';
    const ESCAPE: char = '\u{e00c}';
    let view = Program::start(["view".as_ref(), Fixture::small("mlp_train").path.as_os_str()]);
    let browser = Browser::start(Window::default());
    let page = Page::open(&browser, view.url());
    let end = page.wait_until("the file is open", |state| state.events > 0).events;
    let check = |text: &str, key: char, expected: u64| {
        let said = typed(page, &browser, text, key);
        assert_eq!((said, page.state().event), (json!(expected.to_string()), expected), "after {text:?}");
    };
    check("37", ENTER, 37);
    for nonsense in ["abc", "-5", "12.5", "1e3", "0x10"] {
        check(nonsense, ENTER, 37);
    }
    check("1,000", ENTER, 1000);
    check("55", ESCAPE, 1000);
    check("99999999999999999999999", ENTER, end);
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn escape_lets_go_of_one_thing_after_the_other() {
    const ESCAPE: char = '\u{e00c}';
    let view = Program::start(["view".as_ref(), Fixture::small("mlp_train").path.as_os_str()]);
    let browser = Browser::start(Window::default());
    let page = Page::open(&browser, view.url());
    page.wait_until("the file is open", |state| state.events > 0);
    page.drop_file("broken.vram", b"no recording");
    page.wait("it is said what is wrong", "return !document.getElementById('message').hidden");
    browser.press(']');
    page.wait_until("a block is selected", |state| !state.view["selection"].is_null());
    browser.press(ESCAPE);
    page.wait("the message is closed", "return document.getElementById('message').hidden");
    assert!(!page.state().view["selection"].is_null(), "the selection stays");
    browser.press(ESCAPE);
    page.wait_until("nothing is selected", |state| state.view["selection"].is_null());
}
