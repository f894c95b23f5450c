//! Steps: recognized by spans, inferred from allocations, and memory by step.

use std::collections::HashMap;
use std::path::PathBuf;

use vramscope_insight::peak::PlateauSearch;
use vramscope_insight::spans::Marks;
use vramscope_insight::steps::{GroupsByStep, Step, StepSource, StepTable, Steps, find_steps, infer_steps};
use vramscope_trace::{
    Allocation, Annotation, AnnotationStage, Category, DeviceId, DeviceLifetimes, Encoder, Event, EventKind, Frame,
    Interner, Lifetimes, PoolKey, Recording, RecordingInfo, Replay, Sink, Site, SiteId, StackId, StreamId,
};

use crate::recordings::snapshot;

/// The only device of most test recordings.
pub(crate) const DEVICE: DeviceId = DeviceId(0);

/// Writes a small recording, event by event, 10 ns apart.
pub(crate) struct Program {
    encoder: Encoder,
    interner: Interner,
    events: u64,
    next_address: u64,
}

impl Program {
    /// Creates a program with one large segment.
    pub(crate) fn new() -> Self {
        let encoder = Encoder::new(&RecordingInfo::default());
        let mut program = Self { encoder, interner: Interner::default(), events: 0, next_address: 0 };
        let (stream, pool, site) = (StreamId(0), PoolKey::default(), SiteId(0));
        program.event(EventKind::SegmentAllocated { address: 0, size: 1 << 40, stream, pool, site });
        program
    }

    /// Records an event, 10 ns after the one before.
    fn event(&mut self, kind: EventKind) {
        self.interner.take_new().iter().for_each(|definition| self.encoder.define(definition));
        self.events += 1;
        self.encoder.event(&Event { device: DEVICE, time_ns: 10 * self.events, kind });
    }

    /// Loses a number of events.
    pub(crate) fn lose(&mut self, events: u64) {
        self.events += events;
        self.encoder.skip_to(self.events);
        let state = self.encoder.state().clone();
        self.encoder.replace_state(&state);
    }

    /// Returns the number of events so far.
    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    /// Returns the site of a function of the program.
    pub(crate) fn site(&mut self, function: &str) -> SiteId {
        self.site_of(Category::Unknown, &[("train.py", function)])
    }

    /// Returns the site with a category and these frames, file and function, outermost first.
    pub(crate) fn site_of(&mut self, category: Category, frames: &[(&str, &str)]) -> SiteId {
        let mut stack = StackId(0);
        for &(file, function) in frames {
            let (function, file) = (self.interner.string(function), self.interner.string(file));
            let frame = self.interner.frame(Frame { function, file, line: 1 });
            stack = self.interner.stack(frame, stack);
        }
        self.interner.site(Site { stack, category, ..Site::default() })
    }

    /// Allocates a block in a function and returns its address.
    pub(crate) fn allocate(&mut self, function: &str, size: u64) -> u64 {
        let site = self.site(function);
        self.allocate_at(site, size)
    }

    /// Allocates a block at a site and returns its address.
    pub(crate) fn allocate_at(&mut self, site: SiteId, size: u64) -> u64 {
        let address = self.next_address;
        self.next_address += size;
        let (stream, pool) = (StreamId(0), PoolKey::default());
        self.event(EventKind::BlockAllocated { address, size, requested: size, stream, pool, site });
        address
    }

    /// Frees a block.
    pub(crate) fn free(&mut self, address: u64) {
        self.event(EventKind::FreeRequested { address, site: SiteId(0) });
        self.event(EventKind::FreeCompleted { address, site: SiteId(0) });
    }

    /// Begins or ends a span, or marks a moment.
    pub(crate) fn mark(&mut self, stage: AnnotationStage, name: &str) {
        let name = self.interner.string(name);
        self.event(EventKind::Mark { stage, name, address: 0, site: SiteId(0) });
    }

    /// Begins a span.
    pub(crate) fn begin(&mut self, name: &str) {
        self.mark(AnnotationStage::Begin, name);
    }

    /// Ends a span.
    pub(crate) fn end(&mut self, name: &str) {
        self.mark(AnnotationStage::End, name);
    }

    /// Returns the recording.
    pub(crate) fn finish(mut self) -> Recording {
        self.encoder.flush();
        let mut recording = Recording::new();
        for chunk in self.encoder.take_output() {
            recording.push(&chunk.bytes).expect("the encoder writes valid chunks");
        }
        recording
    }
}

/// A recording with what the analyses need of it.
pub(crate) struct Analysed {
    pub(crate) recording: Recording,
    pub(crate) lifetimes: Lifetimes,
    pub(crate) marks: Marks,
}

impl Analysed {
    pub(crate) fn new(recording: Recording) -> Self {
        let lifetimes = Lifetimes::from_recording(&recording).expect("the recording can be read");
        let mut marks = Marks::default();
        marks.update(&recording);
        Self { recording, lifetimes, marks }
    }

    /// Reads a recording of the folder `shared` beside the checkout, or returns `None` if it is
    /// missing.
    pub(crate) fn shared(name: &str) -> Option<Self> {
        if !PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared").join(name).is_file() {
            println!("SKIPPED: {name} is not in ../shared");
            return None;
        }
        // Relative to the folder `tests/data`.
        Some(Self::new(snapshot(&format!("../../../shared/{name}"))))
    }

    /// Returns the lifetimes of a device, which must have events.
    pub(crate) fn device(&self, device: DeviceId) -> &DeviceLifetimes {
        self.lifetimes.device(device).expect("the device has events")
    }

    /// Returns the steps of [`DEVICE`].
    pub(crate) fn steps(&self, chosen_span: Option<&str>) -> Steps {
        find_steps(&self.recording, &self.marks, DEVICE, self.device(DEVICE), chosen_span, |event| 10 * event)
    }

    /// Returns the steps of [`DEVICE`] without regard to spans.
    pub(crate) fn inferred(&self) -> Steps {
        infer_steps(&self.recording, self.device(DEVICE), |event| 10 * event)
    }
}

/// Groups allocations by site.
pub(crate) fn by_site(one: &Allocation) -> u32 {
    one.site.0
}

/// Returns the memory of each step.
pub(crate) fn step_table(lifetimes: &DeviceLifetimes, steps: &Steps) -> StepTable {
    let mut table = StepTable::new(steps);
    while !table.step(lifetimes) {}
    table
}

/// Returns a complete comparison of steps by site.
pub(crate) fn groups_by_step(lifetimes: &DeviceLifetimes, steps: &Steps, warm_up: usize) -> GroupsByStep {
    let mut groups = GroupsByStep::new(steps, warm_up);
    while !groups.step(lifetimes, by_site) {}
    groups
}

/// Runs steps that allocate at four lines and free all of it, each between calls of `around`.
fn train(program: &mut Program, steps: u64, mut around: impl FnMut(&mut Program, u64, bool)) {
    let weights = program.allocate("init", 4096);
    for number in 0..steps {
        around(program, number, true);
        let blocks = ["input", "forward", "forward", "loss", "backward"].map(|line| program.allocate(line, 1024));
        blocks.into_iter().for_each(|address| program.free(address));
        around(program, number, false);
    }
    program.free(weights);
}

/// Checks the steps of a program whose steps are surrounded by `around`.
#[track_caller]
fn check_source(chosen: Option<&str>, around: impl FnMut(&mut Program, u64, bool), name: &str, numbers: &[u64]) {
    let mut program = Program::new();
    train(&mut program, 4, around);
    let steps = Analysed::new(program.finish()).steps(chosen);
    assert_eq!(steps.source(), Some(&StepSource::Span(name.to_owned())));
    let found: Vec<u64> = steps.as_slice().iter().map(|step| step.number).collect();
    assert_eq!(found, numbers);
}

#[test]
fn spans_are_recognized_in_order_of_precedence() {
    // Spans of every kind, outermost first.
    let all = |program: &mut Program, number: u64, begins: bool| {
        let epoch = format!("epoch {number}");
        let profiler = format!("ProfilerStep#{}", number + 5);
        let names = [epoch.as_str(), "step", &format!("iteration {number}"), &profiler];
        if begins {
            names.iter().for_each(|name| program.begin(name));
        } else {
            program.begin("Optimizer.step#Adam.step");
            program.end("Optimizer.step#Adam.step");
            names.iter().rev().for_each(|name| program.end(name));
        }
    };
    check_source(None, all, "ProfilerStep#N", &[5, 6, 7, 8]);
    check_source(Some("epoch"), all, "epoch N", &[0, 1, 2, 3]);
    check_source(Some("step"), all, "step", &[1, 2, 3, 4]);
    let only = |base: &'static str, numbered: bool| {
        move |program: &mut Program, number: u64, begins: bool| {
            let name = if numbered { format!("{base}{number}") } else { base.to_owned() };
            program.mark(if begins { AnnotationStage::Begin } else { AnnotationStage::End }, &name);
        }
    };
    check_source(None, only("step ", true), "step N", &[0, 1, 2, 3]);
    check_source(None, only("train_step", false), "train_step", &[1, 2, 3, 4]);
    check_source(None, only("epoch ", true), "epoch N", &[0, 1, 2, 3]);
    let moments = |program: &mut Program, number: u64, begins: bool| {
        if begins {
            program.mark(AnnotationStage::Instant, &format!("step {number}"));
        }
    };
    check_source(None, moments, "step N", &[0, 1, 2, 3]);
}

#[test]
fn mark_at_the_end_of_the_recording_begins_no_step() {
    let mut program = Program::new();
    for number in 0..4 {
        program.allocate("forward", 512);
        program.mark(AnnotationStage::Instant, &format!("step {number}"));
    }
    let steps = Analysed::new(program.finish()).steps(None);
    let numbers: Vec<u64> = steps.as_slice().iter().map(|step| step.number).collect();
    assert_eq!(numbers, [0, 1, 2]);
    assert!(steps.as_slice().iter().all(|step| step.event_numbers().count() == 2));
}

#[test]
fn optimizer_ends_a_step_once_gradients_are_cleared() {
    let mut program = Program::new();
    let mut expected = Vec::new();
    for step in 0..4 {
        let activation = program.allocate("forward", 512);
        let gradient = program.allocate("backward", 512);
        program.free(activation);
        // Two optimizers.
        for name in ["Optimizer.step#Adam.step", "Optimizer.step#SGD.step"] {
            program.begin(name);
            program.end(name);
        }
        if step % 2 == 0 {
            program.begin("Optimizer.zero_grad#Adam.zero_grad");
            program.free(gradient);
            program.end("Optimizer.zero_grad#Adam.zero_grad");
            // A mark belongs to the moment before its own event.
            expected.push(program.events() - 1);
        } else {
            expected.push(program.events() - 1);
            program.allocate("weights", 512);
            program.free(gradient);
        }
    }
    let steps = Analysed::new(program.finish()).steps(None);
    let ends: Vec<u64> = steps.as_slice().iter().map(|step| step.to_event).collect();
    assert_eq!(ends, expected);
    assert!(steps.as_slice().windows(2).all(|pair| pair[0].to_event == pair[1].from_event));
}

#[test]
fn unknown_names_are_no_steps() {
    let mut program = Program::new();
    for _ in 0..2 {
        program.begin("forward");
        let address = program.allocate("forward", 512);
        program.free(address);
        program.end("forward");
    }
    let analysed = Analysed::new(program.finish());
    assert_eq!(analysed.steps(None), Steps::default());
    assert_eq!(analysed.steps(Some("forward")).len(), 2);
}

#[test]
fn steps_are_inferred_from_a_repeating_sequence() {
    let mut program = Program::new();
    let mut begins = Vec::new();
    train(&mut program, 8, |program, _, begin| begins.extend(begin.then_some(program.events())));
    let steps = Analysed::new(program.finish()).steps(None);
    let found: Vec<u64> = steps.as_slice().iter().map(|step| step.from_event).collect();
    assert_eq!(found, begins);
    assert!(matches!(steps.source(), Some(StepSource::Inferred { regularity_percent: 100, .. })));
}

#[test]
fn irregular_allocations_have_no_steps() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut program = Program::new();
    for _ in 0..2000 {
        let line = format!("line {}", random.u32(0..12));
        let address = program.allocate(&line, 512 * random.u64(1..9));
        program.free(address);
    }
    assert_eq!(Analysed::new(program.finish()).inferred(), Steps::default());
}

/// Checks that the inferred steps of a snapshot contain the end of one optimizer step each.
fn check_inferred(analysed: &Analysed, name: &str) {
    let (inferred, steps) = (analysed.inferred(), analysed.steps(None));
    println!("{name}: inferred {} of {} steps, {:?}", inferred.len(), steps.len(), inferred.source());
    assert!(matches!(steps.source(), Some(StepSource::Span(_))), "{name}");
    let ends = |step: &Step| steps.as_slice().iter().filter(|one| step.event_numbers().contains(&one.to_event)).count();
    // The last optimizer step may end after the last allocation.
    assert!(inferred.len() + 1 >= steps.len() && inferred.len() <= steps.len(), "{name}");
    assert!(inferred.as_slice().iter().skip(1).all(|step| ends(step) == 1), "{name}");
}

#[test]
fn inferred_steps_match_the_optimizer() {
    check_inferred(&Analysed::new(snapshot("mlp_train.pickle.zst")), "mlp_train");
    for name in ["snapshots/resnet50_train", "snapshots/gpt_varlen", "labelled/healthy_train"] {
        if let Some(analysed) = Analysed::shared(&format!("{name}.pickle.zst")) {
            check_inferred(&analysed, name);
        }
    }
    if let Some(analysed) = Analysed::shared("labelled/leak_outputs.pickle.zst") {
        let steps = analysed.steps(None);
        assert!(matches!(steps.source(), Some(StepSource::Inferred { .. })));
        assert_eq!(steps.len(), 14, "the program's loop has 14 iterations");
    }
}

/// Returns arbitrary steps between two moments, some of them with events between.
fn arbitrary_steps(random: &mut fastrand::Rng, from_event: u64, to_event: u64) -> Steps {
    let mut moments: Vec<u64> = (0..24).map(|_| random.u64(from_event..=to_event)).collect();
    moments.sort_unstable();
    let steps = moments.windows(2).zip(0..).filter(|(_, number)| number % 5 != 3).map(|(pair, number)| Step {
        number,
        from_event: pair[0],
        to_event: pair[1],
        from_ns: 0,
        to_ns: 0,
    });
    Steps::new(StepSource::Span("step".to_owned()), steps)
}

/// Compares memory by step with the states and events of a recording.
fn check_memory_by_step(recording: Recording, device: DeviceId) {
    let analysed = Analysed::new(recording);
    let recording = &analysed.recording;
    let lifetimes = analysed.device(device);
    let mut random = fastrand::Rng::with_seed(1);
    let steps = arbitrary_steps(&mut random, recording.first_event(), recording.end_event());
    assert!(steps.len() > 5);
    let table = step_table(lifetimes, &steps);
    let mut groups = GroupsByStep::of(&steps, steps.as_slice().to_vec());
    while !groups.step(lifetimes, by_site) {}
    let rows = groups.rows();
    let mut replay = Replay::new();
    let mut events = Replay::new();
    let mut counters = |event: u64| {
        let state = replay.seek(recording, event).expect("the recording can be read");
        state.device(device).map(|device| device.counters()).unwrap_or_default()
    };
    let mut before = counters(steps.as_slice()[0].from_event).active;
    for (index, row) in table.rows().iter().enumerate() {
        let mut allocated: HashMap<SiteId, (u64, u64)> = HashMap::new();
        let (mut peak, mut freed) = ((0, row.step.from_event + 1), 0);
        for event in row.step.event_numbers() {
            let bytes = counters(event).allocated;
            if bytes > peak.0 {
                peak = (bytes, event);
            }
            let happened = events.event(recording, event - 1).expect("the recording can be read");
            let Some(happened) = happened.filter(|one| one.device == device) else { continue };
            match happened.kind {
                EventKind::BlockAllocated { size, site, .. } => {
                    let sums = allocated.entry(site).or_default();
                    (sums.0, sums.1) = (sums.0 + 1, sums.1 + size);
                }
                EventKind::FreeRequested { .. } => freed += 1,
                _ => {}
            }
        }
        let end = counters(row.step.to_event);
        assert_eq!((row.peak_bytes, row.peak_event), peak, "peak of {:?}", row.step);
        assert_eq!((row.live_bytes, row.live_bytes - row.pending_bytes), (end.active, end.allocated));
        assert_eq!(row.growth_bytes, end.active as i64 - before as i64);
        assert_eq!(row.allocations, allocated.values().map(|sums| sums.0).sum::<u64>());
        assert_eq!(row.allocated_bytes, allocated.values().map(|sums| sums.1).sum::<u64>());
        assert_eq!(row.frees, freed);
        before = end.active;
        let cells = rows.iter().map(|row| (row.group, row.steps[index]));
        let (mut live, mut pending) = (0, 0);
        for (group, cell) in cells {
            live += cell.live_bytes;
            pending += cell.pending_bytes;
            let sums = allocated.get(&SiteId(group)).copied().unwrap_or_default();
            assert_eq!((cell.allocations, cell.allocated_bytes), sums);
        }
        assert_eq!((live, live - pending), (end.active, end.allocated), "live at the end of {:?}", row.step);
    }
}

#[test]
fn memory_by_step_equals_the_replay() {
    check_memory_by_step(snapshot("mlp_train.pickle.zst"), DEVICE);
    check_memory_by_step(snapshot("streams.pickle.gz"), DEVICE);
    check_memory_by_step(snapshot("ring.pickle.zst"), DEVICE);
    check_memory_by_step(snapshot("two_devices.pickle.gz"), DeviceId(1));
}

#[test]
fn lost_events_take_no_time() {
    let mut program = Program::new();
    let mut expected = Vec::new();
    for number in 0..3 {
        program.begin("step");
        let address = program.allocate("forward", 512 << number);
        program.lose(1 << 50);
        program.free(address);
        program.end("step");
        expected.push((512 << number, 512 << number));
    }
    let analysed = Analysed::new(program.finish());
    let steps = analysed.steps(None);
    let table = step_table(analysed.device(DEVICE), &steps);
    let found: Vec<(u64, u64)> = table.rows().iter().map(|row| (row.peak_bytes, row.freed_bytes)).collect();
    assert_eq!(found, expected);
    let mut search = PlateauSearch::new(0, analysed.recording.end_event(), 1, None);
    let found = std::iter::repeat_with(|| search.step(analysed.device(DEVICE))).flatten().next();
    assert_eq!(found.and_then(|found| found.next).map(|next| next.bytes), Some(1024));
}

#[test]
fn annotations_outside_of_the_recording_are_clamped() {
    let mut program = Program::new();
    let annotate = |program: &mut Program, at_event: u64, stage| {
        let name = program.interner.string("step");
        program.encoder.annotation(&Annotation { device: DEVICE, time_ns: at_event, at_event, stage, name });
    };
    annotate(&mut program, 1, AnnotationStage::Begin);
    program.allocate("forward", 512);
    annotate(&mut program, u64::MAX, AnnotationStage::End);
    let analysed = Analysed::new(program.finish());
    let steps = analysed.steps(None);
    assert_eq!(steps.as_slice().iter().map(|step| (step.from_event, step.to_event)).collect::<Vec<_>>(), [(1, 2)]);
    assert_eq!(step_table(analysed.device(DEVICE), &steps).rows()[0].peak_bytes, 512);
}

#[test]
fn spread_steps_include_first_and_last() {
    let steps = (0..100).map(|number| Step { number, from_event: number, to_event: number + 1, from_ns: 0, to_ns: 0 });
    let steps = Steps::new(StepSource::Span("step".to_owned()), steps);
    let numbers = |warm_up, count| steps.spread(warm_up, count).iter().map(|step| step.number).collect::<Vec<_>>();
    assert_eq!(numbers(0, 3), [0, 49, 99]);
    assert_eq!(numbers(90, 4), [90, 93, 96, 99]);
    assert_eq!(numbers(98, 64), [98, 99]);
    assert_eq!(numbers(0, 1), [99]);
    assert!(numbers(200, 3).is_empty() && numbers(0, 0).is_empty());
    assert_eq!(steps.position_of(0), None);
    assert_eq!((steps.position_of(1), steps.position_of(100), steps.position_of(101)), (Some(0), Some(99), None));
}
