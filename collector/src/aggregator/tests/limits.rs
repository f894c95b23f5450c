//! Limits on what processes may push.

use super::*;

#[test]
fn definitions_beyond_the_limit_become_unknown() {
    let (mut merger, mut good, mut many) = (merger(), Program::new(1, None, 0), Program::new(2, None, 0));
    let (joined_good, joined_many) = (good.join(&mut merger, 0), many.join(&mut merger, 0));
    many.allocate(1, 4096, "early");
    let text = "x".repeat(60_000);
    for number in 0..1200 {
        many.encoder.define(&Definition::String(format!("{number} {text}")));
        many.encoder.define(&Definition::Site(Site::default()));
    }
    // Sites and strings are numbered in the order of their definitions.
    many.strings += 1200;
    many.allocate(20, 8192, "late");
    many.push(&mut merger, &joined_many, 30);
    good.allocate(30, 4096, "other");
    good.push(&mut merger, &joined_good, 40);
    merger.merge(END_NS, true);
    check_memory(&merger, &many);
    check_memory(&merger, &good);
    let recording = opened(merger.finish(END_NS));
    let names = |device: u16| {
        let device = recording.end_state().device(DeviceId(device)).expect("the device has blocks");
        device.blocks().map(|block| site_name(recording.definitions(), block.site)).collect::<Vec<_>>()
    };
    let unknown = site_name(recording.definitions(), SiteId(0));
    assert_eq!((names(0), names(1)), (vec!["early".to_owned(), unknown], vec!["other".to_owned()]));
}

#[test]
fn too_many_segments_and_blocks_are_refused() {
    let (mut merger, mut good, mut bad) = (merger(), Program::new(1, None, 0), Program::new(2, None, 0));
    let (joined_good, joined_bad) = (good.join(&mut merger, 0), bad.join(&mut merger, 0));
    good.allocate(1, 4096, "a");
    good.push(&mut merger, &joined_good, 10);
    let (stream, pool, site) = (StreamId(0), PoolKey::default_of(PoolKind::Small), SiteId(0));
    bad.event(0, EventKind::SegmentAllocated { address: 0, size: 1 << 40, stream, pool, site });
    for number in 0..1_100_000u64 {
        let address = number * 4096;
        bad.event(0, EventKind::BlockAllocated { address, size: 512, requested: 1, stream, pool, site });
    }
    let (bytes, next) = bad.chunks();
    let error = merger.push(&joined_bad, &bytes, next, START_NS + 10).expect_err("the limit is exceeded");
    assert!(error.contains("segments and blocks"), "{error}");
    merger.merge(END_NS, true);
    check_memory(&merger, &good);
    assert!(merger.output.state().devices().map(|(_, device)| device.blocks().len()).sum::<usize>() < 200_000);
}

#[test]
fn at_the_process_limit_the_longest_disconnected_is_forgotten() {
    let mut merger = merger();
    let joined: Vec<_> = (0..256).map(|number| Program::new(number, None, 0).join(&mut merger, 0)).collect();
    let new_process = Program::new(1000, None, 0).process;
    assert_eq!(merger.join(new_process.clone(), START_NS), Err(JoinError::Full));
    merger.leave(&joined[7], START_NS + 1);
    merger.leave(&joined[5], START_NS + 2);
    merger.join(new_process, START_NS + 3).expect("the process is accepted");
    let resumed = merger.join(Program::new(5, None, 0).process, START_NS + 4).expect("the process is still known");
    assert!(resumed.is_reconnect);
    assert!(merger.join(Program::new(7, None, 0).process, START_NS + 5).is_err(), "a forgotten process counts as new");
}
