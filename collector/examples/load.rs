//! A program for tests and measurements: its memory comes and goes like that of a training run, as many events a second as one wants, and it says
//! on request what its pool holds.
//!
//! `cargo run --release -p vramscope-collector --example load -- --rate 1000000 --record load.vram`
//!
//! Its first line on stdout is `listening: URL`. It does what it is told on stdin, a word a line, and answers each with a line of JSON:
//! `moment` stops the program wherever it is and says what the pool holds then, `go` lets it go on, `figures` says how far it is, and `stop` ends
//! the recording. When stdin ends it ends.

use std::error::Error;
use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vramscope_collector::{Category, HostDevice, HostPool, Keep, Monitor, MonitorBuilder, Overflow, Scope, StreamId};
use vramscope_trace::ChunkKind;

/// Layers of the model.
const LAYERS: usize = 32;
/// Activations that a layer keeps for its backward pass: bytes at the mean length of a sequence.
const KEPT: [u64; 3] = [6 << 20, 1 << 20, 40 << 10];
/// Memory that a layer needs for a moment.
const PASSING: [u64; 5] = [512, 24 << 20, 3000, 700 << 10, 8 << 20];
/// Events after which the clock is looked at.
const SLICE: u64 = 50;
/// Steps between two that give what is not in use back to the device, as evaluations do.
const EVALUATE_EVERY: u64 = 400;
/// Steps between two marks.
const MARK_EVERY: u64 = 100;

/// What is asked for on the command line.
struct Options {
    /// Events a second.
    rate: u64,
    monitor: MonitorBuilder<HostDevice>,
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options, Box<dyn Error>> {
    // Nothing is ever written to most of this memory, so the operating system provides hardly any of it.
    let mut monitor = Monitor::builder(HostDevice::new(64 << 30)).program("load").overflow(Overflow::Wait);
    let mut rate = 100_000;
    monitor = monitor.listen(SocketAddr::from(([127, 0, 0, 1], 0)));
    while let Some(option) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{option} needs a value"))?;
        monitor = match option.as_str() {
            "--rate" => {
                rate = value.parse()?;
                monitor
            }
            "--listen" => monitor.listen(value.parse::<SocketAddr>()?),
            "--record" => monitor.record(value),
            "--overflow" => monitor.overflow(if value == "drop" { Overflow::Drop } else { Overflow::Wait }),
            "--keep-bytes" => monitor.keep(Keep { bytes: Some(value.parse()?), time: None }),
            _ => return Err(format!("unknown option {option}").into()),
        };
    }
    Ok(Options { rate, monitor })
}

/// Whoever runs the program wants it to stop.
struct Stopped;

/// The program and its clock.
struct Program {
    pool: HostPool,
    monitor: Monitor,
    commands: Receiver<String>,
    rate: u64,
    /// When the events since would have begun had there been no stop.
    since: Instant,
    /// Events since.
    events: u64,
    /// Those before the clock is looked at again.
    left: u64,
    random: u64,
}

impl Program {
    fn allocate(&mut self, bytes: u64) -> u64 {
        self.count(1);
        let address = self.pool.caching_allocator_alloc(bytes, StreamId(0)).expect("there is room");
        address.expect("more than 0 bytes were asked for")
    }

    fn free(&mut self, address: u64) {
        // Freed, and free at once: nothing else uses it.
        self.count(2);
        // SAFETY: Nobody has a pointer to it.
        unsafe { self.pool.caching_allocator_delete(address) }.expect("the block is live");
    }

    fn count(&mut self, events: u64) {
        self.events += events;
        self.left = self.left.saturating_sub(events);
    }

    /// Bytes at the length of this step's sequences.
    fn scaled(bytes: u64, length: u64) -> u64 {
        (bytes * length / 1000).max(1)
    }

    fn random(&mut self) -> u64 {
        // Knuth's linear congruential generator; its high bits are the good ones.
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.random >> 33
    }

    fn scope(&self, name: &str, category: Category) -> Scope {
        self.pool.scope_with(name, category)
    }

    /// Sequences are of any length, which is what makes memory fragment.
    fn train(&mut self) -> Result<(), Stopped> {
        let names: Vec<String> = (0..LAYERS).map(|layer| format!("layer{layer}")).collect();
        for step in 1.. {
            let _step = self.pool.scope("step");
            let length = 400 + self.random() % 1200;
            let kept = self.forward(&names, length)?;
            let gradients = self.backward(&names, length, kept)?;
            let _optimizer = self.scope("optimizer", Category::Gradient);
            for gradient in gradients {
                self.free(gradient);
                self.pace()?;
            }
            if step % MARK_EVERY == 0 {
                self.pool.mark(&format!("step {step}"));
            }
            if step % EVALUATE_EVERY == 0 {
                self.pool.empty_cache().expect("the host takes its memory back");
            }
        }
        Ok(())
    }

    fn passing(&mut self, length: u64) -> Result<(), Stopped> {
        for bytes in PASSING {
            // No two are the same, so that a recording repeats itself less than that of a real run.
            let length = length + self.random() % 100;
            let address = self.allocate(Self::scaled(bytes, length));
            self.free(address);
            self.pace()?;
        }
        Ok(())
    }

    fn forward(&mut self, names: &[String], length: u64) -> Result<Vec<[u64; 3]>, Stopped> {
        let _forward = self.scope("forward", Category::Activation);
        let mut kept = Vec::new();
        for name in names {
            let _layer = self.pool.scope(name);
            kept.push(KEPT.map(|bytes| self.allocate(Self::scaled(bytes, length))));
            self.passing(length)?;
        }
        Ok(kept)
    }

    fn backward(&mut self, names: &[String], length: u64, mut kept: Vec<[u64; 3]>) -> Result<Vec<u64>, Stopped> {
        let _backward = self.scope("backward", Category::Temporary);
        let mut gradients = Vec::new();
        for (name, kept) in names.iter().zip(std::mem::take(&mut kept)).rev() {
            let _layer = self.pool.scope(name);
            self.passing(length)?;
            let _category = self.pool.category(Category::Gradient);
            gradients.push(self.allocate(4 << 20));
            for address in kept {
                self.free(address);
            }
            self.pace()?;
        }
        Ok(gradients)
    }

    /// Waits until as many events as there were are due, and does what it is told meanwhile.
    fn pace(&mut self) -> Result<(), Stopped> {
        if self.left > 0 {
            return Ok(());
        }
        self.left = SLICE;
        let due = Duration::from_nanos(self.events * 1_000_000_000 / self.rate.max(1));
        loop {
            match self.commands.try_recv() {
                Ok(command) => self.obey(&command)?,
                Err(TryRecvError::Disconnected) => return Err(Stopped),
                Err(TryRecvError::Empty) => {}
            }
            let early = due.saturating_sub(self.since.elapsed());
            if early.is_zero() {
                return Ok(());
            }
            // So short that what comes after is no burst, and so long that waking up for it is not all that is done.
            std::thread::sleep(early.min(Duration::from_millis(1)));
        }
    }

    fn obey(&mut self, command: &str) -> Result<(), Stopped> {
        let answer = match command {
            "moment" => {
                let stopped = Instant::now();
                say(&self.moment());
                let next = self.commands.recv().map_err(|_| Stopped)?;
                self.since += stopped.elapsed();
                if next != "go" {
                    return self.obey(&next);
                }
                json!({ "done": next })
            }
            "figures" => json!({ "events": self.events, "behind_ms": self.behind_ms() }),
            "stop" => return Err(Stopped),
            _ => json!({ "error": format!("{command}: what is that?") }),
        };
        say(&answer);
        Ok(())
    }

    /// By how much the program is slower than it should be.
    fn behind_ms(&self) -> u64 {
        let due = Duration::from_nanos(self.events * 1_000_000_000 / self.rate.max(1));
        self.since.elapsed().saturating_sub(due).as_millis() as u64
    }

    /// What the pool itself says that it holds, with everything that led there passed on to the file and the viewers.
    fn moment(&self) -> Value {
        self.monitor.recorder().flush();
        let chunks = self.monitor.hub().everything();
        let newest = chunks.iter().rfind(|chunk| chunk.kind == ChunkKind::Events);
        let stats = self.pool.stats();
        json!({
            "events": newest.map_or(0, |chunk| chunk.first_event + chunk.events),
            "allocated_bytes": stats.allocated_bytes.all.current,
            "active_bytes": stats.active_bytes.all.current,
            "reserved_bytes": stats.reserved_bytes.all.current,
            "requested_bytes": stats.requested_bytes.all.current,
            "segments": self.pool.memory_snapshot(),
        })
    }
}

fn say(answer: &Value) {
    // Whoever does not listen any more stops the program by the end of stdin.
    let _ = writeln!(std::io::stdout(), "{answer}");
}

fn run() -> Result<(), Box<dyn Error>> {
    let Options { rate, monitor } = options(std::env::args().skip(1))?;
    let (monitor, pool) = monitor.start()?;
    let (sender, commands) = channel();
    std::thread::spawn(move || {
        std::io::stdin().lock().lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    println!("listening: {}", monitor.url().unwrap_or_default());
    let since = Instant::now();
    let mut program = Program { pool, monitor, commands, rate, since, events: 0, left: 0, random: 1 };
    // It trains until it is stopped.
    let _ = program.train();
    let behind_ms = program.behind_ms();
    let summary = program.monitor.stop();
    say(&json!({
        "events": summary.events,
        "bytes": summary.bytes,
        "waits": summary.waits,
        "waited_ms": summary.waited.as_millis() as u64,
        "behind_ms": behind_ms,
        "file_error": summary.file_error.map(|error| error.to_string()),
    }));
    Ok(())
}

fn main() -> ExitCode {
    run().map_or_else(
        |error| {
            eprintln!("load: {error}");
            ExitCode::from(2)
        },
        |()| ExitCode::SUCCESS,
    )
}
