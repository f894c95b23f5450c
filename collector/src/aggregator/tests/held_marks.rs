//! Marks of processes that have several devices and use one of them.

use super::*;

/// Creates a program with two devices.
fn program_with_two_devices() -> Program {
    let mut program = Program::new(1, Some(3), 0);
    let device = |device| DeviceInfo { device, name: "H200".to_owned(), ..DeviceInfo::default() };
    let devices = vec![device(0), device(1)];
    program.encoder = Encoder::new(&RecordingInfo { epoch_unix_ns: START_NS, devices, ..RecordingInfo::default() });
    program
}

/// Records a mark on both devices.
fn mark_both(program: &mut Program, time_ns: u64) {
    let (stage, name) = (AnnotationStage::Instant, StringId(0));
    for device in [DeviceId(0), DeviceId(1)] {
        let kind = EventKind::Mark { stage, name, address: 0, site: SiteId(0) };
        program.encoder.event(&Event { device, time_ns, kind });
    }
}

#[test]
fn marks_do_not_show_a_device_without_events() {
    let (mut program, mut merger) = (program_with_two_devices(), merger());
    let joined = program.join(&mut merger, 0);
    mark_both(&mut program, 1_000);
    mark_both(&mut program, 2_000);
    program.push(&mut merger, &joined, 3_000);
    program.allocate(4_000, 4096, "first");
    mark_both(&mut program, 5_000);
    program.push(&mut merger, &joined, 6_000);

    // The marks before the first event are in the recording, too.
    assert_eq!(order(merger.finish(END_NS)), [(3, 1_000), (3, 2_000), (3, 4_000), (3, 4_000), (3, 5_000)]);
}

#[test]
fn full_states_and_gaps_do_not_show_a_device_without_memory() {
    let (mut program, mut merger) = (program_with_two_devices(), merger());
    let joined = program.join(&mut merger, 0);
    program.allocate(1_000, 4096, "first");
    mark_both(&mut program, 2_000);
    program.encoder.event(&Event { device: DeviceId(1), time_ns: 3_000, kind: EventKind::Gap { lost: 1 } });
    let state = program.encoder.state().clone();
    assert!(state.device(DeviceId(1)).is_some(), "the mark made it part of the state");
    program.encoder.replace_state(&state);
    program.push(&mut merger, &joined, 4_000);
    assert_eq!(merger.devices(&joined).len(), 1);
}
