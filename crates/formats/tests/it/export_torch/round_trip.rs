//! Importing, exporting and importing a snapshot again gives the same recording.

use vramscope_trace::{Block, DeviceId, Recording, Segment, SiteId};

use super::common::{WRITERS, events, exported, imported, read, site_text, snapshots, with_texts};

/// The memory of one device at the end: segments and blocks with the text of their sites instead of
/// the number.
type End = (DeviceId, Vec<(Segment, String)>, Vec<(Block, String)>);

fn ends(recording: &Recording) -> Vec<End> {
    let none = SiteId(0);
    let words = |site| site_text(recording, site);
    let of = |(id, device): (DeviceId, &vramscope_trace::DeviceState)| {
        let segments = device.segments().map(|&segment| (Segment { site: none, ..segment }, words(segment.site)));
        let blocks = device.blocks().map(|&block| (Block { site: none, ..block }, words(block.site)));
        (id, segments.collect(), blocks.collect())
    };
    recording.end_state().devices().map(of).collect()
}

/// Returns the annotations with their names instead of their numbers.
fn annotations(recording: &Recording) -> Vec<(u64, u64, DeviceId, vramscope_trace::AnnotationStage, String)> {
    let name = |id| recording.definitions().string(id).to_owned();
    recording
        .annotations()
        .iter()
        .map(|note| (note.time_ns, note.at_event, note.device, note.stage, name(note.name)))
        .collect()
}

#[test]
fn snapshots_survive_export_and_import() {
    for path in snapshots() {
        let name = path.file_name().expect("a file has a name").to_string_lossy().into_owned();
        let first = imported(&read(&path), &name);
        let mut pickles = Vec::new();
        for writer in WRITERS {
            let second = imported(&exported(&first, writer), &name);
            assert_eq!(second.events(), first.events(), "{name}");
            for (number, (one, other)) in events(&first).into_iter().zip(events(&second)).enumerate() {
                assert_eq!(with_texts(&second, other), with_texts(&first, one), "{name}: event {number}");
            }
            assert_eq!(ends(&second), ends(&first), "{name}");
            assert_eq!(annotations(&second), annotations(&first), "{name}");
            assert_eq!(second.info(), first.info(), "{name}");
            pickles.push(exported(&second, WRITERS[0]));
        }
        assert_eq!(pickles[0], exported(&first, WRITERS[0]), "{name}: the second export is the first");
        assert_eq!(pickles[1], pickles[0], "{name}: JSON says what the pickle says");
    }
}
