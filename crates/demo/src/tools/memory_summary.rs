//! The allocator's counters as text.

use std::cell::Cell;
use std::fmt;
use std::io::{self, Write};
use std::num::NonZeroU64;

use serde::Serialize;
use vramscope_collector::{StatBySize, Stats};
use vramscope_trace::{ByteSize, Count, FreeSpace};

use super::text_table::TextTable;
use crate::device::Device;
use crate::training::{Callback, Phase};

/// Writes the counters of a device's allocator as text: a short form of
/// `print(torch.cuda.memory_summary())`.
///
/// # Errors
/// If `out` cannot be written.
pub fn print_memory(device: &Device, out: &mut dyn Write) -> io::Result<()> {
    write!(out, "{}", MemorySummary::of(device))
}

/// The memory of a device at the end of a phase. `Display` formats it as one line of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryLogEntry {
    /// The step's number, from 1.
    pub step: u64,
    /// The phase's name.
    pub phase: &'static str,
    /// Bytes of allocated blocks.
    pub allocated_bytes: u64,
    /// Bytes that the allocator holds from the device.
    pub reserved_bytes: u64,
    /// Most bytes of allocated blocks since the peaks were last reset.
    pub peak_allocated_bytes: u64,
}

impl fmt::Display for MemoryLogEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, phase, allocated_bytes, reserved_bytes, peak_allocated_bytes } = *self;
        let [allocated, reserved, peak] = [allocated_bytes, reserved_bytes, peak_allocated_bytes].map(ByteSize);
        write!(f, "step {step:>3}  {phase:<9}  allocated {allocated}  peak {peak}  reserved {reserved}")
    }
}

/// A callback that reports the memory at the end of each phase of a step, as the tutorials'
/// `print_memory`. Steps are numbered from 1, over all trainers that call this.
pub struct MemoryLog<F> {
    device: Device,
    every: u64,
    /// Number of steps that have begun.
    steps: Cell<u64>,
    receive: F,
}

impl<F: Fn(MemoryLogEntry)> MemoryLog<F> {
    /// Creates a callback that calls `receive` after the phases of the first step and of each step
    /// whose number is a multiple of `every`.
    #[must_use]
    pub fn new(device: &Device, every: NonZeroU64, receive: F) -> Self {
        Self { device: device.clone(), every: every.get(), steps: Cell::new(0), receive }
    }
}

impl<F: Fn(MemoryLogEntry)> Callback for MemoryLog<F> {
    fn before(&self, phase: Phase, _step: u64, device: &Device) {
        if phase == Phase::Step && device.is(&self.device) {
            self.steps.set(self.steps.get() + 1);
        }
    }

    fn after(&self, phase: Phase, _step: u64, device: &Device) {
        let step = self.steps.get();
        if !device.is(&self.device) || !(step == 1 || step.is_multiple_of(self.every)) {
            return;
        }
        let stats = device.stats();
        (self.receive)(MemoryLogEntry {
            step,
            phase: phase.name(),
            allocated_bytes: stats.allocated_bytes.all.current,
            reserved_bytes: stats.reserved_bytes.all.current,
            peak_allocated_bytes: stats.allocated_bytes.all.peak,
        });
    }
}

/// A counter's present value and its peak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NowAndPeak {
    /// The present value.
    pub now: u64,
    /// The largest value since the peaks were last reset.
    pub peak: u64,
}

/// The counters of a device's allocator at one moment. `Display` formats them as text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemorySummary {
    /// Bytes of allocated blocks, after rounding.
    pub allocated_bytes: NowAndPeak,
    /// Bytes of active blocks: allocated or pending free.
    pub active_bytes: NowAndPeak,
    /// Bytes that the program requested for the active blocks.
    pub requested_bytes: NowAndPeak,
    /// Bytes that the allocator holds from the device.
    pub reserved_bytes: NowAndPeak,
    /// Number of allocated blocks.
    pub blocks: NowAndPeak,
    /// Number of segments, without expandable ones.
    pub segments: NowAndPeak,
    /// The free bytes in segments; `None` if the allocator does not know them.
    pub free_bytes: Option<u64>,
    /// The largest free block, in bytes; `None` if the allocator does not know it.
    pub largest_free_block_bytes: Option<u64>,
    /// Number of requests that failed with out of memory.
    pub out_of_memory: u64,
    /// Number of retries, before each of which all cached segments were released.
    pub retries: u64,
}

impl MemorySummary {
    /// Returns the counters of a device's allocator.
    #[must_use]
    pub fn of(device: &Device) -> Self {
        Self::new(&device.stats(), device.memory().free_space())
    }

    fn new(stats: &Stats, free: Option<FreeSpace>) -> Self {
        let pair = |stat: &StatBySize| NowAndPeak { now: stat.all.current, peak: stat.all.peak };
        Self {
            allocated_bytes: pair(&stats.allocated_bytes),
            active_bytes: pair(&stats.active_bytes),
            requested_bytes: pair(&stats.requested_bytes),
            reserved_bytes: pair(&stats.reserved_bytes),
            blocks: pair(&stats.allocation),
            segments: pair(&stats.segment),
            free_bytes: free.map(|free| free.total),
            largest_free_block_bytes: free.map(|free| free.largest),
            out_of_memory: stats.num_ooms,
            retries: stats.num_alloc_retries,
        }
    }
}

impl fmt::Display for MemorySummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = TextTable::new(&["now", "peak", "memory"], 1);
        let bytes = [
            (self.allocated_bytes, "allocated"),
            (self.active_bytes, "active"),
            (self.requested_bytes, "requested"),
            (self.reserved_bytes, "reserved"),
        ];
        for (NowAndPeak { now, peak }, name) in bytes {
            table.add([ByteSize(now).to_string(), ByteSize(peak).to_string(), name.to_owned()]);
        }
        for (NowAndPeak { now, peak }, name) in [(self.blocks, "blocks"), (self.segments, "segments")] {
            table.add([Count(now).to_string(), Count(peak).to_string(), name.to_owned()]);
        }
        for (bytes, name) in
            [(self.free_bytes, "free in segments"), (self.largest_free_block_bytes, "largest free block")]
        {
            if let Some(bytes) = bytes {
                table.add([ByteSize(bytes).to_string(), String::new(), name.to_owned()]);
            }
        }
        for (count, name) in [(self.out_of_memory, "out of memory"), (self.retries, "retries")] {
            if count > 0 {
                table.add([Count(count).to_string(), String::new(), name.to_owned()]);
            }
        }
        table.fmt(f)
    }
}
