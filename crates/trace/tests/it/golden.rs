//! A file of version 1 of the format decodes to the same items as when version 1 became final.
//!
//! `version_1.vram` has every kind of chunk, event and compression, and is never written again;
//! `version_1.txt` describes its contents. Kinds that were added later have their own files:
//! `relabels.vram` has relabels before events, after the last event and in full states, and
//! `later_categories.vram` the categories that only an optional column has.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;

use vramscope_trace::{
    Annotation, AnnotationStage, Block, Category, DecodedItem, Decoder, DeviceId, DeviceInfo, Encoder, Event,
    EventKind, Frame, Interner, MempoolId, PoolKey, PoolKind, Recording, RecordingInfo, Relabel, Replay, Segment, Sink,
    Site, SiteId, StackId, StreamId, StringId, digest,
};

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// Types that were renamed after `version_1.txt` was written: name now, name in the file.
const RENAMED_TYPES: [(&str, &str); 2] = [("PoolKey {", "Pool {"), ("RecordingInfo {", "Info {")];

/// Returns the items of a recording as text, one per line.
fn described(bytes: &[u8]) -> String {
    let mut text = String::new();
    let mut decoder = Decoder::new();
    decoder.push(bytes);
    while let Some(item) = decoder.next_item().expect("the file is valid") {
        match item {
            DecodedItem::FullState(state) => {
                writeln!(text, "FullState {} {:016x}", state.event(), digest(&state)).unwrap();
                for (id, device) in state.devices() {
                    let counters = device.counters();
                    writeln!(text, "  {id:?} {counters:?} {:?} {} events", device.sample(), device.events()).unwrap();
                    device.segments().for_each(|segment| writeln!(text, "  {segment:?}").unwrap());
                    device.blocks().for_each(|block| writeln!(text, "  {block:?}").unwrap());
                }
            }
            item => writeln!(text, "{item:?}").unwrap(),
        }
    }
    decoder.finish().expect("the file is complete");
    for (now, then) in RENAMED_TYPES {
        text = text.replace(now, then);
    }
    // These fields were added after the file was written.
    text.replace("import_notes: [], ", "").replace("lacks_times: false, ", "")
}

/// Returns the first and the last lines, and the number and hash of the lines between.
fn abridged(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let (first, rest) = lines.split_at(80);
    let (middle, last) = rest.split_at(rest.len() - 230);
    let number = xxhash_rust::xxh3::xxh3_64(middle.join("\n").as_bytes());
    format!("{}\n{} lines, XXH3 {number:016x}\n{}\n", first.join("\n"), middle.len(), last.join("\n"))
}

#[test]
fn version_1_file_decodes_unchanged() {
    let bytes = std::fs::read(data("version_1.vram")).unwrap();
    let expected = std::fs::read_to_string(data("version_1.txt")).unwrap();
    let found = abridged(&described(&bytes));
    for (number, (found, expected)) in found.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "line {}", number + 1);
    }
    assert_eq!(found.lines().count(), expected.lines().count());
    let (recording, damage) = Recording::open(Arc::new(bytes.clone()), bytes.len() as u64, |_, _| {}).unwrap();
    assert_eq!(damage, None);
    let mut whole = Recording::new();
    whole.push(&bytes).unwrap();
    let mut replay = Replay::new();
    for event in 0..=recording.end_event() {
        assert_eq!(replay.seek(&recording, event).unwrap(), Replay::new().seek(&whole, event).unwrap());
    }
}

#[test]
fn file_with_relabels_decodes_unchanged() {
    let bytes = std::fs::read(data("relabels.vram")).unwrap();
    assert_eq!(described(&bytes), std::fs::read_to_string(data("relabels.txt")).unwrap());
    let (recording, damage) = Recording::open(Arc::new(bytes.clone()), bytes.len() as u64, |_, _| {}).unwrap();
    assert_eq!((damage, recording.events()), (None, 18));
    let mut whole = Recording::new();
    whole.push(&bytes).unwrap();
    let mut replay = Replay::new();
    for event in 0..=recording.end_event() {
        assert_eq!(replay.seek(&recording, event).unwrap(), Replay::new().seek(&whole, event).unwrap());
    }
}

#[test]
fn file_with_later_categories_decodes_unchanged() {
    let bytes = std::fs::read(data("later_categories.vram")).unwrap();
    let mut recording = Recording::new();
    recording.push(&bytes).unwrap();
    let definitions = recording.definitions();
    let found: Vec<Category> =
        (1..=definitions.site_count() as u32).map(|id| definitions.site(SiteId(id)).category).collect();
    let expected: Vec<Category> = Category::ALL[1..].iter().copied().chain([Category::Unknown]).collect();
    assert_eq!(found, expected);
}

/// The compression is the second byte of a chunk's header and of a column's.
#[test]
fn version_1_file_has_every_kind_and_compression() {
    let bytes = std::fs::read(data("version_1.vram")).unwrap();
    let (mut kinds, mut compressions) = (Vec::new(), Vec::new());
    let mut at = 12;
    while at < bytes.len() {
        let stored = u32::from_le_bytes(bytes[at + 4..at + 8].try_into().unwrap()) as usize;
        kinds.push(bytes[at]);
        compressions.push(bytes[at + 1]);
        at += 32 + stored;
    }
    for kind in [1, 2, 3, 4, 5, 0x40, 0x41, 0x50] {
        assert!(kinds.contains(&kind), "kind {kind}");
    }
    for compression in 0..3 {
        assert!(compressions.contains(&compression), "compression {compression}");
    }
}

fn info() -> RecordingInfo {
    RecordingInfo {
        source: "train.py".to_owned(),
        writer: "vramscope 0.1.0".to_owned(),
        epoch_unix_ns: 1_790_000_000_000_000_000,
        alloc_conf: "expandable_segments:True".to_owned(),
        source_settings: "{}".to_owned(),
        import_notes: Vec::new(),
        lacks_times: false,
        devices: vec![DeviceInfo {
            device: 1,
            name: "NVIDIA H200".to_owned(),
            total_bytes: 150_000_000_000,
            history_complete: false,
            uncertain_events: 3,
            ..DeviceInfo::default()
        }],
    }
}

/// Records a full state with memory in use, and a site of every category.
fn begin(encoder: &mut Encoder) {
    let mut interner = Interner::default();
    let (file, scope) = (interner.string("model.py"), interner.string("step/forward"));
    let mut stack = StackId(0);
    for line in [7, 42] {
        let function = interner.string(&format!("line_{line}"));
        let frame = interner.frame(Frame { function, file, line });
        stack = interner.stack(frame, stack);
    }
    for category in Category::ALL {
        interner.site(Site { stack, scope, category, compile_context: StringId(0) });
    }
    interner.site(Site { stack, scope, compile_context: file, ..Site::default() });
    interner.take_new().iter().for_each(|definition| encoder.define(definition));
    let mut start = encoder.state().clone();
    start.set_time_ns(1000);
    let device = start.device_mut(DeviceId(1));
    let (stream, pool, site) = (StreamId(9), PoolKey { kind: PoolKind::Small, owner: MempoolId(0, 3) }, SiteId(2));
    let (address, size, since_event) = (0x7f00_0000_0000, 2 << 20, 0);
    device.insert_segment(Segment { address, size, stream, pool, expandable: false, site, since_event });
    let block = |address, size, requested, pending_free| Block {
        address,
        size,
        requested,
        stream,
        pool,
        site,
        pending_free,
        since_event,
        since_ns: 500,
    };
    device.insert_block(block(address, 1024, 1000, false));
    device.insert_block(block(address + 4096, 512, 1, true));
    encoder.replace_state(&start);
}

/// Returns an event of every kind, with every way to free a block.
fn every_kind() -> Vec<Event> {
    let (large, site) = (PoolKey::default_of(PoolKind::Large), SiteId(3));
    let (address, size, stream) = (0x7f10_0000_0000, 20 << 20, StreamId(0));
    let allocated =
        |address, size, requested| EventKind::BlockAllocated { address, size, requested, stream, pool: large, site };
    let kinds = [
        EventKind::Mark { stage: AnnotationStage::Begin, name: StringId(2), address: 0, site: SiteId(0) },
        EventKind::SegmentAllocated { address, size, stream, pool: large, site },
        EventKind::SegmentMapped { address: address + (1 << 30), size, stream, pool: large, site },
        allocated(address, 2 << 20, (2 << 20) - 100),
        allocated(address + (2 << 20), 513, 513),
        EventKind::Mark { stage: AnnotationStage::Instant, name: StringId(1), address, site },
        EventKind::FreeRequested { address, site },
        EventKind::FreeCompleted { address, site },
        allocated(address, 1 << 20, 1 << 20),
        EventKind::FreeRequested { address, site },
        EventKind::MemorySample { used_by_context: 5 << 20, used_by_others: 7, free: 1 << 37 },
        EventKind::FreeCompleted { address, site: SiteId(4) },
        EventKind::FreeCompleted { address: 0x7f00_0000_1000, site },
        EventKind::OutOfMemory { requested: 1 << 40, device_free: 12_345, stream: StreamId(7), site },
        EventKind::SegmentUnmapped { address: address + (1 << 30), size, site },
        EventKind::FreeRequested { address: 0x1234, site },
        EventKind::Gap { lost: 100 },
        EventKind::Mark { stage: AnnotationStage::End, name: StringId(2), address: 0, site: SiteId(0) },
    ];
    let event = |(number, kind): (usize, EventKind)| Event {
        device: if matches!(kind, EventKind::FreeCompleted { address: 0x7f00_0000_1000, .. }) {
            DeviceId(1)
        } else {
            DeviceId(0)
        },
        // One time is before the previous one.
        time_ns: 2000 + 10 * number as u64 - if number == 9 { 50 } else { 0 },
        kind,
    };
    kinds.into_iter().enumerate().map(event).collect()
}

/// The test that wrote `relabels.vram`; ignored, because the file must not change.
#[test]
#[ignore = "the file is never written again"]
fn write_relabels_file() {
    let mut encoder = Encoder::new(&info());
    begin(&mut encoder);
    let relabel =
        |device, time_ns, address, site| Relabel { device: DeviceId(device), time_ns, address, site: SiteId(site) };
    for (number, event) in every_kind().iter().take(6).enumerate() {
        encoder.event(event);
        encoder.relabel(&relabel(1, 2005 + 10 * number as u64, 0x7f00_0000_0000, 1 + number as u32));
        // Written twice in a chunk without events, then repeated in the chunk with the next event.
        if number == 4 {
            encoder.flush();
            encoder.relabel(&relabel(0, 2048, 0x7f10_0000_0000, 8));
            encoder.relabel(&relabel(0, 2049, 0x9999, 8));
            encoder.flush();
        }
    }
    let state = encoder.state().clone();
    encoder.replace_state(&state);
    every_kind().iter().skip(6).for_each(|event| encoder.event(event));
    encoder.relabel(&relabel(0, 3000, 0x7f10_0020_0000, 5));
    encoder.flush();
    let mut bytes: Vec<u8> = encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect();
    let mut recording = Recording::new();
    recording.push(&bytes).unwrap();
    bytes.extend(recording.index().into_iter().flat_map(|chunk| chunk.bytes));
    std::fs::write(data("relabels.txt"), described(&bytes)).unwrap();
    std::fs::write(data("relabels.vram"), &bytes).unwrap();
}

/// Returns a chunk with any kind and compression.
fn chunk(kind: u8, compression: u8, first_event: u64, events: u32, raw_len: usize, stored: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind, compression, 0, 0];
    bytes.extend((stored.len() as u32).to_le_bytes());
    bytes.extend((raw_len as u32).to_le_bytes());
    bytes.extend(events.to_le_bytes());
    bytes.extend(first_event.to_le_bytes());
    let mut hash = xxhash_rust::xxh3::Xxh3::new();
    hash.update(&bytes);
    hash.update(stored);
    bytes.extend(hash.digest().to_le_bytes());
    bytes.extend(stored);
    bytes
}

/// The test that wrote `later_categories.vram`; ignored, because the file must not change.
#[test]
#[ignore = "the file must not change"]
fn write_later_categories_file() {
    let mut encoder = Encoder::new(&RecordingInfo::default());
    let mut interner = Interner::default();
    let scope = interner.string("step");
    for category in Category::ALL[1..].iter().copied().chain([Category::Unknown]) {
        interner.site(Site { scope, category, ..Site::default() });
    }
    interner.take_new().iter().for_each(|definition| encoder.define(definition));
    encoder.event(&Event { device: DeviceId(0), time_ns: 5, kind: EventKind::Gap { lost: 0 } });
    encoder.flush();
    let bytes: Vec<u8> = encoder.take_output().iter().flat_map(|chunk| chunk.bytes.to_vec()).collect();
    std::fs::write(data("later_categories.vram"), bytes).unwrap();
}

/// The test that wrote `version_1.vram`; ignored, because the file must not change.
#[test]
#[ignore = "the file is never written again"]
fn write_version_1_file() {
    let mut encoder = Encoder::new(&info());
    begin(&mut encoder);
    for (number, event) in every_kind().iter().enumerate() {
        if number == 5 {
            let (device, time_ns, at_event) = (DeviceId(1), 2010, 3);
            encoder.annotation(&Annotation {
                device,
                time_ns,
                at_event,
                stage: AnnotationStage::End,
                name: StringId(2),
            });
            encoder.flush();
        }
        encoder.event(event);
    }
    // A full state follows a gap.
    let state = encoder.state().clone();
    encoder.replace_state(&state);
    // Enough events that columns are compressed one by one.
    let site = SiteId(1);
    for number in 0..1200u64 {
        let (address, size) = (0x7f10_0000_0000 + number % 9 * 4096, 512 * (1 + number % 7));
        let (stream, pool) = (StreamId(0), PoolKey::default_of(PoolKind::Large));
        let kinds = [
            EventKind::BlockAllocated { address, size, requested: size - number % 5, stream, pool, site },
            EventKind::FreeRequested { address, site },
            EventKind::FreeCompleted { address, site },
        ];
        for kind in kinds {
            encoder.event(&Event { device: DeviceId(0), time_ns: 10_000 + 7 * number, kind });
        }
    }
    encoder.flush();
    let mut bytes: Vec<u8> = Vec::new();
    for chunk_out in encoder.take_output() {
        bytes.extend(chunk_out.bytes);
    }
    // A chunk of an unknown kind that may be skipped, and a chunk of definitions compressed by LZ4:
    // the strings "a" to "z", repeated, with the earlier definitions.
    bytes.extend(chunk(0x50, 0, 0, 0, 5, b"later"));
    let texts: Vec<u8> = (0..200).map(|number| b'a' + (number % 26) as u8).collect();
    let mut raw = vec![4, 2, 2, 9, 0, 0, 200, 1];
    raw.extend([1; 200]);
    raw.extend([1, 0, 200, 1]);
    raw.extend(texts);
    let packed = lz4_flex::block::compress(&raw);
    bytes.extend(chunk(2, 1, 0, 0, raw.len(), &packed));
    let mut overview = Recording::overview_only(None);
    overview.push(&bytes).unwrap();
    bytes.extend(overview.index().into_iter().flat_map(|chunk| chunk.bytes));
    std::fs::write(data("version_1.vram"), &bytes).unwrap();
    std::fs::write(data("version_1.txt"), abridged(&described(&bytes))).unwrap();
}

/// The example in `docs/format.md` decodes to the items that its comments describe.
#[test]
fn documented_example_is_a_valid_recording() {
    let page = include_str!("../../../../docs/format.md");
    let example = page.split("```hex\n").nth(1).unwrap().split("```").next().unwrap();
    let bytes: Vec<u8> = example
        .lines()
        .flat_map(|line| line.split('#').next().unwrap_or("").split_whitespace())
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect();
    let mut decoder = Decoder::new();
    decoder.push(&bytes);
    let mut events = Vec::new();
    while let Some(item) = decoder.next_item().unwrap() {
        match item {
            DecodedItem::Info(info) => assert_eq!(info.source, "train.py"),
            DecodedItem::Event(event) => events.push((event.time_ns, event.kind)),
            item => panic!("{item:?}"),
        }
    }
    decoder.finish().unwrap();
    let (address, stream, pool, site) =
        (0x7f00_0000_0000, StreamId(0), PoolKey::default_of(PoolKind::Small), SiteId(0));
    let block = |address, size, requested| EventKind::BlockAllocated { address, size, requested, stream, pool, site };
    let expected = [
        (5000, EventKind::SegmentAllocated { address, size: 2 << 20, stream, pool, site }),
        (6000, block(address, 1024, 1000)),
        (9000, block(address + 1024, 512, 512)),
        (12_000, EventKind::FreeRequested { address, site }),
        (12_000, EventKind::FreeCompleted { address, site }),
    ];
    assert_eq!(events, expected);
}
