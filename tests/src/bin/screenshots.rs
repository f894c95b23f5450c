//! Takes the README's pictures: a real recording at its peak, the live demo, and an animation of
//! growth, a failure and its remedy.
#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use vramscope_tests::fixtures;
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
    save(&folder.join("gpt_varlen.png"), &peak(&Browser::start(window(ColorScheme::Light)), &tour("gpt_varlen")));
    // What docs/memory_viz.md compares: the first screens of three recordings.
    let first = Window { width: 1280, height: 800, scale: 1, colors: ColorScheme::Light };
    for name in ["gpt_varlen", "oom_frag", "graphs"] {
        let path = folder.join("memory_viz").join(format!("first-{name}.png"));
        save(&path, &first_screen(&Browser::start(first), &tour(name)));
    }
    let animated = Window { width: 960, height: 600, scale: 1, colors: ColorScheme::Light };
    save(&folder.join("animation.png"), &animation(&Browser::start(animated)));
}

/// Returns the path of a recording of the tour.
fn tour(name: &str) -> PathBuf {
    fixtures::workspace_root().join("tests").join("data").join("tour").join(name).with_extension("vram")
}

fn save(path: &Path, picture: &[u8]) {
    fs::write(path, picture).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    println!("{} ({} KB)", path.display(), picture.len() / 1000);
}

fn live(browser: &Browser) -> Vec<u8> {
    let demo = Program::start(["demo", "--device", "host"]);
    let page = Page::open(browser, demo.url());
    page.wait_until("events arrive", |state| state.live && state.events > 0);
    page.run("document.getElementById('hints-close').click()");
    thread::sleep(TRAINED);
    browser.screenshot()
}

/// Takes a picture of what a user sees after opening a recording.
fn first_screen(browser: &Browser, recording: &Path) -> Vec<u8> {
    let view = Program::start(["view".as_ref(), recording.as_os_str()]);
    let page = Page::open(browser, view.url());
    page.wait_until("the recording is open", |state| state.events > 0);
    page.run("document.getElementById('hints-close').click()");
    page.run("return window.vramscope.rows('verdict').then(() => true)");
    page.wait("the verdict is shown", "return !document.querySelector('.said').textContent.includes('Looking')");
    browser.screenshot()
}

/// Takes a picture of the moment with the most allocated memory.
fn peak(browser: &Browser, recording: &Path) -> Vec<u8> {
    let view = Program::start(["view".as_ref(), recording.as_os_str()]);
    let page = Page::open(browser, view.url());
    page.wait_until("the recording is open", |state| state.events > 0);
    let peak = page.run("return window.vramscope.peak()").as_u64().expect("the peak is at an event");
    page.seek(peak);
    // Ends once the recording was analyzed.
    page.run("return window.vramscope.rows('verdict')");
    page.seek(peak);
    page.run("document.getElementById('hints-close').click()");
    browser.screenshot()
}

/// Duration of the animation's frames that show growth, and of each other frame, in milliseconds.
const FRAME_MS: (u16, u16) = (625, 2500);
/// Number of frames that show growth.
const GROWTH_FRAMES: u64 = 16;
/// The settings that the animation's last frame simulates.
const REMEDY: &str = "expandable_segments:True";

/// Takes an animated picture of 20 seconds: a program whose memory grows, a request that fails, and
/// what a setting would change.
fn animation(browser: &Browser) -> Vec<u8> {
    let mut frames = Vec::new();
    let demo = Program::start(["demo", "--device", "host", "--technique", "keep-outputs"]);
    let page = Page::open(browser, demo.url());
    page.run("document.getElementById('hints-close').click()");
    let end = page.wait_until("the program has ended", |state| state.events > 6000).events;
    page.run("return window.vramscope.rows('verdict').then(() => true)");
    for frame in 1..=GROWTH_FRAMES {
        page.seek(end * frame / GROWTH_FRAMES);
        frames.push((FRAME_MS.0, browser.screenshot()));
    }
    let view = Program::start(["view".as_ref(), tour("oom_frag").as_os_str()]);
    let page = Page::open(browser, view.url());
    page.wait_until("the recording is open", |state| state.events > 0);
    page.run("document.getElementById('hints-close').click()");
    page.run("return window.vramscope.rows('verdict').then(() => true)");
    frames.extend((0..2).map(|_| (FRAME_MS.1, browser.screenshot())));
    let link = format!("location.hash = location.hash + '&panes=device,whatif;find:{REMEDY}'; return true");
    page.run(&link);
    page.wait("the simulated run is shown", "return document.querySelector('.saving') !== null");
    frames.extend((0..2).map(|_| (FRAME_MS.1, browser.screenshot())));
    animated_png(&frames)
}

/// Encodes pictures as an animated PNG: each with its duration in milliseconds. Colors have 5 bits
/// each, and a frame only the rows that change, so that the file is small.
fn animated_png(frames: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let pictures: Vec<(u16, u32, u32, Vec<u8>)> = frames
        .iter()
        .map(|(ms, picture)| {
            let mut reader = png::Decoder::new(Cursor::new(picture)).read_info().expect("a PNG");
            let mut pixels = vec![0; reader.output_buffer_size().expect("a size")];
            let info = reader.next_frame(&mut pixels).expect("pixels");
            let step = info.color_type.samples();
            let pixels = pixels.chunks_exact(step).flat_map(|pixel| [pixel[0], pixel[1], pixel[2]]);
            let rounded = |level: u8| ((u16::from(level) * 31 + 127) / 255 * 255 / 31) as u8;
            (*ms, info.width, info.height, pixels.map(rounded).collect())
        })
        .collect();
    let (_, width, height, _) = pictures[0];
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_compression(png::Compression::High);
    encoder.set_filter(png::Filter::Adaptive);
    encoder.set_animated(pictures.len() as u32, 0).expect("frames");
    let mut writer = encoder.write_header().expect("a header");
    let mut shown: Cow<'_, [u8]> = Cow::Borrowed(&[]);
    for (ms, _, _, pixels) in &pictures {
        let line = width as usize * 3;
        let is_other = |row: usize| pixels[row * line..][..line] != shown[row * line..][..line];
        let (first, last) = match shown.is_empty() {
            true => (0, height as usize - 1),
            false => {
                let rows = || (0..height as usize).filter(|&row| is_other(row));
                (rows().next().unwrap_or(0), rows().next_back().unwrap_or(0))
            }
        };
        writer.set_frame_delay(*ms, 1000).expect("a delay");
        // Each setting alone must keep the frame inside of the picture.
        writer.reset_frame_position().expect("a position");
        writer.set_frame_dimension(width, (last - first + 1) as u32).expect("a size");
        writer.set_frame_position(0, first as u32).expect("a position");
        writer.write_image_data(&pixels[first * line..(last + 1) * line]).expect("pixels");
        shown = Cow::Borrowed(pixels);
    }
    writer.finish().expect("a complete file");
    bytes
}
