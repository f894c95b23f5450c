//! The page's layout at several sizes, and its keyboard input.

use serde_json::{Value, json};
use vramscope_tests::fixtures::Fixture;
use vramscope_tests::{Browser, ColorScheme, Page, Program, Window};

/// Returns the visible bars and panels that leave the window or overlap.
const MISPLACED: &str = "
    const seen = element => element.getClientRects().length > 0;
    const names = ['header.bar', '.timeline', '.panes', '.details', 'footer.bar'];
    const parts = names.map(name => document.querySelector(name));
    const box = element => element.getBoundingClientRect();
    const isBefore = (end, start) => end <= start + 1;
    const apart = (a, b) => isBefore(a.right, b.left) || isBefore(b.right, a.left)
        || isBefore(a.bottom, b.top) || isBefore(b.bottom, a.top);
    const found = [];
    const inside = element => box(element).left >= -1 && box(element).right <= innerWidth + 1;
    const named = element => element.id || element.className || element.textContent;
    // On a phone the panes lie side by side, and the user swipes to the second.
    const isSwipedTo = element => innerWidth < 600 && element.closest('#pane-right') !== null;
    const controls = '.bar button, .bar select, .bar input, .bar dd, .bar output, .legend li, .legend button'
        + ', .pane-controls select, .pane-controls button, .pane-controls input';
    document.querySelectorAll(controls).forEach(element => {
        if (seen(element) && !isSwipedTo(element) && !inside(element)) {
            found.push(`${named(element)} leaves the window`);
        }
    });
    parts.forEach((part, index) => {
        if (!inside(part)) found.push(`${named(part)} leaves the window`);
        parts.slice(index + 1).forEach(other => {
            if (!apart(box(part), box(other))) found.push(`${named(part)} overlaps ${named(other)}`);
        });
    });
    const map = box(document.getElementById('picture-left'));
    if (map.width < 150 || map.height < 60) found.push(`the map is ${map.width} by ${map.height}`);
    return found";

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn nothing_overlaps_or_leaves_the_window_at_any_size() {
    let view = Program::start(["view".as_ref(), Fixture::small("mlp_train").path.as_os_str()]);
    for (width, height) in [(1920, 1080), (1280, 720), (1024, 768), (768, 1024), (500, 844), (844, 390)] {
        let browser = Browser::start(Window { width, height, scale: 1, colors: ColorScheme::Dark });
        let page = Page::open(&browser, view.url());
        page.wait_until("the file is open", |state| state.events > 0);
        assert_eq!(page.run(MISPLACED), json!([]), "at {width} by {height}");
    }
}

/// Types into the field of the event number and returns its text afterwards.
fn typed(page: Page<'_>, browser: &Browser, text: &str, end: char) -> Value {
    page.run("const field = document.getElementById('event'); field.focus(); field.select(); return true");
    text.chars().chain([end]).for_each(|key| browser.press(key));
    page.run("return window.vramscope.show('').then(() => document.getElementById('event').value)")
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn event_field_accepts_only_numbers() {
    const ENTER: char = '\u{e007}';
    const ESCAPE: char = '\u{e00c}';
    let view = Program::start(["view".as_ref(), Fixture::small("mlp_train").path.as_os_str()]);
    let browser = Browser::start(Window::default());
    let page = Page::open(&browser, view.url());
    let end = page.wait_until("the file is open", |state| state.events > 0).events;
    let check = |text: &str, key: char, expected: u64| {
        let shown = typed(page, &browser, text, key);
        assert_eq!((shown, page.state().event), (json!(expected.to_string()), expected), "after {text:?}");
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
fn escape_leaves_the_filter_of_a_view() {
    const ESCAPE: char = '\u{e00c}';
    let view = Program::start(["view".as_ref(), Fixture::small("mlp_train").path.as_os_str()]);
    let browser = Browser::start(Window::default());
    let page = Page::open(&browser, view.url());
    page.wait_until("the file is open", |state| state.events > 0);
    browser.press('/');
    page.wait("a filter has the focus", "return document.activeElement.closest('.pane-controls')");
    browser.type_keys(">1MiB");
    let filter = page.run("return document.activeElement.value");
    browser.press(ESCAPE);
    page.wait("no field has the focus", "return document.activeElement === document.body");
    browser.press('1');
    page.wait_until("the key is a command", |state| state.view["panes"].to_string().contains("device"));
    assert_eq!(filter, json!(">1MiB"));
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn escape_closes_the_message_then_clears_the_selection() {
    const ESCAPE: char = '\u{e00c}';
    let view = Program::start(["view".as_ref(), Fixture::small("mlp_train").path.as_os_str()]);
    let browser = Browser::start(Window::default());
    let page = Page::open(&browser, view.url());
    page.wait_until("the file is open", |state| state.events > 0);
    browser.press(']');
    page.wait_until("a block is selected", |state| !state.view["selection"].is_null());
    page.drop_file("broken.vram", b"not a recording");
    page.wait("the error is shown", "return !document.getElementById('message').hidden");
    browser.press(ESCAPE);
    page.wait("the message is closed", "return document.getElementById('message').hidden");
    assert!(!page.state().view["selection"].is_null(), "the selection stays");
    browser.press(ESCAPE);
    page.wait_until("nothing is selected", |state| state.view["selection"].is_null());
}
