//! The view "Pools and segments", as the page and scripts get it.

use serde_json::Value;
use vramscope_viewer::ui::Tag;

use crate::testing::page::{elements, show};
use crate::testing::rows::rows;
use crate::testing::sample_session;
use crate::testing::samples::Sample;

#[test]
fn pools_have_a_column_of_pending_bytes_only_if_some_are_pending() {
    let mut session = sample_session(Sample::Training);
    let end = session.model.recording().end_event();
    let mut seen = [false; 2];
    for event in (0..=end).step_by(3) {
        let content = show(&mut session, "segments", &[&format!("seek {event}")]);
        let titles = elements(&content.content, Tag::Th);
        let is_shown = titles.into_iter().any(|title| title.text_content() == "pending free");
        let rows = rows(&mut session, "segments", "{}");
        let pending = |row: &Value| row["pending_bytes"].as_u64().expect("scripts always get the bytes");
        assert_eq!(is_shown, rows.iter().map(pending).sum::<u64>() > 0, "event {event}");
        seen[usize::from(is_shown)] = true;
    }
    assert_eq!(seen, [true; 2]);
}
