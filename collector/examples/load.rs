//! A load generator for tests and measurements: it allocates like a training run, at a given rate
//! of events, and reports on request what its pool holds.
//!
//! `cargo run --release -p vramscope-collector --example load -- --rate 1000000 --record load.vram`
//!
//! The first line on stdout is `listening: URL`. The program reads commands from stdin, one per
//! line, and replies to each with a line of JSON:
//!
//! - `moment` pauses the program and reports what the pool holds;
//! - `go` resumes it;
//! - `figures` reports its progress;
//! - `stop` ends the recording and the program, as does the end of stdin.

use std::error::Error;
use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde_json::{Value, json};
use vramscope_collector::{Category, HostDevice, HostPool, Keep, Monitor, MonitorBuilder, Overflow, StreamId};
use vramscope_trace::ChunkKind;

/// Layers of the model.
const LAYERS: usize = 32;
/// Bytes of the activations that a layer saves for its backward pass, for sequences of 1000 tokens.
const SAVED: [u64; 3] = [6 << 20, 1 << 20, 40 << 10];
/// Bytes of a layer's temporary buffers, for sequences of 1000 tokens.
const TEMPORARY: [u64; 5] = [512, 24 << 20, 3000, 700 << 10, 8 << 20];
/// Events between two checks of the clock.
const EVENTS_PER_CHECK: u64 = 50;
/// Steps between two calls of `empty_cache`, as before an evaluation.
const EVALUATE_EVERY: u64 = 400;
/// Steps between two marks.
const MARK_EVERY: u64 = 100;

/// Returns the monitor and the events per second that the command line's options say.
fn options(mut arguments: impl Iterator<Item = String>) -> Result<(MonitorBuilder<HostDevice>, u64), Box<dyn Error>> {
    // The program writes to almost none of this memory, so the operating system provides hardly
    // any of it.
    let monitor = MonitorBuilder::from_env(HostDevice::new(64 << 30))?.program("load").overflow(Overflow::Wait);
    let (mut monitor, mut rate) = (monitor.listen(SocketAddr::from(([127, 0, 0, 1], 0))), 100_000);
    while let Some(option) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{option} needs a value"))?;
        if option == "--rate" {
            rate = value.parse()?;
            continue;
        }
        monitor = match option.as_str() {
            "--listen" => monitor.listen(value.parse::<SocketAddr>()?),
            "--record" => monitor.record(value),
            "--overflow" => monitor.overflow(if value == "drop" { Overflow::Drop } else { Overflow::Wait }),
            "--keep-bytes" => monitor.keep(Keep { bytes: Some(value.parse()?), time: None }),
            _ => return Err(format!("unknown option {option}").into()),
        };
    }
    Ok((monitor, rate))
}

/// The command `stop` or the end of stdin was read.
struct Stopped;

/// The running program and its schedule.
struct Program {
    pool: HostPool,
    monitor: Monitor,
    commands: Receiver<String>,
    rate: u64,
    /// When the program started, moved forward by its pauses.
    start: Instant,
    /// Events since the start.
    events: u64,
    /// Events until the next check of the clock.
    until_check: u64,
    random: Rng,
}

impl Program {
    fn allocate(&mut self, bytes: u64) -> u64 {
        self.count(1);
        let address = self.pool.caching_allocator_alloc(bytes, StreamId(0)).expect("the device is large enough");
        address.expect("the request is for more than 0 bytes")
    }

    fn free(&mut self, address: u64) {
        // No other stream uses the block, so the free is requested and completed at once.
        self.count(2);
        // SAFETY: The program never accesses the memory.
        unsafe { self.pool.caching_allocator_delete(address) }.expect("the block is live");
    }

    fn count(&mut self, events: u64) {
        self.events += events;
        self.until_check = self.until_check.saturating_sub(events);
    }

    /// Returns a size for sequences of `length` tokens; `bytes` is the size for 1000 tokens.
    fn scaled(bytes: u64, length: u64) -> u64 {
        (bytes * length / 1000).max(1)
    }

    /// Trains until the program is stopped. The sequences' lengths vary, so that memory fragments.
    fn train(&mut self) -> Result<(), Stopped> {
        let names: Vec<String> = (0..LAYERS).map(|layer| format!("layer{layer}")).collect();
        for step in 1.. {
            let _step = self.pool.scope("step");
            let length = 400 + self.random.u64(..1200);
            let saved = self.forward(&names, length)?;
            let gradients = self.backward(&names, length, saved)?;
            let _optimizer = self.pool.scope_with("optimizer", Category::Gradient);
            for gradient in gradients {
                self.free(gradient);
                self.pace()?;
            }
            if step % MARK_EVERY == 0 {
                self.pool.mark(&format!("step {step}"));
            }
            if step % EVALUATE_EVERY == 0 {
                self.pool.empty_cache().expect("the host device releases its memory");
            }
        }
        Ok(())
    }

    fn temporaries(&mut self, length: u64) -> Result<(), Stopped> {
        for bytes in TEMPORARY {
            // All sizes differ, so that the recording compresses worse than that of a real run.
            let length = length + self.random.u64(..100);
            let address = self.allocate(Self::scaled(bytes, length));
            self.free(address);
            self.pace()?;
        }
        Ok(())
    }

    fn forward(&mut self, names: &[String], length: u64) -> Result<Vec<[u64; 3]>, Stopped> {
        let _forward = self.pool.scope_with("forward", Category::Activation);
        let mut saved = Vec::new();
        for name in names {
            let _layer = self.pool.scope(name);
            saved.push(SAVED.map(|bytes| self.allocate(Self::scaled(bytes, length))));
            self.temporaries(length)?;
        }
        Ok(saved)
    }

    fn backward(&mut self, names: &[String], length: u64, saved: Vec<[u64; 3]>) -> Result<Vec<u64>, Stopped> {
        let _backward = self.pool.scope_with("backward", Category::Temporary);
        let mut gradients = Vec::new();
        for (name, activations) in names.iter().zip(saved).rev() {
            let _layer = self.pool.scope(name);
            self.temporaries(length)?;
            let _category = self.pool.category(Category::Gradient);
            gradients.push(self.allocate(4 << 20));
            for address in activations {
                self.free(address);
            }
            self.pace()?;
        }
        Ok(gradients)
    }

    /// Waits until the events so far are due, and runs commands meanwhile.
    fn pace(&mut self) -> Result<(), Stopped> {
        if self.until_check > 0 {
            return Ok(());
        }
        self.until_check = EVENTS_PER_CHECK;
        loop {
            match self.commands.try_recv() {
                Ok(command) => self.run(&command)?,
                Err(TryRecvError::Disconnected) => return Err(Stopped),
                Err(TryRecvError::Empty) => {}
            }
            let early = self.due().saturating_sub(self.start.elapsed());
            if early.is_zero() {
                return Ok(());
            }
            // Short enough that no burst follows, and long enough that waking up costs little.
            std::thread::sleep(early.min(Duration::from_millis(1)));
        }
    }

    fn run(&mut self, command: &str) -> Result<(), Stopped> {
        let reply = match command {
            "moment" => {
                let paused = Instant::now();
                print_reply(&self.snapshot());
                let next = self.commands.recv().map_err(|_| Stopped)?;
                self.start += paused.elapsed();
                if next != "go" {
                    return self.run(&next);
                }
                json!({ "done": next })
            }
            "figures" => json!({ "events": self.events, "behind_ms": self.behind_ms() }),
            "stop" => return Err(Stopped),
            _ => json!({ "error": format!("unknown command {command}") }),
        };
        print_reply(&reply);
        Ok(())
    }

    /// Returns how long after the start the events so far are due.
    fn due(&self) -> Duration {
        Duration::from_nanos(self.events * 1_000_000_000 / self.rate.max(1))
    }

    /// Returns by how many milliseconds the program is behind its rate.
    fn behind_ms(&self) -> u64 {
        self.start.elapsed().saturating_sub(self.due()).as_millis() as u64
    }

    /// Returns the pool's counters and segments, after every event before has reached the file and
    /// the viewers.
    fn snapshot(&self) -> Value {
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

fn print_reply(reply: &Value) {
    // A closed stdout is ignored: the end of stdin stops the program.
    let _ = writeln!(std::io::stdout(), "{reply}");
}

fn run() -> Result<(), Box<dyn Error>> {
    let (monitor, rate) = options(std::env::args().skip(1))?;
    let (monitor, pool) = monitor.start()?;
    let (sender, commands) = channel();
    std::thread::spawn(move || {
        std::io::stdin().lock().lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    println!("listening: {}", monitor.url().unwrap_or_default());
    let start = Instant::now();
    let random = Rng::with_seed(1);
    let mut program = Program { pool, monitor, commands, rate, start, events: 0, until_check: 0, random };
    // Returns when the program is stopped.
    let _ = program.train();
    let behind_ms = program.behind_ms();
    let summary = program.monitor.stop();
    print_reply(&json!({
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
