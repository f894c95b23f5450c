//! The descriptions of a run's processes at the broker.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use vramscope_collector::Process;
use vramscope_insight::fleet::ProcessDescription;

use crate::eviction::remove_least;
use crate::process_record::ProcessRecord;

/// The most processes whose descriptions are remembered.
const MAX_PROCESSES: usize = 16_384;

/// The descriptions of a run's processes, by identity.
#[derive(Debug, Default)]
pub(crate) struct Descriptions(Mutex<DescriptionState>);

#[derive(Debug, Default)]
struct DescriptionState {
    records: BTreeMap<String, ProcessRecord>,
    /// How many processes were added so far.
    added: u64,
}

impl Descriptions {
    fn lock(&self) -> MutexGuard<'_, DescriptionState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a process or replaces its description. Beyond [`MAX_PROCESSES`], an old process is
    /// forgotten.
    pub(crate) fn insert(&self, record: ProcessRecord) {
        let mut state = self.lock();
        let is_new = !state.records.contains_key(&record.process.identity);
        if is_new && state.records.len() == MAX_PROCESSES {
            remove_least(&mut state.records, |known| Some(known.details.forget_first()));
        }
        state.added += u64::from(is_new);
        state.records.insert(record.process.identity.clone(), record);
    }

    /// Returns how many processes were added so far, by which changes are noticed.
    pub(crate) fn added(&self) -> u64 {
        self.lock().added
    }

    /// Returns who a process is, once its description has arrived.
    pub(crate) fn process(&self, identity: &str) -> Option<Process> {
        self.lock().records.get(identity).map(|record| record.process.clone())
    }

    /// Returns what the roll-ups show of a process, once its description has arrived.
    pub(crate) fn description(&self, identity: &str) -> Option<ProcessDescription> {
        self.lock().records.get(identity).map(ProcessRecord::description)
    }
}
