//! Logs of RMM's `logging_resource_adaptor`: which lines are imported, which are ignored and
//! counted, and which are refused with their line number.

use std::ops::ControlFlow;

use proptest::prelude::*;
use vramscope_formats::{ImportProgress, ImportSummary, InputFormat, Limits, ReadError, import, sniff, unpack};
use vramscope_trace::{Counters, Definitions, DeviceId, EventKind, MemorySink, MemoryState, StreamId};

const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream\n";

fn read_named(name: &str, log: &[u8]) -> Result<(MemorySink, ImportSummary), ReadError> {
    let limits = Limits { max_bytes: 1 << 20, ..Limits::default() };
    let mut last = 0.0;
    let mut progress = |progress: &ImportProgress| {
        assert!(progress.fraction >= last && progress.fraction <= 1.0);
        last = progress.fraction;
        ControlFlow::Continue(())
    };
    let read = import(log, name, &limits, &mut progress, |_| MemorySink::default());
    assert!(read.is_err() || last == 1.0);
    read
}

fn read(lines: &str) -> (MemorySink, ImportSummary) {
    read_named("rmm.csv", format!("{HEADER}{lines}").as_bytes()).unwrap_or_else(|error| panic!("{lines}: {error}"))
}

/// Returns the state after all events.
fn end(memory: &MemorySink, device: u16) -> MemoryState {
    let mut state = MemoryState::default();
    state.device_mut(DeviceId(device));
    memory.events.iter().for_each(|event| state.apply(event));
    state
}

/// Checks the state at the end of a log: `[allocated, requested, reserved]` bytes, segments,
/// blocks, and contradictions.
fn check(lines: &str, bytes: [u64; 3], [segments, blocks]: [usize; 2], contradictions: u64) {
    let (memory, summary) = read(lines);
    let state = end(&memory, 0);
    let device = state.device(DeviceId(0)).expect("the recording has device 0");
    let Counters { allocated, requested, reserved, .. } = device.counters();
    assert_eq!([allocated, requested, reserved], bytes, "{lines}");
    assert_eq!([device.segments().len(), device.blocks().len()], [segments, blocks], "{lines}");
    assert_eq!(summary.contradictions, contradictions, "{lines}: {:?}", summary.info.import_notes);
    assert_eq!(summary.events, memory.events.len() as u64);
}

#[test]
fn segments_cover_all_addresses_used_so_far() {
    check("", [0, 0, 0], [0, 0], 0);
    check("1,00:00:00.1,allocate,0x1000,1000,0x0\n", [1024, 1000, 1024], [1, 1], 0);
    check("1,00:00:00.1,allocate,0x1000,1000,0x0\n1,00:00:00.2,free,0x1000,1000,0x0\n", [0, 0, 1024], [1, 0], 0);
    // Blocks that are adjacent after rounding, added from above and from below, and then one that
    // replaces both.
    let touching = "1,00:00:00,allocate,0x1400,1000,0x0\n1,00:00:00,allocate,0x1000,1000,0x0\n";
    check(touching, [2048, 2000, 2048], [1, 2], 0);
    let freed = "1,00:00:00,free,0x1400,1000,0x0\n1,00:00:00,free,0x1000,1000,0x0\n";
    let larger = "1,00:00:00,allocate,0xe00,4096,0x0\n";
    check(&[touching, freed, larger].concat(), [4096, 4096, 4096], [1, 1], 0);
    // A hole is not a segment; filling it merges both segments with it.
    let apart = "1,00:00:00,allocate,0x1000,256,0x0\n1,00:00:00,allocate,0x2000,256,0x0\n";
    check(apart, [512, 512, 512], [2, 2], 0);
    check(&[apart, "1,00:00:00,allocate,0x1100,3840,0x0\n"].concat(), [4352, 4352, 4352], [1, 3], 0);
    // Pointers below RMM's alignment are accepted, and rounding does not reach the next block.
    check("1,0:0:0,allocate,0x1001,3,0x0\n1,0:0:0,allocate,0x1004,4,0x0\n", [7, 7, 7], [1, 2], 0);
}

#[test]
fn contradicting_lines_become_events_and_are_counted() {
    check("1,00:00:00,free,0x1000,256,0x0\n", [0, 0, 0], [0, 0], 1);
    check(&"1,00:00:00,allocate,0x1000,256,0x0\n".repeat(2), [256, 256, 256], [1, 1], 1);
    check("1,0:0:0,allocate,0x1000,512,0x0\n1,0:0:0,free,0x1000,256,0x0\n", [0, 0, 512], [1, 0], 1);
    check("1,0:0:0,allocate,0x1000,512,0x0\n1,0:0:0,allocate,0x1100,512,0x0\n", [512, 512, 768], [1, 1], 1);
    let (_, summary) = read("1,00:00:00,free,0x1000,256,0x0\n");
    assert!(!summary.info.devices[0].history_complete);
    assert!(
        summary.info.import_notes.iter().any(|note| note.contains("1 line contradicts")),
        "{:?}",
        summary.info.import_notes
    );
    // The end of the address space.
    let (memory, _) =
        read("1,0:0:0,allocate,0xffffffffffffff00,18446744073709551615,0x0\n1,0:0:0,allocate,(nil),1,0x0\n");
    end(&memory, 0);
}

#[test]
fn times_continue_after_midnight() {
    let times = |lines: &str| read(lines).0.events.iter().map(|event| event.time_ns / 1_000_000).collect::<Vec<_>>();
    let line = |time: &str| format!("1,{time},allocate failure,(nil),1,0x0\n");
    let lines = |all: &[&str]| all.iter().map(|time| line(time)).collect::<String>();
    assert_eq!(times(&lines(&["23:59:59.5", "23:59:59.9", "00:00:00.1"])), [0, 400, 600]);
    // Delayed threads on both sides of midnight, and a clock that was set back an hour.
    assert_eq!(times(&lines(&["23:59:59.9", "00:00:00.0", "23:59:59.8", "00:00:00.3"])), [100, 200, 0, 500]);
    assert_eq!(times(&lines(&["02:59:59", "02:00:00"])), [3_599_000, 0]);
    // 20 hours without a line, and then lines on two days.
    assert_eq!(
        times(&lines(&["10:00:00", "06:00:00", "05:00:00", "02:00:00"])),
        [0, 72_000_000, 68_400_000, 144_000_000]
    );
    let (_, summary) = read(&lines(&["23:00:00", "01:00:00"]));
    assert!(
        summary.info.import_notes.iter().any(|note| note.contains("passes midnight 1 time.")),
        "{:?}",
        summary.info.import_notes
    );
    assert_eq!(summary.info.epoch_unix_ns, 0);
    // Times since 1970, which some versions write.
    let (memory, summary) = read(&lines(&["1634567890.123456", "1634567891.5"]));
    assert_eq!(summary.info.epoch_unix_ns, 1_634_567_890_123_456_000);
    assert_eq!(memory.events[1].time_ns, 1_376_544_000);
    // Many days.
    read(&lines(&["00:00:00", "21:00:00", "18:00:00", "15:00:00", "12:00:00", "09:00:00", "06:00:00"]).repeat(20_000));
}

#[test]
fn threads_streams_and_failures_are_imported() {
    let (memory, summary) = read(
        "77,00:00:00,allocate,0x1000,256,0x2a\n78,00:00:00,allocate failure,0x0,1048576,7\n\
         77,0:0:0,allocate,0x0,0,0x0\n",
    );
    let mut definitions = Definitions::default();
    memory.definitions.iter().cloned().for_each(|definition| definitions.define(definition));
    let EventKind::BlockAllocated { stream, site, .. } = memory.events[1].kind else { panic!("a block") };
    assert_eq!((stream, definitions.string(definitions.site(site).scope)), (StreamId(42), "thread 77"));
    let EventKind::OutOfMemory { requested, device_free, stream, site } = memory.events[2].kind else {
        panic!("a failure")
    };
    assert_eq!((requested, device_free, stream), (1 << 20, 0, StreamId(7)));
    assert_eq!(definitions.string(definitions.site(site).scope), "thread 78");
    assert_eq!(memory.events.len(), 3);
    assert!(
        summary.info.import_notes.iter().any(|note| note.contains("1 line with a size of 0 bytes")),
        "{:?}",
        summary.info.import_notes
    );
    assert!(summary.info.devices[0].history_complete);
}

#[test]
fn device_is_read_from_the_file_name() {
    for (name, device) in
        [("rmm.csv", 0), ("log.dev3.txt", 3), ("log.dev", 0), ("log.dev65535.csv", 0), ("dev1.csv.gz", 1)]
    {
        let log = format!("{HEADER}1,00:00:00,allocate,0x1000,256,0x0\n");
        let (memory, summary) = read_named(name, log.as_bytes()).expect("the log is valid");
        assert_eq!((memory.events[0].device.0, summary.info.devices[0].device), (device, device), "{name}");
    }
}

#[test]
fn few_invalid_lines_are_ignored_and_many_refused() {
    let good = "1,00:00:00,allocate failure,(nil),1,0x0\n";
    for bad in [
        "1,00:00:00,allo",
        "1,00:00:00,allocate,0x1000,99999999999999999999,0x0",
        "1,00:00:00,allocate,0x1000,-1,0x0",
        "1,00:00:00,allocate,1000x,1,0x0",
        "1,25:00:00,allocate,0x1000,1,0x0",
        "x,00:00:00,allocate,0x1000,1,0x0",
        "1,00:00:00,explode,0x1000,1,0x0",
        "\"1,00:00:00,allocate,0x1000,1,0x0",
        "\u{0}\u{0}",
    ] {
        // An invalid line at the end, as after a killed program, and in the middle.
        for lines in [format!("{good}{bad}"), format!("{good}{bad}\n{good}\r\n{HEADER}\n{good}")] {
            let (memory, summary) = read(&lines);
            assert_eq!(memory.events.len() + 1, lines.matches("failure").count() + 1, "{lines}");
            assert_eq!(summary.contradictions, 1, "{lines}");
            let ends_with_bad_line = lines.ends_with(bad);
            let note = summary
                .info
                .import_notes
                .iter()
                .find(|note| note.contains("Ignored 1 invalid line"))
                .expect("a note reports the invalid line");
            assert!(note.contains("(line 3, column 1)"), "{note}");
            assert_eq!(note.contains("the program ended"), ends_with_bad_line, "{note}");
        }
        let error = read_named("", format!("{HEADER}{bad}\n{bad}\n{good}").as_bytes()).expect_err(bad);
        assert_eq!((error.offset, error.line_column), (HEADER.len() as u64, Some((2, 1))), "{error}");
        assert_eq!(error.to_string().lines().count(), 1, "{error}");
    }
}

#[test]
fn logs_are_recognized_by_their_header() {
    for header in [
        HEADER,
        "\u{feff}Thread,Time,Action,Pointer,Size,Stream\r\n",
        "thread, time, action, pointer, size, stream, more",
        "# of the second run\n\n  # rank 3\r\nThread,Time,Action,Pointer,Size,Stream\n",
    ] {
        assert_eq!(sniff(header.as_bytes()), Some(InputFormat::RmmLog), "{header}");
    }
    for other in
        ["Thread,Time,Action", "Time,Thread,Action,Pointer,Size,Stream", "1,00:00:00,allocate,0x1000,1,0x0", ""]
    {
        assert_eq!(sniff(other.as_bytes()), None, "{other}");
    }
    let log = format!("{HEADER}1,00:00:00,allocate,0x1000,256,0x0\n");
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::Write::write_all(&mut gzip, log.as_bytes()).expect("memory can be written");
    let unpacked = unpack(&gzip.finish().expect("memory can be written"), &Limits::default())
        .expect("the archive is valid")
        .into_owned();
    assert_eq!(read_named("", &unpacked).expect("the log is valid").1.events, 2);
}

#[test]
fn comments_are_ignored() {
    let line = "1,00:00:00,allocate,0x1000,256,0x0\n";
    let log = format!("# of the second run\n\n{HEADER}{line}# and then\n");
    let (memory, summary) = read_named("rmm.csv", log.as_bytes()).expect("the log is valid");
    assert_eq!((memory.events.len(), summary.contradictions), (2, 0), "{:?}", summary.info.import_notes);
    let error = read_named("rmm.csv", format!("# a\n{HEADER}x\n").as_bytes()).expect_err("the line is invalid");
    assert_eq!((error.offset, error.line_column), (4 + HEADER.len() as u64, Some((3, 1))), "{error}");
}

#[test]
fn memory_is_bounded_by_live_blocks_and_segments() {
    // A megabyte suffices for the history of one block at a time, but not for 100,000 live blocks.
    let pair = "1,00:00:00,allocate,0x1000,256,0x0\n1,00:00:00,free,0x1000,256,0x0\n";
    assert_eq!(read(&pair.repeat(50_000)).1.events, 100_001);
    let stay: String = (0u64..100_000).map(|at| format!("1,00:00:00,allocate,{:#x},256,0x0\n", at << 9)).collect();
    let error = read_named("", format!("{HEADER}{stay}").as_bytes()).expect_err("100,000 live blocks exceed the limit");
    assert!(error.message.contains("more memory than the limit") && error.line_column.is_some(), "{error}");
    let threads: String = (0u64..100_000).map(|at| format!("{at},00:00:00,allocate failure,0x0,1,0x0\n")).collect();
    assert!(read_named("", format!("{HEADER}{threads}").as_bytes()).is_err());
}

fn field() -> impl Strategy<Value = String> {
    let words =
        ["allocate", "free", "allocate failure", "(nil)", "0x", "12:59:59.999999", "00:00:00", "", "\"", "Thread"];
    prop_oneof![
        prop::sample::select(words.to_vec()).prop_map(str::to_owned),
        any::<u64>().prop_map(|number| number.to_string()),
        (0u64..64).prop_map(|page| format!("{:#x}", page << 7)),
    ]
}

proptest! {
    #[test]
    fn random_lines_do_not_panic(lines in prop::collection::vec(prop::collection::vec(field(), 0..8), 0..60)) {
        let text: String = lines.iter().map(|fields| fields.join(",") + "\n").collect();
        let _ = read_named("", format!("{HEADER}{text}").as_bytes());
    }

    #[test]
    fn random_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = read_named("", &[HEADER.as_bytes(), &bytes].concat());
    }

    /// Replaying the events finds no more contradictions than reported, and reserved bytes never
    /// decrease.
    #[test]
    fn any_history_is_imported(rows in prop::collection::vec((any::<bool>(), 0u64..32, 1u64..900), 0..200)) {
        let line = |&(allocates, page, size): &(bool, u64, u64)| {
            let action = if allocates { "allocate" } else { "free" };
            format!("1,00:00:00,{action},{:#x},{size},0x0\n", (page + 1) << 8)
        };
        let (memory, summary) = read(&rows.iter().map(line).collect::<String>());
        let mut state = MemoryState::default();
        let mut reserved = 0;
        for event in &memory.events {
            state.apply(event);
            let now = state.device(event.device).map_or(0, |device| device.counters().reserved);
            prop_assert!(now >= reserved);
            reserved = now;
        }
        let contradictions = state.device(DeviceId(0)).map_or(0, |device| device.inconsistencies());
        prop_assert!(contradictions <= summary.contradictions, "{contradictions} of {}", summary.contradictions);
    }
}
