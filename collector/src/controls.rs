//! What a program lets those who watch it do, beside watching.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock, TryLockError};

/// What became of a command: a sentence for the person who gave it, whether it was done or not.
pub type Done = Result<String, String>;

type Act = Arc<dyn Fn() -> Done + Send + Sync>;
type ActOn = Arc<dyn Fn(&str) -> Done + Send + Sync>;

#[derive(Clone, Default)]
struct Offers {
    record: Option<Act>,
    mark: Option<ActOn>,
    empty_cache: Option<Act>,
}

/// A command from the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command<'a> {
    Record,
    Mark(&'a str),
    EmptyCache,
}

/// What a program offers to the page: nothing at first. Clones are the same, so that it may offer more while it is watched.
///
/// What is offered runs on a thread of the server, one command at a time, and may take as long as it likes.
#[derive(Clone, Default)]
pub struct Controls {
    offers: Arc<RwLock<Offers>>,
    /// Held while a command is obeyed.
    busy: Arc<Mutex<()>>,
}

impl Controls {
    /// Offers to write everything so far to a file.
    pub fn offer_record(&self, record: impl Fn() -> Done + Send + Sync + 'static) {
        self.offer(|offers| offers.record = Some(Arc::new(record)));
    }

    /// Offers to put a mark of any name into the recording.
    pub fn offer_mark(&self, mark: impl Fn(&str) -> Done + Send + Sync + 'static) {
        self.offer(|offers| offers.mark = Some(Arc::new(mark)));
    }

    /// Offers to give every unused segment back to the device.
    pub fn offer_empty_cache(&self, empty_cache: impl Fn() -> Done + Send + Sync + 'static) {
        self.offer(|offers| offers.empty_cache = Some(Arc::new(empty_cache)));
    }

    fn offer(&self, change: impl FnOnce(&mut Offers)) {
        change(&mut self.offers.write().unwrap_or_else(PoisonError::into_inner));
    }

    fn offers(&self) -> Offers {
        self.offers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The commands that are offered, by their names in an address.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        let Offers { record, mark, empty_cache } = self.offers();
        let offered = [(record.is_some(), "record"), (mark.is_some(), "mark"), (empty_cache.is_some(), "empty-cache")];
        offered.into_iter().filter(|(is_offered, _)| *is_offered).map(|(_, name)| name).collect()
    }

    /// Does as it is told; `None` where that is not offered. Says no where another command is still being obeyed.
    pub(crate) fn obey(&self, command: Command<'_>) -> Option<Done> {
        let Offers { record, mark, empty_cache } = self.offers();
        let act: Act = match command {
            Command::Record => record?,
            Command::Mark(name) => {
                let (mark, name) = (mark?, name.to_owned());
                Arc::new(move || mark(&name))
            }
            Command::EmptyCache => empty_cache?,
        };
        // One that panicked is obeyed no longer.
        let busy = match self.busy.try_lock() {
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(busy)) => Some(busy.into_inner()),
            Ok(busy) => Some(busy),
        };
        let Some(_busy) = busy else {
            return Some(Err("the command before it is still being obeyed; try again".to_owned()));
        };
        Some(act())
    }
}

impl fmt::Debug for Controls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Controls").field(&self.names()).finish()
    }
}
