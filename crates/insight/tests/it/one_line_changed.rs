//! Pairs of programs that differ in one line: the comparison names that line first.
//!
//! The programs are generated: parameters, a forward pass whose results a backward pass frees, an
//! optimizer with state, and steps. In the second version lines have moved, a function has another
//! name, and one line is changed; shapes that follow from it change, too. In every third pair the
//! sizes of the data vary by chance.

use std::collections::BTreeMap;

use fastrand::Rng;
use vramscope_insight::comparison::{DeviceComparison, Moment, Side, SiteChange, compare};
use vramscope_insight::history::History;
use vramscope_pool::{Origin, Pool, Settings, SimulatedDevice};
use vramscope_trace::{
    DeviceId, Encoder, Frame, Interner, PerRecording, Recording, RecordingInfo, Sink, Site, SiteId, StackId, StreamId,
};

/// Number of pairs of programs.
const PAIRS: u64 = 240;
/// Number of training steps of each program.
const STEPS: usize = 6;
const STREAM: StreamId = StreamId(0);

/// What one line of the forward pass does.
#[derive(Clone, Debug)]
struct Line {
    number: u32,
    is_in_helper: bool,
    /// The function of the library that it calls.
    calls: &'static str,
    /// Bytes of its result in each step.
    bytes: u64,
    /// Bytes of its weights, with a line in `__init__`; 0 for none.
    weight_bytes: u64,
    /// The line in `__init__` that creates the weights.
    weight_line: u32,
    lifetime: Lifetime,
}

/// When the result of a line is freed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lifetime {
    /// Before the next line.
    Temporary,
    /// In the backward pass.
    Backward,
    /// Never: it is kept in a list.
    Forever,
}

/// A program: the lines of its functions in order.
#[derive(Clone, Debug)]
struct Program {
    lines: Vec<Line>,
    /// Name of the function that some of the lines are in.
    helper: &'static str,
    main_line: u32,
    optimizer_line: u32,
    /// Largest random change of the size of data, in percent.
    noise_percent: u64,
    noise_seed: u64,
}

/// How one line is changed.
#[derive(Clone, Copy, Debug)]
enum Edit {
    LargerResult,
    SmallerResult,
    LargerWeight,
    KeptUntilBackward,
    KeptForever,
    AnotherFunction,
    NewLine,
    RemovedLine,
}

const EDITS: [Edit; 8] = [
    Edit::LargerResult,
    Edit::SmallerResult,
    Edit::LargerWeight,
    Edit::KeptUntilBackward,
    Edit::KeptForever,
    Edit::AnotherFunction,
    Edit::NewLine,
    Edit::RemovedLine,
];

impl Program {
    /// Generates a program.
    fn random(random: &mut Rng) -> Self {
        let count = random.u32(6..16);
        let (mut number, mut weight_line) = (40, 10);
        let lines = (0..count).map(|index| {
            number += random.u32(1..4);
            weight_line += random.u32(1..3);
            let has_weight = random.bool();
            let lifetime = if random.u32(..4) == 0 { Lifetime::Temporary } else { Lifetime::Backward };
            Line {
                number,
                is_in_helper: index * 2 >= count,
                calls: if has_weight { "linear" } else { random.choice(["relu", "dropout", "softmax"]).expect("some") },
                bytes: random.u64(64..4096) << 10,
                weight_bytes: if has_weight { random.u64(64..2048) << 10 } else { 0 },
                weight_line,
                lifetime,
            }
        });
        let lines: Vec<Line> = lines.collect();
        Self { lines, helper: "block", main_line: 90, optimizer_line: 99, noise_percent: 0, noise_seed: random.u64(..) }
    }

    /// Moves lines, as if others had been inserted at three places. Returns the new number of the
    /// line `number`.
    fn move_lines(&mut self, mut number: u32, random: &mut Rng) -> u32 {
        for _ in 0..3 {
            let (from, by) = (random.u32(1..100), random.u32(1..6));
            let moved = |line: &mut u32| *line += if *line >= from { by } else { 0 };
            for line in &mut self.lines {
                moved(&mut line.number);
                moved(&mut line.weight_line);
            }
            moved(&mut self.main_line);
            moved(&mut self.optimizer_line);
            moved(&mut number);
        }
        number
    }

    /// Returns the indexes of the lines to which `edit` can be applied.
    fn suitable_lines(&self, edit: Edit) -> Vec<usize> {
        let suits = |line: &Line| match edit {
            Edit::LargerWeight => line.weight_bytes > 0,
            Edit::KeptUntilBackward => line.lifetime == Lifetime::Temporary,
            Edit::AnotherFunction | Edit::RemovedLine => line.weight_bytes == 0,
            _ => line.lifetime == Lifetime::Backward,
        };
        // It makes no difference when the last result is freed.
        (0..self.lines.len() - 1).filter(|&index| suits(&self.lines[index])).collect()
    }

    /// Changes one line; returns its number, or the number that a removed line had.
    fn edit(&mut self, edit: Edit, random: &mut Rng) -> u32 {
        let index = random.choice(self.suitable_lines(edit)).expect("the caller chose a suitable program");
        let line = &mut self.lines[index];
        let mut named = line.number;
        match edit {
            Edit::LargerResult => line.bytes = line.bytes * random.u64(15..40) / 10,
            Edit::SmallerResult => line.bytes = line.bytes * random.u64(2..6) / 10,
            Edit::LargerWeight => {
                (line.weight_bytes, line.bytes) = (line.weight_bytes.max(1 << 16) * 3, line.bytes * 2);
                // A parameter is created where the module is.
                named = line.weight_line;
            }
            Edit::KeptUntilBackward => line.lifetime = Lifetime::Backward,
            Edit::KeptForever => line.lifetime = Lifetime::Forever,
            Edit::AnotherFunction => (line.calls, line.bytes) = ("gelu", line.bytes * 2),
            Edit::NewLine => {
                let number = line.number;
                let new = Line { number: number + 1, calls: "pad", weight_bytes: 0, bytes: 3 << 20, ..line.clone() };
                self.lines[index + 1..].iter_mut().for_each(|line| line.number += 1);
                self.lines.insert(index + 1, new);
                named = number + 1;
            }
            Edit::RemovedLine => {
                self.lines.remove(index);
            }
        }
        // The shapes of the next results follow.
        for (line, _) in self.lines[index..].iter_mut().skip(1).zip(0..2) {
            line.bytes += line.bytes / 50;
        }
        named
    }

    /// Runs the program on the pool; returns the recording.
    fn run(&self) -> Recording {
        let mut run = Run::new(self);
        let weights: Vec<(u64, u64)> = self.lines.iter().map(|line| (line.weight_bytes, line.bytes)).collect();
        for line in self.lines.iter().filter(|line| line.weight_bytes > 0) {
            let site = run.site(&[(line.weight_line, "__init__"), (0, "linear.py:__init__")]);
            run.allocate(line.weight_bytes, site);
        }
        for step in 0..STEPS {
            let noise = 100 + run.random.u64(..=self.noise_percent);
            let site = run.site(&[(self.main_line - 1, "train"), (0, "functional.py:one_hot")]);
            let input = run.allocate((1 << 20) * noise / 100, site);
            let mut kept = Vec::new();
            for line in &self.lines {
                let function = if line.is_in_helper { self.helper } else { "forward" };
                let called = format!("functional.py:{}", line.calls);
                let site = run.site(&[(self.main_line, "train"), (line.number, function), (0, &called)]);
                let result = run.allocate(line.bytes * noise / 100, site);
                match line.lifetime {
                    Lifetime::Temporary => run.free(result),
                    Lifetime::Backward => kept.push((result, line.weight_bytes)),
                    Lifetime::Forever => kept.push((None, line.weight_bytes)),
                }
            }
            // The backward pass runs on another thread, without Python frames.
            let mut gradients = Vec::new();
            for (result, weight_bytes) in kept.into_iter().rev() {
                if weight_bytes > 0 {
                    gradients.push(run.allocate(weight_bytes, SiteId(0)));
                }
                run.free(result);
            }
            run.free(input);
            for &(weight_bytes, _) in weights.iter().filter(|_| step == 0) {
                for name in ["adam.py:_init_exp_avg", "adam.py:_init_exp_avg_sq"] {
                    let site = run.site(&[(self.optimizer_line, "train"), (0, name)]);
                    run.allocate(weight_bytes, site);
                }
            }
            gradients.into_iter().for_each(|gradient| run.free(gradient));
        }
        run.encoder.flush();
        let mut recording = Recording::new();
        for chunk in run.encoder.take_output() {
            recording.push(&chunk.bytes).expect("the encoder wrote valid chunks");
        }
        recording
    }
}

/// A run of a [`Program`].
struct Run {
    pool: Pool<SimulatedDevice>,
    encoder: Encoder,
    interner: Interner,
    random: Rng,
}

impl Run {
    /// Creates a run that has made no request.
    fn new(program: &Program) -> Self {
        Self {
            pool: Pool::new(DeviceId(0), Settings::default(), SimulatedDevice::new(80 << 30)),
            encoder: Encoder::new(&RecordingInfo::default()),
            interner: Interner::default(),
            random: Rng::with_seed(program.noise_seed),
        }
    }

    /// Defines a site from lines and functions, outermost first; a line 0 is in a library's file,
    /// `FILE:FUNCTION`.
    fn site(&mut self, frames: &[(u32, &str)]) -> SiteId {
        let mut stack = StackId(0);
        for &(line, function) in frames {
            let (file, line, function) = match function.split_once(':').filter(|_| line == 0) {
                Some((file, function)) => (format!("/usr/lib/python3/site-packages/torch/nn/{file}"), 7, function),
                None => ("/home/me/train.py".to_owned(), line, function),
            };
            let (function, file) = (self.interner.string(function), self.interner.string(&file));
            let frame = self.interner.frame(Frame { function, file, line });
            stack = self.interner.stack(frame, stack);
        }
        let site = self.interner.site(Site { stack, ..Site::default() });
        for definition in self.interner.take_new() {
            self.encoder.define(&definition);
        }
        site
    }

    /// Allocates at a site and returns the address; `None` for 0 bytes.
    fn allocate(&mut self, bytes: u64, site: SiteId) -> Option<u64> {
        let origin = Origin { site, ..Origin::default() };
        let block = self.pool.allocate(bytes, STREAM, origin, &mut self.encoder).expect("the device is large enough");
        block.map(|block| block.address)
    }

    /// Frees a block; does nothing for `None`.
    fn free(&mut self, address: Option<u64>) {
        if let Some(address) = address {
            self.pool.free(address, Origin::default(), &mut self.encoder).expect("it is allocated");
        }
    }
}

/// Compares two recordings at their peaks and checks that the changes add up.
fn compared(a: &Recording, b: &Recording) -> DeviceComparison {
    let histories = [a, b].map(|recording| {
        let mut history = History::new();
        history.extend(recording, u64::MAX).expect("the recording is complete");
        history
    });
    let side = |recording, history| Side { recording, history, moment: &Moment::Peak };
    let sides = PerRecording { a: side(a, &histories[0]), b: side(b, &histories[1]) };
    let mut comparison = compare(sides, None).expect("both recordings can be read");
    assert_eq!(comparison.devices.len(), 1);
    let device = comparison.devices.remove(0);
    let sum: i128 = device.sites.iter().map(SiteChange::live_growth).sum();
    assert_eq!(sum, device.live_growth());
    device
}

#[test]
fn changed_line_is_named_first() {
    let mut wrong = BTreeMap::new();
    for seed in 0..PAIRS {
        let mut random = Rng::with_seed(seed);
        let edit = EDITS[seed as usize % EDITS.len()];
        let mut programs = std::iter::repeat_with(|| Program::random(&mut random));
        let mut a = programs.find(|program| !program.suitable_lines(edit).is_empty()).expect("there are many");
        let mut b = a.clone();
        let named = b.edit(edit, &mut random);
        let is_removed = matches!(edit, Edit::RemovedLine);
        b.helper = random.choice(["block", "run_block"]).expect("there are two names");
        if seed % 3 == 2 {
            (a.noise_percent, b.noise_percent) = (3, 3);
            b.noise_seed = random.u64(..);
        }
        // A removed line is shown as in the first program.
        let at_b = b.move_lines(named, &mut random);
        let named = if is_removed { named } else { at_b };
        let device = compared(&a.run(), &b.run());
        let first = &device.sites[0];
        let is_named = |frame: &String| frame.contains(&format!("train.py:{named} "));
        if !first.stack.iter().any(is_named) {
            let found: Vec<String> =
                device.sites.iter().take(4).map(|site| format!("{} {:+}", site.name, site.live_growth())).collect();
            wrong.insert(seed, format!("{edit:?} at {named}: {found:?} {:?}", device.first_difference));
        }
    }
    assert!(wrong.is_empty(), "{} of {PAIRS}: {wrong:#?}", wrong.len());
}
