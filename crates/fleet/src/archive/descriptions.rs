//! A table of the descriptions of a run's processes, as read from the broker.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use vramscope_collector::Process;
use vramscope_insight::fleet::ProcessDescription;

use crate::eviction::remove_least;
use crate::process_record::ProcessRecord;

/// Maximum number of processes whose descriptions are kept.
const MAX_PROCESSES: usize = 16_384;

/// The descriptions of a run's processes, by identity.
#[derive(Debug, Default)]
pub(crate) struct Descriptions(Mutex<DescriptionState>);

/// The descriptions by identity, and the number of processes added so far.
#[derive(Debug, Default)]
struct DescriptionState {
    records: BTreeMap<String, ProcessRecord>,
    /// Number of processes added so far, including removed ones.
    added: u64,
}

impl Descriptions {
    fn lock(&self) -> MutexGuard<'_, DescriptionState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a process or replaces its description. Beyond [`MAX_PROCESSES`], removes an ended
    /// process, or else the one with the oldest description.
    pub(crate) fn insert(&self, record: ProcessRecord) {
        let mut state = self.lock();
        let is_new = !state.records.contains_key(&record.process.identity);
        if is_new && state.records.len() == MAX_PROCESSES {
            remove_least(&mut state.records, |known| Some(known.details.forget_first()));
        }
        state.added += u64::from(is_new);
        state.records.insert(record.process.identity.clone(), record);
    }

    /// Returns the number of processes added so far, including removed ones, so that a caller
    /// notices new ones.
    pub(crate) fn added(&self) -> u64 {
        self.lock().added
    }

    /// Returns the process with this identity; `None` until its description has arrived.
    pub(crate) fn process(&self, identity: &str) -> Option<Process> {
        self.lock().records.get(identity).map(|record| record.process.clone())
    }

    /// Returns the description of a process for roll-ups; `None` until it has arrived.
    pub(crate) fn description(&self, identity: &str) -> Option<ProcessDescription> {
        self.lock().records.get(identity).map(ProcessRecord::description)
    }
}
