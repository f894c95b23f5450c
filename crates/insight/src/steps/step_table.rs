//! Memory by step: bytes allocated and freed, the peak, and the live bytes at the end.

use vramscope_trace::DeviceLifetimes;

use super::allocated_curve::{AllocatedCurve, CurvePoint};
use super::step::{Step, Steps};

/// The memory of a device during one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepMemory {
    /// The step.
    pub step: Step,
    /// Number of allocations made by the step's events.
    pub allocations: u64,
    /// Bytes of the allocations made by the step's events (churn), whether they were freed or not.
    pub allocated_bytes: u64,
    /// Number of allocations that the program freed in the step.
    pub frees: u64,
    /// Bytes of the allocations that the program freed in the step.
    pub freed_bytes: u64,
    /// Peak of the allocated bytes in the step.
    pub peak_bytes: u64,
    /// The first moment of the step with `peak_bytes` allocated bytes.
    pub peak_event: u64,
    /// Live bytes (allocated and pending free) at the step's end.
    pub live_bytes: u64,
    /// The part of `live_bytes` that is pending free.
    pub pending_bytes: u64,
    /// Live bytes at the step's end − live bytes at the end of the previous step (for the first
    /// step: at its own beginning).
    pub growth_bytes: i64,
}

/// Computes the memory of each step of a device, a part at a time.
#[derive(Clone, Debug)]
pub struct StepTable {
    rows: Vec<StepMemory>,
    curve: AllocatedCurve,
    /// Position of the first step that has not ended.
    position: usize,
    /// The bytes at the last moment at which they changed.
    last: Option<CurvePoint>,
    /// Live bytes at the beginning of the first step.
    live_before_bytes: u64,
}

impl StepTable {
    /// Creates a computation for all steps.
    #[must_use]
    pub fn new(steps: &Steps) -> Self {
        let steps = steps.as_slice();
        let rows = steps.iter().map(|&step| StepMemory {
            step,
            peak_event: step.from_event.saturating_add(1),
            ..StepMemory::default()
        });
        let curve = match (steps.first(), steps.last()) {
            (Some(first), Some(last)) => AllocatedCurve::new(first.from_event, last.to_event),
            _ => AllocatedCurve::new(1, 0),
        };
        Self { rows: rows.collect(), curve, position: 0, last: None, live_before_bytes: 0 }
    }

    /// Continues the computation; returns true once it is complete. A call visits about 260,000
    /// moments and takes a few milliseconds for each 100,000 allocations in them; the last call
    /// also visits all allocations once.
    pub fn step(&mut self, lifetimes: &DeviceLifetimes) -> bool {
        if self.curve.is_finished() {
            return true;
        }
        let Self { rows, curve, position, last, live_before_bytes } = self;
        curve.advance(lifetimes, &mut |point| {
            match *last {
                Some(last) => add_unchanged_bytes(rows, position, last, point.event),
                None => *live_before_bytes = point.allocated_bytes.saturating_add(point.pending_bytes),
            }
            *last = Some(point);
        });
        if !curve.is_finished() {
            return false;
        }
        if let Some(last) = *last {
            add_unchanged_bytes(rows, position, last, u64::MAX);
        }
        self.count(lifetimes);
        true
    }

    /// Counts the allocations and frees of each step, and computes the growth.
    fn count(&mut self, lifetimes: &DeviceLifetimes) {
        let rows = &mut self.rows;
        // Finds the step of the event with a number; rows are in the order of their steps.
        let position_of = |rows: &[StepMemory], event: u64| {
            let position = rows.partition_point(|row| row.step.from_event < event).checked_sub(1)?;
            Some(position).filter(|&position| event <= rows[position].step.to_event)
        };
        let mut begun = 0;
        lifetimes.for_each_row(0..lifetimes.row_end(), |one| {
            while rows.get(begun).is_some_and(|row| row.step.to_event < one.first_moment) {
                begun += 1;
            }
            if let Some(row) = rows.get_mut(begun).filter(|row| row.step.from_event < one.first_moment)
                && one.start_observed
            {
                row.allocations += 1;
                row.allocated_bytes = row.allocated_bytes.saturating_add(one.size);
            }
            // Most allocations are freed in the step that made them.
            let freed = one.allocated_until.and_then(|freed| match rows.get(begun) {
                Some(row) if row.step.event_numbers().contains(&freed) => Some(begun),
                _ => position_of(rows, freed),
            });
            if let Some(row) = freed.and_then(|freed| rows.get_mut(freed)) {
                row.frees += 1;
                row.freed_bytes = row.freed_bytes.saturating_add(one.size);
            }
        });
        let mut before_bytes = self.live_before_bytes;
        for row in rows {
            row.growth_bytes = i64::try_from(i128::from(row.live_bytes) - i128::from(before_bytes)).unwrap_or(i64::MAX);
            before_bytes = row.live_bytes;
        }
    }

    /// Returns the memory of each step; complete once [`step`](Self::step) has returned true.
    #[must_use]
    pub fn rows(&self) -> &[StepMemory] {
        &self.rows
    }
}

/// Applies the bytes at `last`, which stay unchanged until the moment `until`, to the steps in
/// between: raises their peaks, and completes the steps that end before `until`.
fn add_unchanged_bytes(rows: &mut [StepMemory], position: &mut usize, last: CurvePoint, until: u64) {
    while let Some(row) = rows.get_mut(*position) {
        let first = row.step.from_event.saturating_add(1);
        if first >= until {
            break;
        }
        if last.allocated_bytes > row.peak_bytes {
            (row.peak_bytes, row.peak_event) = (last.allocated_bytes, last.event.max(first));
        }
        if row.step.to_event >= until {
            break;
        }
        row.live_bytes = last.allocated_bytes.saturating_add(last.pending_bytes);
        row.pending_bytes = last.pending_bytes;
        *position += 1;
    }
}
