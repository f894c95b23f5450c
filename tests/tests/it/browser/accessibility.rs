//! The page for users of screen readers and of the keyboard alone.

use std::env;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use vramscope_tests::fixtures::tour_recording;
use vramscope_tests::{Browser, ColorScheme, Page, Program, Window};
use vramscope_viewer::key_bindings::{ListedCommand, all};

/// Environment variable with the path of axe-core's script, which `cargo xtask test` downloads.
const AXE_VARIABLE: &str = "VRAMSCOPE_AXE";

/// Returns the violations that axe-core finds on the page: its rule, and the elements.
pub(super) const CHECK: &str = "
    return axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) =>
        violations.map(({ id, nodes }) =>
            `${id}: ${nodes.slice(0, 3).map(node => node.html.slice(0, 200)).join(' | ')}`));";

/// Returns axe-core's script; `None`, and says so, if it was not downloaded.
pub(super) fn axe_script() -> Option<String> {
    let Some(axe) = env::var_os(AXE_VARIABLE) else {
        println!("SKIPPED: {AXE_VARIABLE} is not set; `cargo xtask test` downloads axe-core");
        return None;
    };
    Some(fs::read_to_string(axe).expect("axe-core's script is readable"))
}

/// Opens recordings of the tour with a server for them.
fn open<'b>(browser: &'b Browser, name: &str) -> (Program, Page<'b>) {
    let view = Program::start(["view".as_ref(), tour_recording(name).as_os_str()]);
    let page = Page::open(browser, view.url());
    page.wait_until("the recording is open", |state| state.events > 0);
    (view, page)
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn no_view_violates_rules_of_accessibility() {
    let Some(axe) = axe_script() else { return };
    let mut found = Vec::new();
    for colors in [ColorScheme::Light, ColorScheme::Dark] {
        let browser = Browser::start(Window { width: 1400, height: 900, scale: 1, colors });
        let (_view, page) = open(&browser, "oom_frag");
        let mut check = |what: &str| {
            let violations = browser.run(CHECK, &[]);
            let violations = violations.as_array().expect("a list of violations");
            found.extend(violations.iter().map(|violation| format!("{colors:?}, {what}: {violation}")));
        };
        browser.run(&axe, &[]);
        let views: Vec<String> = page.json("return window.vramscope.views()");
        assert!(views.len() >= 16, "{views:?}");
        for view in &views {
            browser.run("return window.vramscope.show(arguments[0]).then(() => true)", &[json!(view)]);
            check(view);
        }
        // With a selected block, and with the dialogs.
        browser.press(']');
        page.wait_until("a block is selected", |state| !state.view["selection"].is_null());
        check("details of a block");
        for (key, dialog) in [('?', "help"), (':', "command-list")] {
            browser.press(key);
            page.wait("the dialog is open", &format!("return document.getElementById('{dialog}').open"));
            check(dialog);
            browser.press('\u{e00c}');
        }
    }
    assert!(found.is_empty(), "{} violations:\n{}", found.len(), found.join("\n"));
}

/// Returns a checksum of everything that a user sees on the page. A message of an earlier action
/// does not count.
const FINGERPRINT: &str = "
    await new Promise(resolve => setTimeout(resolve, 50));
    await window.vramscope.show('');
    const pictures = [...document.querySelectorAll('canvas')].map(canvas => canvas.toDataURL());
    const dialogs = [...document.querySelectorAll('dialog')].filter(dialog => dialog.open).map(dialog => dialog.id);
    const app = document.querySelector('.app');
    const { source, event, view } = window.vramscope.state();
    const chosen = [...document.querySelectorAll('select, input')].map(element => element.value);
    const text = JSON.stringify([
        app.innerText, app.getAttribute('style'), document.documentElement.dataset, pictures, dialogs, source, event,
        view, chosen, document.activeElement.id, window.chosenFiles, window.savedFiles,
    ]);
    const hash = await crypto.subtle.digest('SHA-1', new TextEncoder().encode(text));
    return [...new Uint8Array(hash)].map(byte => byte.toString(16).padStart(2, '0')).join('');";
/// Counts the dialogs for choosing a file, which headless browsers do not show, and the saved
/// files.
const COUNT_FILES: &str = "
    window.chosenFiles = 0;
    window.savedFiles = 0;
    HTMLInputElement.prototype.click = () => window.chosenFiles++;
    window.showOpenFilePicker = () => { window.chosenFiles++; return new Promise(() => {}); };
    HTMLAnchorElement.prototype.click = () => window.savedFiles++;
    document.getElementById('timeline').focus();
    document.activeElement.blur();
    return true;";
/// A moment, zoom and selection at which almost every command changes something.
const VIEW: &str = "event=500&panes=device,allocations&range=100-900";
/// Longest wait for the effect of a command, on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Commands that do nothing visible for a complete recording of one GPU.
const WITHOUT_EFFECT: [(&str, &str); 4] = [
    ("find-problems", "a small recording is looked through when it is opened"),
    ("follow", "only a live recording is followed"),
    ("mark-now", "only a running program is marked"),
    ("reveal", "no list is scrolled away from the moment"),
];
/// Commands to run before a command, so that it changes something.
const BEFORE: [(&str, &str); 12] = [
    ("zoom-out", "w"),
    ("reduce", "W"),
    ("view allocations", "3"),
    ("pan-left", "w"),
    ("pan-right", "w"),
    ("fit", "w"),
    ("fit-all", "w"),
    ("fit-picture", "W"),
    ("redo", "cz"),
    ("undo", "c"),
    ("view device", "|"),
    ("escape", "?"),
];

/// Types the title of a command into the list of commands and runs it.
fn run_by_list(browser: &Browser, page: Page<'_>, command: &ListedCommand) {
    browser.press(':');
    page.wait("the list of commands is open", "return document.getElementById('command-list').open");
    browser.type_keys(command.title);
    let selected = "return document.querySelector('#commands [aria-selected=true]')?.dataset.command ?? ''";
    for _ in 0..20 {
        if page.run(selected) == json!(command.name) {
            browser.press('\u{e007}');
            return;
        }
        browser.press('\u{e015}');
    }
    panic!("{:?} does not select {}", command.title, command.name);
}

/// Returns WebDriver's character for a key without a modifier; `None` for others.
fn character(key: &str) -> Option<char> {
    let named = [
        ("ArrowLeft", '\u{e012}'),
        ("ArrowUp", '\u{e013}'),
        ("ArrowRight", '\u{e014}'),
        ("ArrowDown", '\u{e015}'),
        ("PageUp", '\u{e00e}'),
        ("PageDown", '\u{e00f}'),
        ("Home", '\u{e011}'),
        ("End", '\u{e010}'),
        ("Escape", '\u{e00c}'),
    ];
    let mut characters = key.chars();
    match (characters.next(), characters.next()) {
        (Some(character), None) => Some(character),
        _ => named.iter().find(|(name, _)| *name == key).map(|&(_, character)| character),
    }
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn every_command_works_by_keyboard_alone() {
    let browser = Browser::start(Window { width: 1400, height: 900, scale: 1, colors: ColorScheme::Light });
    let (_view, page) = open(&browser, "oom_frag");
    let url = page.run("return location.href");
    let url = url.as_str().and_then(|url| url.split('#').next()).expect("an address");
    let mut without_effect = Vec::new();
    for (number, command) in all().iter().enumerate() {
        // Another query, or the browser would only change the fragment.
        let page = Page::open(&browser, &format!("{url}&run={number}#{VIEW}"));
        page.wait_until("the recording is open", |state| state.event == 500);
        page.run(COUNT_FILES);
        let before = BEFORE.iter().find(|(name, _)| *name == command.name).map_or("", |(_, keys)| keys);
        browser.type_keys(before);
        let before: String = page.json(FINGERPRINT);
        match command.keys.iter().find_map(|key| character(key)) {
            Some(key) => browser.press(key),
            None => run_by_list(&browser, page, command),
        }
        let has_effect = !WITHOUT_EFFECT.iter().any(|(name, _)| *name == command.name);
        // Saving a picture takes the browser a while.
        let deadline = Instant::now() + TIMEOUT;
        let mut after: String;
        loop {
            // Going back leads to the page of the command before, which loads anew.
            thread::sleep(Duration::from_millis(100));
            page.wait("the page is ready", "return window.vramscope?.show && window.vramscope.state().events > 0");
            after = page.json(FINGERPRINT);
            if after != before || !has_effect || Instant::now() > deadline {
                break;
            }
        }
        let message = page.run("return document.getElementById('message-text').textContent");
        let message = message.as_str().unwrap_or_default();
        assert!(!message.contains("vramscope stopped"), "{}: {message}", command.name);
        if before == after && has_effect {
            without_effect.push(command.name.clone());
        }
    }
    assert!(without_effect.is_empty(), "no visible effect: {without_effect:?}");
}

/// Presses the key for the search and types a text at once, before the page can react.
const TYPE_SEARCH: &str = "
    for (const key of '/cross') window.dispatchEvent(new KeyboardEvent('keydown', { key, cancelable: true }));
    return true;";

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn text_after_the_search_key_is_no_command() {
    let browser = Browser::start(Window { width: 1400, height: 900, scale: 1, colors: ColorScheme::Light });
    let (_view, page) = open(&browser, "mlp_train");
    // Neither pane has a search field then.
    page.run("return window.vramscope.show('about').then(() => true)");
    let before = page.run("return window.vramscope.state().event");
    page.run(TYPE_SEARCH);
    page.wait("the search field has the text", "return document.activeElement.value === 'cross'");
    assert_eq!(page.run("return window.vramscope.state().event"), before, "no letter is a command");
    let summary = "return document.querySelector('.pane .summary')?.textContent.includes('cross') ?? false";
    page.wait("the list has what was searched", summary);
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn help_lists_every_command_from_its_start() {
    let browser = Browser::start(Window { width: 1400, height: 900, scale: 1, colors: ColorScheme::Light });
    let (_view, page) = open(&browser, "mlp_train");
    browser.press('?');
    page.wait("the help is open", "return document.getElementById('help').open");
    assert_eq!(page.run("return document.getElementById('help').scrollTop"), json!(0));
    let listed = page.run("return document.querySelectorAll('#help-keys dd').length");
    assert_eq!(listed, json!(all().len()));
}
