//! The program that measurements observe: the collector's example `load`, which allocates at a
//! given rate and reports what its pool holds.

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

/// Longest wait for a reply, on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Returns the path of the built example: `VRAMSCOPE_LOAD`, or the newest in the target folder.
fn binary() -> PathBuf {
    let named = env::var_os("VRAMSCOPE_LOAD").map(PathBuf::from);
    let example = PathBuf::from("examples").join(format!("load{}", env::consts::EXE_SUFFIX));
    named.or_else(|| newest_built(&example)).expect("cargo build -p vramscope-collector --example load")
}

/// A running `load`. Dropping it ends the process.
#[derive(Debug)]
pub struct Load {
    child: Child,
    stdin: ChildStdin,
    answers: Receiver<String>,
    url: String,
}

impl Load {
    /// Starts the program on a free port and waits until it listens.
    ///
    /// # Panics
    /// Panics if it does not start.
    #[must_use]
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_in(arguments, &[])
    }

    /// Starts the program with additional environment variables.
    ///
    /// # Panics
    /// Panics if it does not start.
    #[must_use]
    pub fn start_in(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(binary());
        command.args(arguments).envs(variables.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let (stdin, stdout) =
            (child.stdin.take().expect("the stream is piped"), child.stdout.take().expect("the stream is piped"));
        let mut load = Self { child, stdin, answers: lines(stdout), url: String::new() };
        let first = load.answer();
        load.url = first
            .strip_prefix("listening: ")
            .unwrap_or_else(|| panic!("the first line is {first:?}, not an address"))
            .to_owned();
        load
    }

    fn answer(&mut self) -> String {
        let answer = self.answers.recv_timeout(TIMEOUT);
        answer.unwrap_or_else(|_| panic!("no reply in {TIMEOUT:?}; exit status {:?}", self.child.try_wait()))
    }

    /// Returns the page's URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a command and waits for the reply.
    ///
    /// # Panics
    /// Panics if no valid reply arrives.
    pub fn request(&mut self, command: &str) -> Value {
        writeln!(self.stdin, "{command}").expect("the program reads commands");
        let answer = self.answer();
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("the reply is {answer:?}: {error}"))
    }

    /// Pauses the program until [`resume`](Self::resume) and returns what its pool holds.
    pub fn pause(&mut self) -> PoolSnapshot {
        PoolSnapshot(self.request("moment"))
    }

    /// Resumes a paused program.
    pub fn resume(&mut self) {
        self.request("go");
    }

    /// Ends the recording and returns its summary.
    pub fn stop(&mut self) -> Value {
        self.request("stop")
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(stdout: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    // The queue is bounded by the protocol: one reply a command.
    thread::spawn(move || BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    receiver
}

/// The pool's own counters and blocks at a moment.
#[derive(Clone, Debug)]
pub struct PoolSnapshot(Value);

/// Address, size, requested size, pending free, and scope of a block.
type BlockKey<'a> = (u64, u64, u64, bool, &'a str);

impl PoolSnapshot {
    /// Returns a number by name.
    ///
    /// # Panics
    /// Panics if there is no such number.
    #[must_use]
    pub fn number(&self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or_else(|| panic!("no {name} in {}", self.0))
    }

    /// Returns the number of events so far.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.number("events")
    }

    fn segments(&self) -> &[Value] {
        self.0["segments"].as_array().map_or(&[], Vec::as_slice)
    }

    /// Returns the number of segments.
    #[must_use]
    pub fn segment_count(&self) -> usize {
        self.segments().len()
    }

    fn blocks(&self) -> impl Iterator<Item = &Value> {
        self.segments().iter().flat_map(|segment| segment["blocks"].as_array().into_iter().flatten())
    }

    /// Returns the number of active blocks.
    #[must_use]
    pub fn block_count(&self) -> usize {
        self.blocks().filter(|block| block["state"] != "inactive").count()
    }

    /// Returns the external fragmentation of the free blocks.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        let free = self.blocks().filter(|block| block["state"] == "inactive");
        let sizes: Vec<u64> = free.filter_map(|block| block["size"].as_u64()).collect();
        let (total, largest) = (sizes.iter().sum::<u64>(), sizes.iter().max().copied().unwrap_or(0));
        if total == 0 { 0.0 } else { 1.0 - largest as f64 / total as f64 }
    }

    /// Compares counters, segments and blocks with a state read from a recording.
    ///
    /// # Errors
    /// Returns the first difference.
    pub fn check(&self, state: &MemoryState, definitions: &Definitions) -> Result<(), String> {
        same("events", self.events(), state.event())?;
        self.check_device(state.device(DeviceId(0)).ok_or("no device")?, definitions)
    }

    /// Compares with one device of a recording, whatever its number there.
    ///
    /// # Errors
    /// Returns the first difference.
    pub fn check_device(&self, device: &DeviceState, definitions: &Definitions) -> Result<(), String> {
        let counters = device.counters();
        same("bytes allocated", self.number("allocated_bytes"), counters.allocated)?;
        same("bytes active", self.number("active_bytes"), counters.active)?;
        same("bytes reserved", self.number("reserved_bytes"), counters.reserved)?;
        same("bytes requested", self.number("requested_bytes"), counters.requested)?;
        same("inconsistencies", 0, device.inconsistencies())?;
        let number = |value: &Value, name: &str| value[name].as_u64().unwrap_or(u64::MAX);
        let in_pool: Vec<_> =
            self.segments().iter().map(|it| (number(it, "address"), number(it, "total_size"))).collect();
        let read: Vec<_> = device.segments().map(|segment| (segment.address, segment.size)).collect();
        first_difference("segment", &in_pool, &read)?;
        let active = self.blocks().filter(|block| block["state"] != "inactive");
        let in_pool: Vec<BlockKey<'_>> = active
            .map(|block| {
                let scope = block["frames"][0]["name"].as_str().unwrap_or_default();
                let pending = block["state"] == "active_pending_free";
                (number(block, "address"), number(block, "size"), number(block, "requested_size"), pending, scope)
            })
            .collect();
        let read: Vec<BlockKey<'_>> = device
            .blocks()
            .map(|block| {
                let scope = definitions.string(definitions.site(block.site).scope);
                (block.address, block.size, block.requested, block.pending_free, scope)
            })
            .collect();
        first_difference("block", &in_pool, &read)
    }
}

fn same(what: &str, in_pool: u64, recorded: u64) -> Result<(), String> {
    if in_pool == recorded { Ok(()) } else { Err(format!("{what}: {recorded} recorded, {in_pool} in the pool")) }
}

fn first_difference<T: PartialEq + std::fmt::Debug>(what: &str, in_pool: &[T], read: &[T]) -> Result<(), String> {
    let differs = |at: &usize| in_pool.get(*at) != read.get(*at);
    match (0..in_pool.len().max(read.len())).find(differs) {
        None => Ok(()),
        Some(at) => Err(format!("{what} {at}: {:?} recorded, {:?} in the pool", read.get(at), in_pool.get(at))),
    }
}
