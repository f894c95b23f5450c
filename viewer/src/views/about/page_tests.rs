//! The view about the recording: what an imported recording lacks.

use vramscope_viewer::app::Session;
use vramscope_viewer::ui::plain_text;

use crate::testing::page::{fact, show};
use crate::testing::{load_fixture, open};

#[test]
fn about_says_what_an_imported_recording_lacks() {
    let mut session = open("tour/ring.vram");
    let content = show(&mut session, "about", &["last"]).content;
    assert_eq!(fact(&content, "imported from").as_deref(), Some("ring.pickle.zst"));
    let missing = fact(&content, "earlier events").expect("earlier events are missing");
    assert!(missing.starts_with("missing: ") && missing.contains("276 blocks of device 0"), "{missing}");
    let device = fact(&content, "device").expect("a device");
    assert!(device.contains("name and memory size not recorded"), "{device}");
    let mut complete = open("tour/mlp_train.vram");
    assert_eq!(fact(&show(&mut complete, "about", &[]).content, "earlier events"), None);
}

#[test]
fn about_shows_what_the_importer_reported() {
    let file = load_fixture("ring_graphs_expandable.pickle.gz");
    let notes = file.recording.info().import_notes.clone();
    assert!(!notes.is_empty());
    let mut session = Session::default();
    session.model.show("ring_graphs_expandable.pickle.gz", file).expect("a readable recording");
    let text = plain_text(&show(&mut session, "about", &[]).content);
    assert!(notes.iter().all(|note| text.contains(note)), "{text}");
}
