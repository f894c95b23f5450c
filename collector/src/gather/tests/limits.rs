//! How much there may be of all.

use super::*;

#[test]
fn what_has_more_names_than_there_is_room_for_goes_on_without() {
    let (mut hub, mut good, mut many) = (hub(), Program::new(1, None, 0), Program::new(2, None, 0));
    let (joined_good, joined_many) = (good.join(&mut hub, 0), many.join(&mut hub, 0));
    many.allocate(1, 4096, "early");
    let text = "x".repeat(60_000);
    for number in 0..1200 {
        many.encoder.define(&Definition::String(format!("{number} {text}")));
        many.encoder.define(&Definition::Site(Site::default()));
    }
    // Sites go by how many there were of them, and so do strings.
    many.strings += 1200;
    many.allocate(20, 8192, "late");
    many.push(&mut hub, &joined_many, 30);
    good.allocate(30, 4096, "other");
    good.push(&mut hub, &joined_good, 40);
    hub.turn(LATE_NS, true);
    check_memory(&hub, &many);
    check_memory(&hub, &good);
    let recording = opened(hub.finish(LATE_NS));
    let names = |device: u16| {
        let device = recording.end_state().device(DeviceId(device)).expect("something is there");
        device.blocks().map(|block| site_name(recording.definitions(), block.site)).collect::<Vec<_>>()
    };
    let unknown = site_name(recording.definitions(), SiteId(0));
    assert_eq!((names(0), names(1)), (vec!["early".to_owned(), unknown], vec!["other".to_owned()]));
}

#[test]
fn memory_of_more_pieces_than_a_state_may_have_is_refused() {
    let (mut hub, mut good, mut bad) = (hub(), Program::new(1, None, 0), Program::new(2, None, 0));
    let (joined_good, joined_bad) = (good.join(&mut hub, 0), bad.join(&mut hub, 0));
    good.allocate(1, 4096, "a");
    good.push(&mut hub, &joined_good, 10);
    let (stream, pool, site) = (StreamId(0), PoolKey::default_of(PoolKind::Small), SiteId(0));
    bad.event(0, EventKind::SegmentAllocated { address: 0, size: 1 << 40, stream, pool, site });
    for number in 0..1_100_000u64 {
        let address = number * 4096;
        bad.event(0, EventKind::BlockAllocated { address, size: 512, requested: 1, stream, pool, site });
    }
    let (bytes, next) = bad.chunks();
    let error = hub.take(&joined_bad, &bytes, next, BEGIN_NS + 10).expect_err("it is too much");
    assert!(error.contains("segments and blocks"), "{error}");
    hub.turn(LATE_NS, true);
    check_memory(&hub, &good);
    assert!(hub.output.state().devices().map(|(_, device)| device.blocks().len()).sum::<usize>() < 200_000);
}

#[test]
fn so_many_processes_may_come_and_the_oldest_that_is_gone_makes_room() {
    let mut hub = hub();
    let joined: Vec<_> = (0..256).map(|number| Program::new(number, None, 0).join(&mut hub, 0)).collect();
    let one_more = Program::new(1000, None, 0).process;
    assert!(hub.join(one_more.clone(), BEGIN_NS).is_err());
    hub.leave(&joined[7], BEGIN_NS + 1);
    hub.leave(&joined[5], BEGIN_NS + 2);
    hub.join(one_more, BEGIN_NS + 3).expect("there is room");
    let resumed = hub.join(Program::new(5, None, 0).process, BEGIN_NS + 4).expect("it is known");
    assert!(resumed.is_back);
    assert!(hub.join(Program::new(7, None, 0).process, BEGIN_NS + 5).is_err(), "it is forgotten, and there is no room");
}
