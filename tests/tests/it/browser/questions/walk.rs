//! A user's walk from a question to its answer: the actions, and the text that is then visible.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use vramscope_tests::fixtures::{tour_recording, workspace_root};
use vramscope_tests::{Browser, ColorScheme, Page, Program, Window};

/// The most actions that a question may need.
const MAX_ACTIONS: usize = 5;
/// Names the folder for screenshots of the answers.
const PICTURES_VARIABLE: &str = "VRAMSCOPE_TOUR";
/// Longest wait for an answer, on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Size of the page in the screenshots.
const WINDOW: Window = Window { width: 1400, height: 960, scale: 1, colors: ColorScheme::Light };
/// WebDriver's code of the Enter key.
const ENTER: char = '\u{e007}';

/// Returns the lines of text that are visible: rows of tables with a tab between their cells,
/// paragraphs, headings and items of lists. Text that is scrolled out of sight or covered is not.
const VISIBLE_LINES: &str = "
    const isVisible = element => {
        const box = element.getBoundingClientRect();
        if (box.width === 0 || box.height === 0) return false;
        const top = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
        return top !== null && element.contains(top);
    };
    const text = element => element.innerText.replace(/\\s+/g, ' ').trim();
    const lines = [];
    document.querySelectorAll('tr, dl > div, p, li, h2, h3, .summary').forEach(element => {
        const parts = [...element.querySelectorAll(':scope > td, :scope > th, :scope > dt, :scope > dd')];
        const shown = (parts.length > 0 ? parts : [element]).filter(isVisible);
        if (shown.length > 0) lines.push(shown.map(text).join('\\t'));
    });
    document.querySelectorAll('dl > dt').forEach(term => {
        const value = term.nextElementSibling;
        if (isVisible(term) && value && isVisible(value)) lines.push(text(term) + '\\t' + text(value));
    });
    return lines.join('\\n');";

/// A walk on a page that has just opened recordings.
pub(super) struct Walk {
    browser: Browser,
    // Ends after the browser.
    _view: Program,
    actions: usize,
}

impl Walk {
    /// Starts `vramscope view` on recordings of the tour and opens its page.
    pub(super) fn start(names: &[&str]) -> Self {
        let paths = names.iter().map(|name| tour_recording(name).into_os_string());
        let view = Program::start(["view".into()].into_iter().chain(paths));
        let browser = Browser::start(WINDOW);
        let page = Page::open(&browser, view.url());
        match names {
            [_] => drop(page.wait_until("the recording is open", |state| state.events > 0)),
            _ => page.wait("the list of recordings is shown", "return document.querySelector('#served-list li')"),
        }
        Self { browser, _view: view, actions: 0 }
    }

    /// Starts `vramscope demo --gallery` and opens its page, which shows the gallery.
    pub(super) fn start_in_gallery() -> Self {
        let demo = Program::start(["demo", "--gallery"]);
        let browser = Browser::start(WINDOW);
        let page = Page::open(&browser, demo.url());
        page.wait("the gallery is shown", "return document.querySelector('#gallery-list a')");
        Self { browser, _view: demo, actions: 0 }
    }

    /// Counts an action that has been done, and waits until the page has drawn its result.
    fn count_action(&mut self) {
        self.actions += 1;
        assert!(self.actions <= MAX_ACTIONS, "the answer needs more than {MAX_ACTIONS} actions");
        self.settle();
    }

    /// Waits until the page has drawn the present state. An action may have opened another page,
    /// which is not ready yet.
    fn settle(&self) {
        self.browser.run("return window.vramscope?.show?.('').then(() => true, () => true)", &[]);
    }

    /// Presses a key: one action.
    pub(super) fn press(mut self, key: char) -> Self {
        self.browser.press(key);
        self.count_action();
        self
    }

    /// Types a query into the field that has the focus, and presses Enter: one action.
    pub(super) fn type_query(mut self, query: &str) -> Self {
        query.chars().chain([ENTER]).for_each(|key| self.browser.press(key));
        self.count_action();
        self
    }

    /// Clicks a button or link with this text, or the row of a table that begins with it: one
    /// action.
    pub(super) fn click(mut self, text: &str) -> Self {
        let xpath = format!(
            "//button[normalize-space()='{text}'] | //a[normalize-space()='{text}'] | \
             //tr/td[1][starts-with(normalize-space(), '{text}')]"
        );
        self.wait_for(&xpath);
        self.browser.click(&xpath);
        self.count_action();
        self
    }

    /// Clicks the recording with this title in the gallery: one action.
    pub(super) fn click_card(mut self, title: &str) -> Self {
        let xpath = format!("//*[@id='gallery-list']//a[b[normalize-space()='{title}']]");
        self.wait_for(&xpath);
        self.browser.click(&xpath);
        self.wait_for("//*[@id='guide' and not(@hidden)]");
        self.count_action();
        self
    }

    /// Opens the menu with this label in a pane, and chooses a value: two actions.
    pub(super) fn choose(mut self, label: &str, value: &str) -> Self {
        // A browser's menu is no part of the page; WebDriver clicks on both at once.
        let xpath = format!("//*[@id='panes']//select[@aria-label='{label}']/option[@value='{value}']");
        self.wait_for(&xpath);
        self.browser.click(&xpath);
        self.actions += 1;
        self.count_action();
        self
    }

    /// Waits until an XPath expression selects an element.
    fn wait_for(&self, xpath: &str) {
        let deadline = Instant::now() + TIMEOUT;
        let script = "return document.evaluate(arguments[0], document, null, 9).singleNodeValue !== null";
        while self.browser.run(script, &[xpath.into()]) != true {
            assert!(Instant::now() < deadline, "the page has no element {xpath}; it shows:\n{}", self.visible_lines());
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns the visible text, line by line.
    fn visible_lines(&self) -> String {
        self.browser.run(VISIBLE_LINES, &[]).as_str().unwrap_or_default().to_owned()
    }

    /// Waits until every part of a text is visible.
    #[track_caller]
    pub(super) fn wait_for_text(self, name: &str, text: &[String]) -> Self {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let shown = self.visible_lines();
            // A part may be the beginning of a line or a sentence in it.
            let missing: Vec<&String> = text.iter().filter(|part| !shown.contains(part.as_str())).collect();
            if missing.is_empty() {
                return self;
            }
            assert!(Instant::now() < deadline, "{name}: {missing:#?} is not visible; the page shows:\n{shown}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Writes a picture of the page if `VRAMSCOPE_TOUR` names a folder.
    pub(super) fn picture(self, name: &str) -> Self {
        if let Some(folder) = env::var_os(PICTURES_VARIABLE) {
            // The pointer and the focus are no part of the answer.
            self.browser.run("document.activeElement?.blur()", &[]);
            self.settle();
            let path = PathBuf::from(folder).join(format!("{name}.png"));
            fs::write(&path, self.browser.screenshot())
                .unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
        }
        self
    }

    /// Waits until every part of the answer is visible. Checks the number of actions in
    /// `docs/tour.md` under the picture `name`, and writes that picture if `VRAMSCOPE_TOUR` names a
    /// folder.
    #[track_caller]
    pub(super) fn expect(self, name: &str, answer: &[String]) {
        let walk = self.wait_for_text(name, answer).picture(name);
        assert_eq!(documented_actions(name), walk.actions, "docs/tour.md: actions of {name}");
    }
}

/// Returns the number of actions that `docs/tour.md` lists in the section with a picture.
fn documented_actions(name: &str) -> usize {
    let path = workspace_root().join("docs").join("tour.md");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let section = text.split("\n## ").find(|section| section.contains(&format!("images/tour/{name}.png")));
    let section = section.unwrap_or_else(|| panic!("{} has no picture {name}", path.display()));
    let number = |line: &str| line.split_once(". ")?.0.parse::<usize>().ok();
    // A sentence may begin a line with a number, too.
    section.lines().filter_map(number).zip(1..).take_while(|(number, expected)| number == expected).count()
}
