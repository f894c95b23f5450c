//! Programs that do anything, put together.

use proptest::collection::vec;
use proptest::prelude::*;
use vramscope_trace::{EventKind, Sink, SiteId};

use super::{BEGIN_NS, LATE_NS, Program, check_memory, hub, opened};

/// One thing that a little program does.
#[derive(Clone, Debug)]
enum Step {
    Allocate(u64),
    Free(u64),
    FreeSegment(u64),
    Sample(u64),
    /// The recorder's own full state.
    State,
    /// The program is not seen for so many steps.
    Miss(u8),
    /// What is recorded is pushed.
    Push,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..40u64).prop_map(Step::Allocate),
        3 => (0..40u64).prop_map(Step::Free),
        1 => (0..40u64).prop_map(Step::FreeSegment),
        1 => any::<u64>().prop_map(Step::Sample),
        1 => Just(Step::State),
        1 => (1..5u8).prop_map(Step::Miss),
        3 => Just(Step::Push),
    ]
}

/// Does a step, if it makes sense now or not.
fn walk(program: &mut Program, step: &Step, time_ns: u64) {
    let site = SiteId(0);
    match *step {
        Step::Allocate(place) => program.allocate(time_ns, place * 1024, &format!("place {}", place % 7)),
        Step::Free(place) => {
            program.event(time_ns, EventKind::FreeRequested { address: place * 1024, site });
            program.event(time_ns, EventKind::FreeCompleted { address: place * 1024, site });
        }
        Step::FreeSegment(place) => {
            program.event(time_ns, EventKind::SegmentFreed { address: place * 1024, size: 1024, site });
        }
        Step::Sample(free) => {
            program.event(time_ns, EventKind::MemorySample { used_by_context: 1, used_by_others: 2, free });
        }
        Step::State | Step::Miss(_) | Step::Push => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn in_the_end_every_device_is_as_its_process_has_it(
        walks in vec(vec((any_step(), 0..1000u64), 0..60), 1..4),
        ends in any::<bool>(),
    ) {
        let mut hub = hub();
        let mut programs: Vec<_> =
            (0..walks.len() as u32).map(|n| Program::new(n, Some(n), u64::from(n) * 777)).collect();
        let joined: Vec<_> = programs.iter().map(|program| program.join(&mut hub, 0)).collect();
        let mut missing = vec![0; programs.len()];
        let longest = walks.iter().map(Vec::len).max().unwrap_or(0);
        for (at, number) in (0..longest).flat_map(|at| (0..walks.len()).map(move |number| (at, number))) {
            let Some((step, jitter)) = walks[number].get(at) else { continue };
            let now_ns = at as u64 * 1000;
            let program = &mut programs[number];
            walk(program, step, now_ns + jitter);
            if missing[number] > 0 {
                missing[number] -= 1;
                if missing[number] == 0 {
                    // A viewer that was moved on: what it lacks is left out, but for the definitions.
                    let state = program.encoder.state().clone();
                    program.encoder.full_state(&state);
                    let lasting = [vramscope_trace::ChunkKind::Header, vramscope_trace::ChunkKind::Definitions];
                    let mut chunks = program.encoder.take_output();
                    let last = chunks.pop();
                    chunks.retain(|chunk| lasting.contains(&chunk.kind));
                    let bytes: Vec<u8> = chunks.into_iter().chain(last).flat_map(|chunk| chunk.bytes).collect();
                    hub.take(&joined[number], &bytes, 1, BEGIN_NS + now_ns).expect("a recording");
                }
                continue;
            }
            match step {
                Step::State => {
                    let state = program.encoder.state().clone();
                    program.encoder.full_state(&state);
                }
                Step::Miss(steps) => {
                    program.push(&mut hub, &joined[number], now_ns);
                    missing[number] = *steps;
                }
                Step::Push => program.push(&mut hub, &joined[number], now_ns),
                _ => {}
            }
            hub.turn(BEGIN_NS + now_ns, false);
        }
        for (number, program) in programs.iter_mut().enumerate() {
            if missing[number] == 0 {
                program.push(&mut hub, &joined[number], 1_000_000);
            }
            if ends {
                hub.end(&joined[number], BEGIN_NS + 1_000_000);
            }
        }
        hub.turn(LATE_NS, true);
        for (number, program) in programs.iter().enumerate() {
            let is_there = missing[number] == 0 && program.encoder.state().devices().len() > 0;
            if is_there && program.encoder.state().event() > 0 {
                check_memory(&hub, program);
            }
        }
        let state = hub.output.state().clone();
        let recording = opened(hub.finish(LATE_NS));
        prop_assert_eq!(vramscope_trace::digest(recording.end_state()), vramscope_trace::digest(&state));
    }

    #[test]
    fn no_bytes_break_the_hub(bytes in vec(any::<u8>(), 0..300), cut in 0..400usize, at in any::<prop::sample::Index>()) {
        let (mut hub, mut program) = (hub(), Program::new(1, None, 0));
        let joined = program.join(&mut hub, 0);
        program.allocate(1, 4096, "a");
        let (mut whole, next) = program.chunks();
        whole.truncate(cut.max(1));
        let at = at.index(whole.len());
        whole.splice(at..(at + bytes.len()).min(whole.len()), bytes);
        // Whether it is still a recording or not.
        let _ = hub.take(&joined, &whole, next, BEGIN_NS + 10);
        hub.leave(&joined, BEGIN_NS + 20);
        opened(hub.finish(LATE_NS));
    }
}
