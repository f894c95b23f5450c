//! Pictures of a session that has nothing left to compute.

use vramscope_draw::{Bitmap, Color};
use vramscope_viewer::app::{PageFacts, Session, SessionReport};
use vramscope_viewer::protocol::{Action, FrameRequest, Screen, Surface};

/// Applies actions and draws frames until nothing changes.
pub(crate) fn draw_until_still(session: &mut Session, screen: &Screen, actions: &[Action]) {
    let mut request =
        FrameRequest { screen: Some(screen.clone()), actions: actions.to_vec(), ..FrameRequest::default() };
    for _ in 0..200 {
        let mut report = SessionReport::default();
        let _ = session.frame(&request, &PageFacts::default(), &mut report);
        assert_eq!(report, SessionReport::default());
        request = FrameRequest::default();
        let is_working = session.work(100_000).expect("a readable recording");
        if !is_working && !session.model.has_changed() {
            return;
        }
    }
    panic!("the session still changes after 200 frames");
}

/// Returns a picture of a session as last drawn.
pub(crate) fn drawn(session: &Session, screen: &Screen, surface: Surface) -> Bitmap {
    let (width, height) = screen.sizes[surface as usize];
    let mut picture = Bitmap::new(width, height, Color::default());
    let mut rows = session.pixels(surface).chunks_exact(width as usize * 4);
    picture.for_each_row(picture.bounds(), |_, pixels| {
        let row = rows.next().expect("the picture has the screen's size");
        for (pixel, bytes) in pixels.iter_mut().zip(row.chunks_exact(4)) {
            pixel.copy_from_slice(bytes);
        }
    });
    picture
}
