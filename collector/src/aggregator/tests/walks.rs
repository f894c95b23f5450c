//! Property tests: merging random programs and random bytes.

use proptest::collection::vec;
use proptest::prelude::*;
use vramscope_trace::{EventKind, Sink, SiteId};

use super::{END_NS, Program, START_NS, check_memory, merger, opened};

/// One step of a simulated program.
#[derive(Clone, Debug)]
enum Step {
    Allocate(u64),
    Free(u64),
    FreeSegment(u64),
    Sample(u64),
    /// The recorder writes a full state.
    FullState,
    /// The events of this many steps are skipped, as for a slow viewer.
    Skip(u8),
    /// The events recorded so far are pushed.
    Push,
}

/// Generates a random step of a simulated program, including steps that are invalid.
fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..40u64).prop_map(Step::Allocate),
        3 => (0..40u64).prop_map(Step::Free),
        1 => (0..40u64).prop_map(Step::FreeSegment),
        1 => any::<u64>().prop_map(Step::Sample),
        1 => Just(Step::FullState),
        1 => (1..5u8).prop_map(Step::Skip),
        3 => Just(Step::Push),
    ]
}

/// Records the events of a step at `time_ns`, even if they are invalid at this point.
fn run_step(program: &mut Program, step: &Step, time_ns: u64) {
    let site = SiteId(0);
    match *step {
        Step::Allocate(slot) => program.allocate(time_ns, slot * 1024, &format!("scope {}", slot % 7)),
        Step::Free(slot) => {
            program.event(time_ns, EventKind::FreeRequested { address: slot * 1024, site });
            program.event(time_ns, EventKind::FreeCompleted { address: slot * 1024, site });
        }
        Step::FreeSegment(slot) => {
            program.event(time_ns, EventKind::SegmentFreed { address: slot * 1024, size: 1024, site });
        }
        Step::Sample(free) => {
            program.event(time_ns, EventKind::MemorySample { used_by_context: 1, used_by_others: 2, free });
        }
        Step::FullState | Step::Skip(_) | Step::Push => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Merges random programs (`walks`, each a list of steps with a time jitter in nanoseconds) and
    /// compares the merged devices with the processes' own. `ends` says whether the processes end
    /// their recordings.
    #[test]
    fn merged_devices_equal_those_of_the_processes(
        walks in vec(vec((any_step(), 0..1000u64), 0..60), 1..4),
        ends in any::<bool>(),
    ) {
        let mut merger = merger();
        let mut programs: Vec<_> =
            (0..walks.len() as u32).map(|n| Program::new(n, Some(n), u64::from(n) * 777)).collect();
        let joined: Vec<_> = programs.iter().map(|program| program.join(&mut merger, 0)).collect();
        let mut skipping = vec![0; programs.len()];
        let longest = walks.iter().map(Vec::len).max().unwrap_or(0);
        for (at, number) in (0..longest).flat_map(|at| (0..walks.len()).map(move |number| (at, number))) {
            let Some((step, jitter)) = walks[number].get(at) else { continue };
            let now_ns = at as u64 * 1000;
            let program = &mut programs[number];
            run_step(program, step, now_ns + jitter);
            if skipping[number] > 0 {
                skipping[number] -= 1;
                if skipping[number] == 0 {
                    // What a slow viewer receives: definitions and a full state, without the
                    // skipped events.
                    let state = program.encoder.state().clone();
                    program.encoder.replace_state(&state);
                    let lasting = [vramscope_trace::ChunkKind::Header, vramscope_trace::ChunkKind::Definitions];
                    let mut chunks = program.encoder.take_output();
                    let last = chunks.pop();
                    chunks.retain(|chunk| lasting.contains(&chunk.kind));
                    let bytes: Vec<u8> = chunks.into_iter().chain(last).flat_map(|chunk| chunk.bytes).collect();
                    merger.push(&joined[number], &bytes, 1, START_NS + now_ns).expect("valid chunks");
                }
                continue;
            }
            match step {
                Step::FullState => {
                    let state = program.encoder.state().clone();
                    program.encoder.replace_state(&state);
                }
                Step::Skip(steps) => {
                    program.push(&mut merger, &joined[number], now_ns);
                    skipping[number] = *steps;
                }
                Step::Push => program.push(&mut merger, &joined[number], now_ns),
                _ => {}
            }
            merger.merge(START_NS + now_ns, false);
        }
        for (number, program) in programs.iter_mut().enumerate() {
            if skipping[number] == 0 {
                program.push(&mut merger, &joined[number], 1_000_000);
            }
            if ends {
                merger.end(&joined[number], START_NS + 1_000_000);
            }
        }
        merger.merge(END_NS, true);
        for (number, program) in programs.iter().enumerate() {
            let is_comparable = skipping[number] == 0 && program.encoder.state().devices().len() > 0;
            if is_comparable && program.encoder.state().event() > 0 {
                check_memory(&merger, program);
            }
        }
        let state = merger.output.state().clone();
        let recording = opened(merger.finish(END_NS));
        prop_assert_eq!(vramscope_trace::digest(recording.end_state()), vramscope_trace::digest(&state));
    }

    /// Pushes a valid recording, truncated to `cut` bytes, in which `bytes` replace a part from
    /// `at` on.
    #[test]
    fn random_bytes_never_panic(
        bytes in vec(any::<u8>(), 0..300),
        cut in 0..400usize,
        at in any::<prop::sample::Index>(),
    ) {
        let (mut merger, mut program) = (merger(), Program::new(1, None, 0));
        let joined = program.join(&mut merger, 0);
        program.allocate(1, 4096, "a");
        let (mut bytes_to_push, next) = program.chunks();
        bytes_to_push.truncate(cut.max(1));
        let at = at.index(bytes_to_push.len());
        bytes_to_push.splice(at..(at + bytes.len()).min(bytes_to_push.len()), bytes);
        // The result may be valid or not.
        let _ = merger.push(&joined, &bytes_to_push, next, START_NS + 10);
        merger.leave(&joined, START_NS + 20);
        opened(merger.finish(END_NS));
    }
}
