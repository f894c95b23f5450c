//! Finds the least memory that a program runs in under given settings, by bisection.

use vramscope_pool::Settings;
use vramscope_pool::rerun::RunSummary;

/// Granularity of the search in bytes: that in which the driver provides memory.
const STEP_BYTES: u64 = 2 << 20;
/// The least number of steps by which a capacity grows that an unlimited run did not exceed but in
/// which a request fails.
const MIN_GROWTH_STEPS: u64 = 8;

/// The least memory that a program runs in under some settings without a failed request.
#[derive(Clone, Debug, PartialEq)]
pub struct SmallestCapacity {
    /// The settings.
    pub settings: Settings,
    /// What the allocator may reserve, in bytes; with 2 MiB less, a request fails.
    pub capacity_bytes: u64,
    /// The figures of the run with this capacity.
    pub predicted: RunSummary,
}

/// The next run of a [`CapacitySearch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    /// A run without a limit.
    Unlimited,
    /// A run with this many bytes.
    Bytes(u64),
}

/// A bisection between capacities in which a request fails and capacities in which none does.
#[derive(Clone, Debug)]
pub(super) struct CapacitySearch {
    settings: Settings,
    /// A request fails with this many steps of memory.
    failing_steps: u64,
    /// No request fails with this many steps of memory.
    working: Option<(u64, RunSummary)>,
    /// The number of steps that the unlimited run needed, before a run with a limit has worked.
    needed_steps: Option<u64>,
    has_failed: bool,
}

impl CapacitySearch {
    /// Prepares the search. A program with `floor_bytes` of live requests fails with less.
    pub(super) fn new(settings: &Settings, floor_bytes: u64) -> Self {
        // The limit is what is searched.
        let settings = Settings { per_process_memory_fraction: 1.0, limit_bytes: None, ..settings.clone() };
        let failing_steps = floor_bytes.div_ceil(STEP_BYTES).saturating_sub(1);
        Self { settings, failing_steps, working: None, needed_steps: None, has_failed: false }
    }

    /// Returns the settings of the runs.
    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the next run, or `None` if the search is finished.
    pub(super) fn next_probe(&self) -> Option<Probe> {
        let (failing, working) = (self.failing_steps, self.working.as_ref().map(|&(steps, _)| steps));
        match (working, self.needed_steps) {
            _ if self.has_failed => None,
            (Some(working), _) if working - failing <= 1 => None,
            (Some(working), _) => Some(Probe::Bytes(bytes_of(failing + (working - failing) / 2))),
            (None, None) => Some(Probe::Unlimited),
            (None, Some(needed)) if failing < needed => Some(Probe::Bytes(bytes_of(needed))),
            (None, Some(needed)) => {
                let growth = (failing - needed).saturating_mul(2).max(MIN_GROWTH_STEPS);
                Some(Probe::Bytes(bytes_of(failing.saturating_add(growth))))
            }
        }
    }

    /// Takes the result of the run that [`next_probe`](Self::next_probe) returned.
    pub(super) fn finish(&mut self, probe: Probe, summary: RunSummary) {
        // A run that reserved less than it could decides equally with just that much, because each
        // of its requests to the driver is granted or refused as before. Not so with garbage
        // collection, whose threshold depends on the limit, nor with expandable segments: before
        // they grow, PyTorch compares the limit with the whole request, not with what they lack.
        let reserved_steps = summary.peak_reserved_bytes.div_ceil(STEP_BYTES).max(self.failing_steps + 1);
        let depends_on_limit = self.settings.garbage_collection_threshold > 0.0 || self.settings.expandable_segments;
        match probe {
            Probe::Bytes(bytes) if summary.ooms > 0 => {
                self.failing_steps = bytes / STEP_BYTES;
                self.has_failed |= self.failing_steps >= u64::MAX / STEP_BYTES / 2;
            }
            Probe::Bytes(bytes) if depends_on_limit => self.working = Some((bytes / STEP_BYTES, summary)),
            Probe::Bytes(_) => self.working = Some((reserved_steps, summary)),
            Probe::Unlimited if summary.ooms > 0 => self.has_failed = true,
            Probe::Unlimited if depends_on_limit => self.needed_steps = Some(reserved_steps),
            Probe::Unlimited => self.working = Some((reserved_steps, summary)),
        }
    }

    /// Returns the result of the finished search; `None` if the program fails even without a limit.
    pub(super) fn result(&self) -> Option<SmallestCapacity> {
        let &(steps, predicted) = self.working.as_ref()?;
        Some(SmallestCapacity { settings: self.settings.clone(), capacity_bytes: bytes_of(steps), predicted })
    }
}

/// Returns the bytes of a number of steps.
fn bytes_of(steps: u64) -> u64 {
    steps.saturating_mul(STEP_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches for a program that needs `needed` bytes and reserves up to `wanted` bytes. Returns
    /// the capacity and the number of runs.
    fn search(conf: &str, floor: u64, needed: u64, wanted: u64) -> (Option<u64>, usize) {
        let settings = Settings::parse(conf).expect("valid settings");
        let mut search = CapacitySearch::new(&settings, floor);
        let mut runs = 0;
        while let Some(probe) = search.next_probe() {
            runs += 1;
            let bytes = if let Probe::Bytes(bytes) = probe { bytes } else { u64::MAX };
            let ooms = u64::from(bytes < needed);
            let peak_reserved_bytes = bytes.min(wanted);
            search.finish(probe, RunSummary { ooms, peak_reserved_bytes, ..RunSummary::default() });
        }
        (search.result().map(|result| result.capacity_bytes), runs)
    }

    #[test]
    fn bisection_finds_the_smallest_working_capacity() {
        const MIB: u64 = 1 << 20;
        // Settings, floor, needed, wanted, found, most runs.
        let table = [
            ("", 100 * MIB, 100 * MIB, 100 * MIB, Some(100 * MIB), 1),
            ("", 99 * MIB, 100 * MIB, 140 * MIB, Some(100 * MIB), 6),
            ("", 1, 512, 2 * MIB, Some(2 * MIB), 1),
            ("", 0, 0, 0, Some(2 * MIB), 1),
            ("", 10 * MIB, 4096 * MIB, 8192 * MIB, Some(4096 * MIB), 14),
            ("garbage_collection_threshold:0.5", 10 * MIB, 100 * MIB, 80 * MIB, Some(100 * MIB), 10),
            ("expandable_segments:True", 10 * MIB, 400 * MIB, 80 * MIB, Some(400 * MIB), 14),
            ("expandable_segments:True", 10 * MIB, 80 * MIB, 80 * MIB, Some(80 * MIB), 8),
        ];
        for (conf, floor, needed, wanted, found, most) in &table {
            let (capacity, runs) = search(conf, *floor, *needed, *wanted);
            assert_eq!(capacity, *found, "{conf} {floor} {needed} {wanted}");
            assert!(runs <= *most, "{runs} runs for {conf} {floor} {needed} {wanted}");
        }
    }

    #[test]
    fn program_that_always_fails_has_no_capacity() {
        let mut search = CapacitySearch::new(&Settings::default(), 1 << 20);
        let failed = RunSummary { ooms: 1, ..RunSummary::default() };
        search.finish(Probe::Unlimited, failed);
        assert_eq!((search.next_probe(), search.result()), (None, None));
    }
}
