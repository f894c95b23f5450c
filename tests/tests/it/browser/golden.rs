//! Golden pictures and texts: how every view looks and what it says, in both color schemes and at
//! four sizes. The short tier of tests looks at two sizes in light colors, the full tier at all.
//!
//! `tests/golden/page` has the pictures in a smaller size and few colors. They are compared by the
//! mean colors of blocks of 8 by 8 pixels of the page, so another version of the browser, or of its
//! fonts, may draw text slightly differently. The page's visible text, `NAME.txt` for a view, must
//! be exactly equal; it does not depend on the colors. After a failure, `target/golden` has what
//! the page looks like and where that differs. This writes new pictures and texts:
//!
//! ```sh
//! UPDATE_GOLDEN=1 cargo test -p vramscope-tests --test it -- --ignored golden::
//! ```
//!
//! Look at them before you commit them.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use vramscope_tests::fixtures::{tour_recording, workspace_root};
use vramscope_tests::{Browser, ColorScheme, Difference, Page, PageText, PageTexts, Picture, Program, Window};

/// A width and height of the page, and by which factor its pictures are smaller.
type Size = (u32, u32, usize);

/// A phone, a usual and a small window, and a large screen.
const SIZES: [Size; 4] = [(360, 740, 2), (1280, 800, 2), (800, 600, 2), (1920, 1080, 4)];
/// Number of sizes, from the first, that the short tier of tests looks at, in light colors.
const SHORT_SIZES: usize = 2;
/// Width and height of the blocks whose colors are compared, in pixels of the page.
const BLOCK: usize = 8;
/// Share of the blocks that may differ.
const MAX_SHARE: f64 = 0.006;
/// Most bytes of a picture, on average.
const MAX_MEAN_BYTES: u64 = 19_000;
/// Longest wait until the page looks as it should, on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Longest wait before a page that looks different is loaded again.
const FIRST_TIMEOUT: Duration = Duration::from_secs(2);
/// After this many failures, no page is loaded again.
const MAX_RELOADED_FAILURES: usize = 8;
/// Time between two pictures that are equal once nothing on the page changes.
const PAUSE: Duration = Duration::from_millis(60);

/// The recordings of the tour that the pictures show, as the page's server numbers them.
const RECORDINGS: [&str; 7] =
    ["gpt_varlen", "gpt_varlen_expandable", "resnet50_train", "leak_outputs", "oom_frag", "graphs", "ring"];
/// Each view with a recording that it has something to show of, and how it is shown: the fragment
/// of the page's URL.
const VIEWS: [(&str, &str, &str); 20] = [
    ("timeline", "gpt_varlen", ""),
    ("device", "oom_frag", "panes=device&event=700"),
    ("allocations", "resnet50_train", "panes=allocations"),
    ("sites", "gpt_varlen", "panes=sites;by:site"),
    ("table", "resnet50_train", "panes=table"),
    ("flame", "gpt_varlen", "panes=flame"),
    ("fragmentation", "gpt_varlen", "panes=fragmentation"),
    ("peak", "gpt_varlen", "panes=peak"),
    ("steps", "resnet50_train", "panes=steps"),
    ("leaks", "leak_outputs", "panes=leaks"),
    ("temporaries", "resnet50_train", "panes=temporaries"),
    ("lifetimes", "resnet50_train", "panes=lifetimes"),
    ("events", "oom_frag", "panes=events"),
    ("list", "ring", "panes=list"),
    ("address", "gpt_varlen", "panes=address;find:0x7f34c0ec0000"),
    ("failures", "oom_frag", "panes=failures"),
    ("segments", "graphs", "panes=segments"),
    ("compare", "gpt_varlen", "panes=compare"),
    ("whatif", "gpt_varlen", "panes=whatif;find:expandable_segments%3ATrue"),
    ("about", "ring", "panes=about"),
];

/// Stops animations and the blinking of the text cursor, and removes the focus.
const CALM: &str = "
    const style = document.createElement('style');
    style.textContent = '* { animation: none !important; transition: none !important; caret-color: transparent; }';
    document.head.append(style);
    document.activeElement?.blur();
    return document.fonts.ready.then(() => true);";
/// Waits until the page has read the whole recording, looked for problems in it, and drawn what it
/// shows.
const SETTLE: &str = "
    if (window.vramscope.state().events > 0) {
        await window.vramscope.rows('allocations', { limit: 1, mode: 'all' });
        await window.vramscope.rows('findings');
        if (document.querySelector('[data-view=whatif]')) await window.vramscope.rows('whatif');
    }
    for (let frame = 0; frame < 3; frame++) await window.vramscope.show('');
    return true;";

/// Starts a server of all recordings.
fn serve() -> Program {
    let paths = RECORDINGS.iter().map(|name| tour_recording(name).into_os_string());
    Program::start(["view".into()].into_iter().chain(paths))
}

/// Opens a view in the browser, and waits until it is shown.
fn open<'b>(browser: &'b Browser, view: &Program, name: &str, recording: &str, fragment: &str) -> Page<'b> {
    static LOADED: AtomicUsize = AtomicUsize::new(0);
    let file = |recording: &str| {
        let index = RECORDINGS.iter().position(|one| *one == recording).expect("a listed recording");
        format!("files/{index}/{recording}.vram")
    };
    let mut query = format!("trace={}", file(recording));
    if name == "compare" {
        query += &format!("&compare={}", file("gpt_varlen_expandable"));
    }
    // Another query, or the browser would only change the fragment.
    let url = view.url_of("/");
    let separator = if url.contains('?') { '&' } else { '?' };
    let number = LOADED.fetch_add(1, Ordering::Relaxed);
    let page = Page::open(browser, &format!("{url}{separator}{query}&picture={number}#{fragment}"));
    page.wait_until("the recording is open", |state| state.events > 0);
    if name == "compare" {
        page.wait("both recordings are compared", "return document.querySelector('[data-view=compare] table')");
    }
    page.run(CALM);
    page
}

/// Takes a picture of the page.
fn take(browser: &Browser, page: Page<'_>) -> Vec<u8> {
    let _: bool = page.json(SETTLE);
    browser.screenshot()
}

/// Returns a picture of the page once nothing on it changes.
fn settled(browser: &Browser, page: Page<'_>, factor: usize) -> Picture {
    let deadline = Instant::now() + TIMEOUT;
    let mut before = take(browser, page);
    loop {
        thread::sleep(PAUSE);
        let taken = take(browser, page);
        if before == taken || Instant::now() > deadline {
            return Picture::from_png(&taken).shrunk(factor);
        }
        before = taken;
    }
}

/// Returns the folder of the golden pictures.
fn folder() -> PathBuf {
    workspace_root().join("tests").join("golden").join("page")
}

/// Compares a picture with the golden one.
fn compare(golden: &Picture, actual: &Picture, factor: usize) -> Difference {
    golden.compare(actual, BLOCK / factor)
}

/// Returns the name of a size in files.
fn size_name((width, height, _): Size) -> String {
    format!("{width}x{height}")
}

/// Reads the golden text of a view; `None` if the file does not exist.
fn load_texts(name: &str) -> Option<PageTexts> {
    PageTexts::load(&text_path(name), &SIZES.map(size_name))
}

/// Returns the path of a view's golden text.
fn text_path(name: &str) -> PathBuf {
    folder().join(format!("{name}.txt"))
}

/// Writes the golden text of a view at one size.
fn save_text(name: &str, size: Size, text: PageText) {
    // Tests of the other color scheme write the same file.
    static FILES: Mutex<()> = Mutex::new(());
    let _lock = FILES.lock();
    let mut texts = load_texts(name).unwrap_or_else(|| PageTexts::equal(text.clone(), &SIZES.map(size_name)));
    texts.set(&size_name(size), text);
    texts.save(&text_path(name));
}

/// What the page looks like and says, and how that differs from the golden picture and text.
struct Look {
    picture: Picture,
    text: PageText,
    difference: Difference,
    text_difference: Option<String>,
}

impl Look {
    /// Returns true if the page looks like the golden picture and says the golden text.
    fn is_equal(&self) -> bool {
        self.difference.share() <= MAX_SHARE && self.text_difference.is_none()
    }
}

/// Looks at the page until it equals the golden picture and text, for something may still be
/// loading. Returns the last look.
fn look_until_equal(
    browser: &Browser,
    page: Page<'_>,
    golden: (&Picture, &PageText),
    factor: usize,
    timeout: Duration,
) -> Look {
    let deadline = Instant::now() + timeout;
    loop {
        let is_last = Instant::now() > deadline;
        let picture = Picture::from_png(&take(browser, page)).shrunk(factor);
        let text = PageText::of(page);
        let difference = compare(golden.0, &picture, factor);
        let text_difference = text.difference(golden.1);
        let look = Look { picture, text, difference, text_difference };
        if is_last || look.is_equal() {
            return look;
        }
    }
}

/// Checks the pictures of a color scheme and the texts at these sizes, or writes them if
/// `UPDATE_GOLDEN` is set.
///
/// Each view is loaded once and then resized. A page that looks different is loaded again.
fn check(colors: ColorScheme, sizes: &[Size]) {
    let view = serve();
    let browser = Browser::start(Window::default());
    let scheme = if colors == ColorScheme::Light { "light" } else { "dark" };
    let failed_folder = workspace_root().join("target").join("golden");
    let mut failures = Vec::new();
    let (begin, mut most, mut reloads) = (Instant::now(), 0.0_f64, 0);
    for (name, recording, fragment) in VIEWS {
        let mut loaded = None;
        let texts = load_texts(name);
        for &size in sizes {
            let (width, height, factor) = size;
            browser.emulate(Window { width, height, scale: 1, colors });
            let file = format!("{name}_{width}x{height}_{scheme}.png");
            let path = folder().join(&file);
            let load = || open(&browser, &view, name, recording, fragment);
            if env::var_os("UPDATE_GOLDEN").is_some() {
                let page = load();
                settled(&browser, page, factor).save(&path);
                save_text(name, size, PageText::of(page));
                continue;
            }
            let golden = Picture::load(&path);
            let golden = golden.unwrap_or_else(|| panic!("{} is missing; UPDATE_GOLDEN=1 writes it", path.display()));
            let texts = texts.as_ref().unwrap_or_else(|| panic!("{name}.txt is missing; UPDATE_GOLDEN=1 writes it"));
            let expected = (&golden, texts.at(&size_name(size)));
            let look_at = |page, timeout| look_until_equal(&browser, page, expected, factor, timeout);
            let mut look = look_at(*loaded.get_or_insert_with(load), FIRST_TIMEOUT);
            if !look.is_equal() && failures.len() < MAX_RELOADED_FAILURES {
                reloads += 1;
                look = look_at(*loaded.insert(load()), TIMEOUT);
            }
            let share = look.difference.share();
            if share > MAX_SHARE {
                look.picture.save(&failed_folder.join(&file));
                golden.marked(&look.difference).save(&failed_folder.join(format!("{file}.difference.png")));
                failures.push(format!("{file}: {:.2}% of the blocks differ", share * 100.0));
            }
            if let Some(difference) = look.text_difference {
                fs::create_dir_all(&failed_folder).expect("the folder can be created");
                let written = fs::write(failed_folder.join(format!("{file}.txt")), look.text.to_string());
                written.expect("the text can be written");
                failures.push(format!("{name}.txt at {width}x{height}, {scheme}: {difference}"));
            }
            most = most.max(share);
        }
    }
    let (count, time) = (sizes.len() * VIEWS.len(), begin.elapsed().as_secs_f64());
    eprintln!(
        "{count} pictures, {scheme}, in {time:.1} s; at most {:.2}% of the blocks differ; {reloads} pages loaded again",
        most * 100.0
    );
    assert!(failures.is_empty(), "{}; see {}:\n{}", failures.len(), failed_folder.display(), failures.join("\n"));
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn views_look_as_before_in_light_colors() {
    check(ColorScheme::Light, &SIZES[..SHORT_SIZES]);
}

/// Tests of the full tier.
mod full {
    use super::*;

    #[test]
    #[ignore = "needs Chromium; run by cargo xtask test --full"]
    fn views_look_as_before_in_light_colors_at_other_sizes() {
        check(ColorScheme::Light, &SIZES[SHORT_SIZES..]);
    }

    #[test]
    #[ignore = "needs Chromium; run by cargo xtask test --full"]
    fn views_look_as_before_in_dark_colors() {
        check(ColorScheme::Dark, &SIZES);
    }
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn pictures_show_that_a_part_of_the_page_is_missing_or_looks_different() {
    let view = serve();
    let browser = Browser::start(Window::default());
    for (width, height, factor) in [SIZES[0], SIZES[3]] {
        browser.emulate(Window { width, height, scale: 1, colors: ColorScheme::Light });
        let page = open(&browser, &view, "peak", "ring", "panes=device,peak");
        let views: Vec<String> = page.json("return window.vramscope.views()");
        assert_eq!(views, VIEWS.map(|(name, ..)| name), "every view has golden pictures");
        let before = settled(&browser, page, factor);
        check_small_elements(&browser, page);
        let share = || compare(&before, &settled(&browser, page, factor), factor).share();
        assert!(share() <= MAX_SHARE / 4.0, "nothing has changed");
        let with_style = |selector: &str, style: &str| {
            let script = "
                const [selector, style] = arguments;
                document.querySelectorAll(selector).forEach(element => {
                    element.styleBefore ??= element.style.cssText;
                    element.style.cssText = style ? `${element.styleBefore}; ${style}` : element.styleBefore;
                });
                return true";
            let set = |style: &str| browser.run(script, &[json!(selector), json!(style)]);
            set(style);
            let share = share();
            set("");
            println!("{width}x{height}, {selector} with {style}: {:.2}% of the blocks differ", share * 100.0);
            share
        };
        for style in ["text-rendering: geometricPrecision", "letter-spacing: 0.02px"] {
            assert!(with_style(".app *", style) <= MAX_SHARE, "text may be drawn slightly differently: {style}");
        }
        for (selector, style) in [
            (".timeline canvas", "visibility: hidden"),
            ("#details", "visibility: hidden"),
            ("header.bar", "visibility: hidden"),
            (".app", "filter: hue-rotate(90deg)"),
        ] {
            assert!(with_style(selector, style) > MAX_SHARE, "{selector} with {style} is found");
        }
    }
}

/// Checks that the page's text shows that a small element is missing: a label of 8 by 8 pixels, a
/// button, one word, a swatch.
fn check_small_elements(browser: &Browser, page: Page<'_>) {
    // Each adds something, or removes it and returns how to bring it back.
    let run = |script: &str| browser.run(script, &[]);
    run("
        const label = document.createElement('span');
        label.id = 'planted';
        label.textContent = '8';
        label.style.cssText = 'position: fixed; left: 0; top: 0; width: 8px; height: 8px; font: 8px/8px sans-serif';
        document.body.append(label);
        return true");
    let before = PageText::of(page);
    assert_eq!(PageText::of(page), before, "nothing has changed");
    let mut missed = Vec::new();
    let hidden = [
        ("a label of 8 x 8 pixels", "#planted", 8.5),
        ("a button", "#fit", 100.0),
        ("a swatch", ".legend .swatch", 20.0),
    ];
    for (what, selector, most_pixels) in hidden {
        let style = |style: &str| {
            let script = "
                const [selector, style] = arguments;
                const element = document.querySelector(selector);
                element.style.visibility = style;
                return element.getBoundingClientRect().width";
            browser.run(script, &[json!(selector), json!(style)])
        };
        let width = style("hidden").as_f64().unwrap_or_default();
        assert!(width > 0.0 && width <= most_pixels, "{what}, {selector}, is {width} pixels wide");
        missed.extend((PageText::of(page) == before).then_some(what));
        style("");
    }
    let word = |script: &str| {
        let find = "
            const texts = document.createTreeWalker(document.querySelector('#details'), NodeFilter.SHOW_TEXT);
            let text = texts.nextNode();
            while (text && !text.data.trim().includes(' ')) text = texts.nextNode();
        ";
        run(&format!("{find} {script}; return true"))
    };
    word("window.plantedText = [text, text.data]; text.data = text.data.trim().replace(/ [^ ]+$/, '')");
    missed.extend((PageText::of(page) == before).then_some("a word"));
    run("const [text, data] = window.plantedText; text.data = data; return true");
    assert_eq!(missed, [""; 0], "the text shows that they are missing");
    assert_eq!(PageText::of(page).difference(&before), None, "everything is back");
    run("document.querySelector('#planted').remove(); return true");
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn golden_pictures_are_small_and_none_is_left_over() {
    let files = fs::read_dir(folder()).expect("the golden pictures");
    let files: Vec<PathBuf> = files.flatten().map(|entry| entry.path()).collect();
    let (texts, files): (Vec<PathBuf>, Vec<PathBuf>) =
        files.into_iter().partition(|file| file.extension().is_some_and(|extension| extension == "txt"));
    assert_eq!(texts.len(), VIEWS.len(), "a text of each view");
    assert_eq!(files.len(), VIEWS.len() * SIZES.len() * 2, "a picture of each view, size and color scheme");
    let bytes = |path: &PathBuf| Path::new(path).metadata().map_or(0, |metadata| metadata.len());
    let mean_bytes = files.iter().map(bytes).sum::<u64>() / files.len() as u64;
    assert!(mean_bytes <= MAX_MEAN_BYTES, "{mean_bytes} bytes");
}
