//! Finds the least memory that a program runs in under given settings, by bisection.

use vramscope_pool::Settings;
use vramscope_pool::rerun::RunSummary;

/// Size of one step of the search, in bytes. The driver provides memory in multiples of it.
const STEP_BYTES: u64 = 2 << 20;
/// Minimum number of steps by which the capacity is raised, if a request fails although the
/// capacity is what an unlimited run reserved.
const MIN_GROWTH_STEPS: u64 = 8;

/// The least memory that a program runs in under some settings without a failed request.
#[derive(Clone, Debug, PartialEq)]
pub struct SmallestCapacity {
    /// The settings.
    pub settings: Settings,
    /// The least bytes that the allocator must be allowed to reserve; with 2 MiB less, a request
    /// fails.
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
    /// The largest known capacity with which a request fails, in steps of [`STEP_BYTES`].
    failing_steps: u64,
    /// The smallest known capacity with which no request fails, in steps, and the figures of its
    /// run.
    working: Option<(u64, RunSummary)>,
    /// The number of steps that the unlimited run reserved, before a run with a limit has worked.
    /// Only for settings that act differently with a limit.
    needed_steps: Option<u64>,
    /// Whether a request fails even without a limit.
    has_failed: bool,
}

impl CapacitySearch {
    /// Prepares the search. A program with `floor_bytes` of live requests fails with less.
    pub(super) fn new(settings: &Settings, floor_bytes: u64) -> Self {
        // The search determines the limit.
        let settings = Settings { per_process_memory_fraction: 1.0, limit_bytes: None, ..settings.clone() };
        let failing_steps = floor_bytes.div_ceil(STEP_BYTES).saturating_sub(1);
        Self { settings, failing_steps, working: None, needed_steps: None, has_failed: false }
    }

    /// Uses the figures of an earlier run under the settings, with any limit, so that it need not
    /// be made again.
    pub(super) fn with_earlier_run(mut self, summary: RunSummary) -> Self {
        if summary.ooms == 0 && !self.depends_on_limit() {
            self.working = Some((self.sufficient_steps(&summary), summary));
        }
        self
    }

    /// Returns true if decisions depend on the limit even where it is not exceeded: garbage
    /// collection frees memory above a share of it.
    fn depends_on_limit(&self) -> bool {
        self.settings.garbage_collection_threshold > 0.0
    }

    /// Returns the smallest capacity in steps with which the allocator decides as it did in the run
    /// of `summary`: each of its requests to the driver is granted or refused as before.
    fn sufficient_steps(&self, summary: &RunSummary) -> u64 {
        summary.sufficient_bytes.div_ceil(STEP_BYTES).max(self.failing_steps + 1)
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
        let (sufficient_steps, depends_on_limit) = (self.sufficient_steps(&summary), self.depends_on_limit());
        match probe {
            Probe::Bytes(bytes) if summary.ooms > 0 => {
                self.failing_steps = bytes / STEP_BYTES;
                self.has_failed |= self.failing_steps >= u64::MAX / STEP_BYTES / 2;
            }
            Probe::Bytes(bytes) if depends_on_limit => self.working = Some((bytes / STEP_BYTES, summary)),
            Probe::Bytes(_) => self.working = Some((sufficient_steps, summary)),
            Probe::Unlimited if summary.ooms > 0 => self.has_failed = true,
            Probe::Unlimited if depends_on_limit => self.needed_steps = Some(sufficient_steps),
            Probe::Unlimited => self.working = Some((sufficient_steps, summary)),
        }
    }

    /// Returns the result of the finished search; `None` if the program fails even without a limit.
    pub(super) fn result(&self) -> Option<SmallestCapacity> {
        let &(steps, predicted) = self.working.as_ref()?;
        Some(SmallestCapacity { settings: self.settings.clone(), capacity_bytes: bytes_of(steps), predicted })
    }
}

/// Converts steps of [`STEP_BYTES`] to bytes.
fn bytes_of(steps: u64) -> u64 {
    steps.saturating_mul(STEP_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the figures of a run with a capacity of `bytes`: a request fails below `needed`
    /// bytes, and the program reserves up to `wanted` bytes.
    fn figures(bytes: u64, needed: u64, wanted: u64) -> RunSummary {
        RunSummary { ooms: u64::from(bytes < needed), sufficient_bytes: bytes.min(wanted), ..RunSummary::default() }
    }

    /// Makes all runs of a search. Returns the capacity and the number of runs.
    fn run(mut search: CapacitySearch, needed: u64, wanted: u64) -> (Option<u64>, usize) {
        let mut runs = 0;
        while let Some(probe) = search.next_probe() {
            runs += 1;
            let bytes = if let Probe::Bytes(bytes) = probe { bytes } else { u64::MAX };
            search.finish(probe, figures(bytes, needed, wanted));
        }
        (search.result().map(|result| result.capacity_bytes), runs)
    }

    /// Searches for a program that needs `needed` bytes and takes up to `wanted` bytes.
    fn search(conf: &str, floor: u64, needed: u64, wanted: u64) -> (Option<u64>, usize) {
        let settings = Settings::parse(conf).expect("valid settings");
        run(CapacitySearch::new(&settings, floor), needed, wanted)
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
        ];
        for (conf, floor, needed, wanted, found, most) in &table {
            let (capacity, runs) = search(conf, *floor, *needed, *wanted);
            assert_eq!(capacity, *found, "{conf} {floor} {needed} {wanted}");
            assert!(runs <= *most, "{runs} runs for {conf} {floor} {needed} {wanted}");
        }
    }

    #[test]
    fn earlier_run_is_not_made_again() {
        const MIB: u64 = 1 << 20;
        let check = |conf: &str, floor, needed, limit, expected| {
            let settings = Settings::parse(conf).expect("valid settings");
            let search = CapacitySearch::new(&settings, floor).with_earlier_run(figures(limit, needed, 100 * MIB));
            assert_eq!(run(search, needed, 100 * MIB), (Some(needed), expected), "{conf} {floor} {needed} {limit}");
        };
        check("", 100 * MIB, 100 * MIB, u64::MAX, 0);
        check("expandable_segments:True", 98 * MIB, 98 * MIB, 98 * MIB, 0);
        // The earlier run failed, or its limit may have changed its decisions.
        check("", 100 * MIB, 100 * MIB, 90 * MIB, 1);
        check("garbage_collection_threshold:0.5", 100 * MIB, 100 * MIB, u64::MAX, 2);
    }

    #[test]
    fn program_that_always_fails_has_no_capacity() {
        let mut search = CapacitySearch::new(&Settings::default(), 1 << 20);
        let failed = RunSummary { ooms: 1, ..RunSummary::default() };
        search.finish(Probe::Unlimited, failed);
        assert_eq!((search.next_probe(), search.result()), (None, None));
    }
}
