//! Takes the README's pictures: the live demo, and a real recording at its peak.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use vramscope_tests::fixtures::{self, Fixture};
use vramscope_tests::{Browser, ColorScheme, Page, Program, Window};

/// Training time before the demo's picture is taken: enough for its steps to show as a rhythm.
const TRAINED: Duration = Duration::from_secs(10);

fn window(colors: ColorScheme) -> Window {
    Window { width: 1600, height: 900, scale: 1, colors }
}

fn main() {
    let folder = fixtures::workspace_root().join("docs").join("images");
    fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    // One picture in each color scheme.
    save(&folder.join("demo.png"), &live(&Browser::start(window(ColorScheme::Dark))));
    if let Some(fixture) = Fixture::large("gpt_varlen") {
        save(&folder.join("gpt_varlen.png"), &peak(&Browser::start(window(ColorScheme::Light)), &fixture));
    }
}

fn save(path: &Path, picture: &[u8]) {
    fs::write(path, picture).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    println!("{} ({} KB)", path.display(), picture.len() / 1000);
}

fn live(browser: &Browser) -> Vec<u8> {
    let demo = Program::start(["demo", "--device", "host"]);
    let page = Page::open(browser, demo.url());
    page.wait_until("events arrive", |state| state.live && state.events > 0);
    thread::sleep(TRAINED);
    browser.screenshot()
}

/// Takes a picture of the moment with the most allocated memory.
fn peak(browser: &Browser, fixture: &Fixture) -> Vec<u8> {
    let view = Program::start(["view".as_ref(), fixture.path.as_os_str()]);
    let page = Page::open(browser, view.url());
    page.wait_until("the recording is open", |state| state.events == fixture.events());
    let peak = page.run("return window.vramscope.peak()").as_u64().expect("the peak is at an event");
    page.seek(peak);
    // Ends once the recording was analyzed.
    page.run("return window.vramscope.rows('verdict')");
    page.seek(peak);
    browser.screenshot()
}
