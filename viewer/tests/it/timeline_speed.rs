//! Measures how long a timeline takes.

use std::time::Instant;

use vramscope_draw::{Bitmap, Color, Theme, Typesetter};
use vramscope_viewer::app::{PageFacts, SessionReport};
use vramscope_viewer::protocol::FrameRequest;
use vramscope_viewer::timeline;

use crate::testing::open_bytes;
use crate::timeline::Page;

/// `BIG=big.vram cargo test --release -- --ignored --nocapture timeline_speed` prints how long
/// a timeline takes in every mode.
#[test]
#[ignore = "measures a large recording"]
fn timeline_speed() {
    let path = std::env::var("BIG").expect("BIG is the path of a recording");
    let mut page = Page::new(open_bytes("big.vram", &std::fs::read(path).expect("a readable file")), true);
    page.screen.sizes = [(1600, 240), (1, 1), (0, 0)];
    page.run("split");
    page.run("pane 0 about");
    let (theme, mut typesetter, mut picture) =
        (Theme::new(true), Typesetter::new(), Bitmap::new(1600, 240, Color::default()));
    for axis in ["time", "events", "steps"] {
        for stack in ["counters", "category", "site", "size"] {
            page.run(&format!("axis {axis}"));
            page.run(&format!("stack {stack}"));
            for part in ["fit-all", "zoom-in", "zoom-in"] {
                page.run(part);
                let least = |times: &mut dyn Iterator<Item = std::time::Duration>| times.min().unwrap_or_default();
                let whole = least(&mut (0..15).map(|_| {
                    page.session.model.timeline_changed();
                    let began = Instant::now();
                    let _ = page.session.frame(
                        &FrameRequest::default(),
                        &PageFacts::default(),
                        &mut SessionReport::default(),
                    );
                    began.elapsed()
                }));
                let moment = least(&mut (0..15).map(|_| {
                    page.session.model.moment_changed();
                    let began = Instant::now();
                    let _ = page.session.frame(
                        &FrameRequest::default(),
                        &PageFacts::default(),
                        &mut SessionReport::default(),
                    );
                    began.elapsed()
                }));
                let scene = page.session.timeline().expect("a timeline");
                let drawn = least(&mut (0..15).map(|_| {
                    let began = Instant::now();
                    timeline::draw(scene, &theme, &mut picture, &mut typesetter);
                    began.elapsed()
                }));
                println!(
                    "{axis} {stack} {part}: frame {whole:?}, of which drawing {drawn:?}; only the moment {moment:?}"
                );
            }
        }
    }
}
