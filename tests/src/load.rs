//! The program that is watched in measurements: the collector's example `load`, at any rate of events, and what its pool says of itself.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use vramscope_trace::{Definitions, DeviceId, DeviceState, MemoryState};

use crate::program::newest_built;

/// How long an answer may take on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Builds nothing: the one that `VRAMSCOPE_LOAD` names, or the one built last beside this program, as `cargo test --workspace` does.
fn binary() -> PathBuf {
    let named = env::var_os("VRAMSCOPE_LOAD").map(PathBuf::from);
    let example = PathBuf::from("examples").join(format!("load{}", env::consts::EXE_SUFFIX));
    named.or_else(|| newest_built(&example)).expect("cargo build -p vramscope-collector --example load")
}

/// The running program. It ends when this is dropped.
#[derive(Debug)]
pub struct Load {
    child: Child,
    stdin: ChildStdin,
    answers: Receiver<String>,
    url: String,
}

impl Load {
    /// Starts it at a port that is free, and waits until it says where it listens.
    ///
    /// # Panics
    /// Where it does not start.
    #[must_use]
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_in(arguments, &[])
    }

    /// The same with these variables in its environment.
    ///
    /// # Panics
    /// Where it does not start.
    #[must_use]
    pub fn start_in(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(binary());
        command.args(arguments).envs(variables.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let (stdin, stdout) = (child.stdin.take().expect("it is piped"), child.stdout.take().expect("it is piped"));
        let mut load = Self { child, stdin, answers: lines(stdout), url: String::new() };
        let first = load.answer();
        load.url = first.strip_prefix("listening: ").unwrap_or_else(|| panic!("it says {first:?}")).to_owned();
        load
    }

    fn answer(&mut self) -> String {
        let answer = self.answers.recv_timeout(PATIENCE);
        answer.unwrap_or_else(|_| panic!("no answer in {PATIENCE:?}; it is {:?}", self.child.try_wait()))
    }

    /// The page's address.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its process's number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives it a command, and waits for the answer.
    ///
    /// # Panics
    /// Where it gives none.
    pub fn ask(&mut self, command: &str) -> Value {
        writeln!(self.stdin, "{command}").expect("it reads what it is told");
        let answer = self.answer();
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("it answers {answer:?}: {error}"))
    }

    /// Stops it wherever it is; it stands still until [`go`](Self::go).
    pub fn moment(&mut self) -> Moment {
        Moment(self.ask("moment"))
    }

    /// Lets it go on.
    pub fn go(&mut self) {
        self.ask("go");
    }

    /// Ends the recording; gives back what it came to.
    pub fn stop(&mut self) -> Value {
        self.ask("stop")
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // It may have ended before; then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(stdout: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    // Answers alone, so there are never more than were asked for.
    thread::spawn(move || BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    receiver
}

/// What the pool itself says that it holds: its counters, and its snapshot with every block.
#[derive(Clone, Debug)]
pub struct Moment(Value);

/// A block as both sides know it: address, bytes, bytes asked for, whether it is pending, scope.
type Known<'a> = (u64, u64, u64, bool, &'a str);

impl Moment {
    /// One of its numbers.
    ///
    /// # Panics
    /// Where it has none of this name.
    #[must_use]
    pub fn number(&self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or_else(|| panic!("no {name} in {}", self.0))
    }

    /// The number of events until then.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.number("events")
    }

    fn segments(&self) -> &[Value] {
        self.0["segments"].as_array().map_or(&[], Vec::as_slice)
    }

    /// How many segments there are.
    #[must_use]
    pub fn segment_count(&self) -> usize {
        self.segments().len()
    }

    fn blocks(&self) -> impl Iterator<Item = &Value> {
        self.segments().iter().flat_map(|segment| segment["blocks"].as_array().into_iter().flatten())
    }

    /// How many blocks are active.
    #[must_use]
    pub fn block_count(&self) -> usize {
        self.blocks().filter(|block| block["state"] != "inactive").count()
    }

    /// External fragmentation, of the blocks that are inactive.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        let free = self.blocks().filter(|block| block["state"] == "inactive");
        let sizes: Vec<u64> = free.filter_map(|block| block["size"].as_u64()).collect();
        let (total, largest) = (sizes.iter().sum::<u64>(), sizes.iter().max().copied().unwrap_or(0));
        if total == 0 { 0.0 } else { 1.0 - largest as f64 / total as f64 }
    }

    /// Whether a state that was read from a recording is this one: the counters, every segment and every block.
    ///
    /// # Errors
    /// What differs first.
    pub fn check(&self, state: &MemoryState, definitions: &Definitions) -> Result<(), String> {
        same("events", self.events(), state.event())?;
        self.check_device(state.device(DeviceId(0)).ok_or("no device")?, definitions)
    }

    /// The same of its device alone, whatever it is called there.
    ///
    /// # Errors
    /// What differs first.
    pub fn check_device(&self, device: &DeviceState, definitions: &Definitions) -> Result<(), String> {
        let counters = device.counters();
        same("bytes allocated", self.number("allocated_bytes"), counters.allocated)?;
        same("bytes active", self.number("active_bytes"), counters.active)?;
        same("bytes reserved", self.number("reserved_bytes"), counters.reserved)?;
        same("bytes requested", self.number("requested_bytes"), counters.requested)?;
        same("misfits", 0, device.misfits())?;
        let number = |value: &Value, name: &str| value[name].as_u64().unwrap_or(u64::MAX);
        let held: Vec<_> = self.segments().iter().map(|it| (number(it, "address"), number(it, "total_size"))).collect();
        let read: Vec<_> = device.segments().map(|segment| (segment.address, segment.size)).collect();
        first_difference("segment", &held, &read)?;
        let active = self.blocks().filter(|block| block["state"] != "inactive");
        let held: Vec<Known<'_>> = active
            .map(|block| {
                let scope = block["frames"][0]["name"].as_str().unwrap_or_default();
                let pending = block["state"] == "active_pending_free";
                (number(block, "address"), number(block, "size"), number(block, "requested_size"), pending, scope)
            })
            .collect();
        let read: Vec<Known<'_>> = device
            .blocks()
            .map(|block| {
                let scope = definitions.string(definitions.site(block.site).scope);
                (block.address, block.size, block.requested, block.pending_free, scope)
            })
            .collect();
        first_difference("block", &held, &read)
    }
}

fn same(what: &str, here: u64, there: u64) -> Result<(), String> {
    if here == there { Ok(()) } else { Err(format!("{what}: {there}, and in the pool {here}")) }
}

fn first_difference<T: PartialEq + std::fmt::Debug>(what: &str, held: &[T], read: &[T]) -> Result<(), String> {
    let differs = |at: &usize| held.get(*at) != read.get(*at);
    match (0..held.len().max(read.len())).find(differs) {
        None => Ok(()),
        Some(at) => Err(format!("{what} {at}: {:?}, and in the pool {:?}", read.get(at), held.get(at))),
    }
}
