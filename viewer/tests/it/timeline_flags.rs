//! The flags of out-of-memory errors above the timeline.

use vramscope_trace::{DeviceId, Encoder, Event, EventKind, RecordingInfo, Sink, SiteId, StreamId};
use vramscope_viewer::protocol::PointerKind;

use crate::testing::open_bytes;
use crate::timeline::{Page, SIZE};

#[test]
fn flag_of_several_failures_visits_all_of_them() {
    let mut encoder = Encoder::new(&RecordingInfo::default());
    let mut write = |time_ns: u64, kind| encoder.event(&Event { device: DeviceId(0), time_ns, kind });
    let oom = |requested| EventKind::OutOfMemory { requested, device_free: 0, stream: StreamId(0), site: SiteId(0) };
    let sample = EventKind::MemorySample { used_by_context: 0, used_by_others: 0, free: 1 };
    write(0, sample);
    write(500_000, oom(48 << 20));
    write(500_100, oom(64 << 20));
    write(500_200, oom(32 << 20));
    write(1_000_000, sample);
    encoder.flush();
    let bytes: Vec<u8> = encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect();
    let mut page = Page::new(open_bytes("oom.vram", &bytes), true);
    let rows = 0..SIZE.1 as i32;
    let flag = |page: &Page| {
        let timeline = page.session.timeline().expect("a timeline");
        let mut pixels = rows.clone().flat_map(|y| (0..SIZE.0 as i32).map(move |x| (x, y)));
        pixels.find(|&(x, y)| timeline.incidents_at(x, y).len() == 3).expect("a flag of three failures")
    };
    let (x, y) = flag(&page);
    let mut visited = Vec::new();
    for _ in 0..4 {
        page.pointer(PointerKind::Down, f64::from(x + 2), f64::from(y + 2));
        page.pointer(PointerKind::Up, f64::from(x + 2), f64::from(y + 2));
        visited.push(page.event());
    }
    // The page begins at the first one.
    assert_eq!(visited, [3, 4, 2, 3]);
    page.pointer(PointerKind::Move, f64::from(x + 2), f64::from(y + 2));
    assert!(page.tooltip.contains("OOM 64 MiB") && page.tooltip.contains("OOM 32 MiB"), "{}", page.tooltip);
}
