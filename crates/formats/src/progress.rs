//! The progress of an import, and the function by which its caller stops it.

use std::ops::ControlFlow;

use crate::error::ReadError;

/// The phase of an import: receiving, reading, rebuilding the initial state, or writing events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ImportPhase {
    /// Receives and unpacks a file that can only be read once it is complete: JSON or an RMM log.
    #[default]
    Receiving,
    /// Reads the file. A pickle is unpacked and read at the same time, while its bytes arrive.
    Reading,
    /// Finds the memory state before the first event.
    Rebuilding,
    /// Passes events to the sink.
    Writing,
}

impl ImportPhase {
    /// Returns the fractions of the whole import, from 0 to 1, at which the phase begins and ends.
    /// Measured with a pickle of 4 million entries; the reading of a pickle begins at 0.
    const fn range(self) -> (f64, f64) {
        match self {
            Self::Receiving => (0.0, 0.1),
            Self::Reading => (0.0, 0.45),
            Self::Rebuilding => (0.45, 0.5),
            Self::Writing => (0.5, 1.0),
        }
    }
}

/// The progress of an import: its phase, and the fraction that is done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ImportProgress {
    /// The phase of the import.
    pub phase: ImportPhase,
    /// The part of the whole import that is done, from 0 to 1; never decreases. Bytes of a file of
    /// unknown length do not count.
    pub fraction: f64,
    /// Bytes of the file that have been read.
    pub read_bytes: u64,
    /// History entries that this phase has processed; 0 if it cannot tell.
    pub entries: u64,
}

/// A progress function that ignores progress and never stops the import.
pub fn ignore_progress(_: &ImportProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// The error of an import that the caller's progress function has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the import was cancelled")]
pub(crate) struct Cancelled;

impl From<Cancelled> for ReadError {
    fn from(_: Cancelled) -> Self {
        Self::cancelled()
    }
}

/// The progress of an import and the function that receives it.
pub(crate) struct ProgressReporter<'a> {
    progress: ImportProgress,
    report: &'a mut dyn FnMut(&ImportProgress) -> ControlFlow<()>,
}

impl<'a> ProgressReporter<'a> {
    /// Creates a reporter that continues from `progress`.
    pub(crate) fn new(progress: ImportProgress, report: &'a mut dyn FnMut(&ImportProgress) -> ControlFlow<()>) -> Self {
        Self { progress, report }
    }

    /// Sets the number of bytes of the file that have been read.
    pub(crate) fn set_read_bytes(&mut self, bytes: u64) {
        self.progress.read_bytes = bytes;
    }

    /// Reports that `done` of `total` units of a phase are done, and that the phase has processed
    /// `entries` history entries. Fails if the caller stops the import.
    pub(crate) fn report(&mut self, phase: ImportPhase, done: u64, total: u64, entries: u64) -> Result<(), Cancelled> {
        self.progress.advance(phase, done, total);
        self.progress.entries = entries;
        match (self.report)(&self.progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Cancelled),
        }
    }
}

impl ImportProgress {
    /// Sets the phase, of which `done` of `total` units are done, and the fraction of the whole
    /// import that follows.
    pub(crate) fn advance(&mut self, phase: ImportPhase, done: u64, total: u64) {
        let (begin, end) = phase.range();
        let share = if total == 0 { 0.0 } else { done.min(total) as f64 / total as f64 };
        self.phase = phase;
        self.fraction = self.fraction.max(begin + share * (end - begin));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fraction_grows_through_all_phases() {
        let mut seen = Vec::new();
        let mut report = |progress: &ImportProgress| {
            seen.push(progress.fraction);
            if progress.entries == 9 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let mut reporter = ProgressReporter::new(ImportProgress::default(), &mut report);
        for phase in [ImportPhase::Receiving, ImportPhase::Reading, ImportPhase::Rebuilding, ImportPhase::Writing] {
            for (done, total) in [(0, 0), (0, 4), (3, 4), (4, 4), (9, 4)] {
                assert_eq!(reporter.report(phase, done, total, 1), Ok(()));
            }
        }
        assert_eq!(reporter.report(ImportPhase::Writing, 4, 4, 9), Err(Cancelled));
        assert!(seen.is_sorted());
        assert_eq!(seen.last(), Some(&1.0));
    }
}
