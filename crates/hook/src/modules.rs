//! The names of the program's modules (`torch.nn.Module`).
//!
//! A frame of a module's method has the module's address, which another module may get once the
//! first one is freed. So each named module has an *identity*, a number that no other module has.
//! The tracker looks the identity up by the address and writes it to the ring. Only Python knows
//! the name of a module in its model: the Python package passes the names on request, and a weak
//! reference reports when a module is freed. A request that a module made before it was named is
//! recorded without the module's name.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vramscope_collector::session::{lifecycle::ProcessMutex, stderr_log};

use crate::hash::HASH_MULTIPLIER;
use crate::notes::time_stamp;
use crate::pace::SearchPace;

/// Number of slots in the table of module identities. The table takes 2 MiB of addresses, but only
/// its used pages take memory. Large models have some ten thousand modules.
const SLOTS: usize = 1 << 18;
/// Number of adjacent slots that are searched for a module, from the one that its address selects.
/// With up to 65,536 modules, a quarter of the slots, a search needs at most 12.
const WINDOW: usize = 16;
/// Bits of an address that can be set: CPython's allocator aligns objects to 16 bytes.
const ADDRESS_MASK: u64 = (1 << 48) - 16;
/// Number of bits by which the module's address is shifted left in its identity.
const COUNT_SHIFT: u32 = 16;
/// Number of low bits of an identity, which are a counter. The counter wraps after a million
/// modules; by then the tracker's table of stacks has forgotten the first ones.
const COUNT_BITS: u32 = 20;
/// Number of freed modules whose names are kept: the ring may still have the definitions of their
/// stacks, which take some ten words each.
const KEPT_FREED: usize = 1 << 16;

/// The identity that stands for all modules without a name.
pub(crate) const UNNAMED: u64 = 1;

/// Returns true if a Python object can have this address: it is aligned and below 2^48.
#[inline]
fn is_address(address: u64) -> bool {
    address != 0 && address & !ADDRESS_MASK == 0
}

/// Returns true if the identity was given to a module at this address.
#[inline]
fn is_identity_of(identity: u64, address: u64) -> bool {
    identity ^ address << COUNT_SHIFT < 1 << COUNT_BITS
}

/// The identities of modules that are alive, by address. Reading takes no lock.
struct Identities<const SLOTS: usize>([AtomicU64; SLOTS]);

impl<const SLOTS: usize> Identities<SLOTS> {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; SLOTS])
    }

    /// Returns the index of the first of the [`WINDOW`] slots of the module at `address`.
    #[inline]
    fn first_slot(address: u64) -> usize {
        ((address >> 4).wrapping_mul(HASH_MULTIPLIER) >> 32) as usize % SLOTS
    }

    /// Iterates over the [`WINDOW`] slots in which the module at `address` can be stored.
    fn window(&self, address: u64) -> impl Iterator<Item = &AtomicU64> {
        let first = Self::first_slot(address);
        (first..first + WINDOW).map(|index| &self.0[index % SLOTS])
    }

    /// Returns the identity of the module at an address; [`UNNAMED`] if it was not named.
    #[inline]
    fn get(&self, address: u64) -> u64 {
        // The name is stored before the identity, so that the follower finds it.
        let identity = self.0[Self::first_slot(address)].load(Ordering::Acquire);
        if is_identity_of(identity, address) { identity } else { self.get_in_window(address) }
    }

    /// Returns the identity of the module at an address, searching its whole window; [`UNNAMED`] if
    /// it was not named.
    #[cold]
    fn get_in_window(&self, address: u64) -> u64 {
        self.find(address).map_or(UNNAMED, |slot| slot.load(Ordering::Acquire))
    }

    /// Returns the slot of a module; `None` if it was not named.
    fn find(&self, address: u64) -> Option<&AtomicU64> {
        self.window(address).find(|slot| is_identity_of(slot.load(Ordering::Acquire), address))
    }

    /// Returns the slot of the module at an address, or a free slot if it has none; `None` if its
    /// window is full. Only one thread at a time may call this.
    fn slot(&self, address: u64) -> Option<&AtomicU64> {
        let free = || self.window(address).find(|slot| slot.load(Ordering::Relaxed) == 0);
        self.find(address).or_else(free)
    }
}

/// The names of modules by identity.
#[derive(Debug, Default)]
struct Names {
    by_identity: HashMap<u64, Arc<str>>,
    /// Identities of freed modules whose names are kept, in the order in which they were freed.
    freed: VecDeque<u64>,
    /// The counter in the low bits of the last identity.
    last_count: u64,
}

impl Names {
    /// Adds the identity of a freed module. Beyond [`KEPT_FREED`], removes the names of the modules
    /// that were freed first.
    fn add_freed(&mut self, identity: u64) {
        self.freed.push_back(identity);
        while self.freed.len() > KEPT_FREED {
            let oldest = self.freed.pop_front();
            oldest.and_then(|identity| self.by_identity.remove(&identity));
        }
    }
}

/// Modules, by address, and their names, by identity.
struct ModuleTable<const SLOTS: usize> {
    identities: Identities<SLOTS>,
    names: ProcessMutex<Names>,
}

/// The modules of the process.
static MODULES: ModuleTable<SLOTS> = ModuleTable::new();

/// True once the message about too many modules has been printed.
static HAS_REPORTED: AtomicBool = AtomicBool::new(false);

impl<const SLOTS: usize> ModuleTable<SLOTS> {
    const fn new() -> Self {
        Self { identities: Identities::new(), names: ProcessMutex::new() }
    }

    /// Returns the identity of the module at an address; [`UNNAMED`] if it was not named.
    #[inline]
    fn identity(&self, address: u64) -> u64 {
        self.identities.get(address)
    }

    /// Returns the name of the module with an identity; `None` without a name.
    fn name(&self, identity: u64) -> Option<Arc<str>> {
        self.names.lock().by_identity.get(&identity).cloned()
    }

    /// Gives the module at an address a name, which replaces an earlier one, and returns true.
    /// Returns false if there is no slot for the module.
    fn add(&self, address: u64, name: &str) -> bool {
        let mut names = self.names.lock();
        // In a forked child, the module may have an identity of its parent, without the name.
        let known = self.identities.get(address);
        if names.by_identity.get(&known).is_some_and(|known| &**known == name) {
            return true;
        }
        let Some(slot) = self.identities.slot(address).filter(|_| is_address(address)) else { return false };
        names.last_count = names.last_count % ((1 << COUNT_BITS) - 1) + 1;
        let identity = address << COUNT_SHIFT | names.last_count;
        names.by_identity.insert(identity, Arc::from(name));
        // A renamed module gets a new identity, so that only later requests get the new name.
        slot.store(identity, Ordering::Release);
        if known != UNNAMED {
            names.add_freed(known);
        }
        true
    }

    /// Removes the module at an address, if it was named. Its name is kept for a while, for its
    /// requests that are still in a ring.
    fn remove(&self, address: u64) {
        let mut names = self.names.lock();
        if let Some(slot) = self.identities.find(address) {
            names.add_freed(slot.swap(0, Ordering::Relaxed));
        }
    }
}

/// Returns the identity of the module at an address; [`UNNAMED`] if it was not named.
#[inline]
pub(crate) fn identity(address: u64) -> u64 {
    MODULES.identity(address)
}

/// Returns the name of the module with an identity; `None` without a name.
pub(crate) fn name(identity: u64) -> Option<Arc<str>> {
    if identity == UNNAMED { None } else { MODULES.name(identity) }
}

/// Gives the module at an address a name, which replaces an earlier one, and returns true. Returns
/// false if there are too many modules; the first time, a message says so.
///
/// The caller must call [`remove`] before the module's memory is freed.
pub(crate) fn add(address: u64, name: &str) -> bool {
    let is_added = MODULES.add(address, name);
    if !is_added && !HAS_REPORTED.swap(true, Ordering::Relaxed) {
        stderr_log::print(&format!("too many modules ({name} is one): some have no name in the recording"));
    }
    is_added
}

/// Removes the module at an address from the table, because it is about to be freed.
pub(crate) fn remove(address: u64) {
    MODULES.remove(address);
}

/// True if a module without a name made a request since the last search for modules.
static WANTS_NAMES: AtomicBool = AtomicBool::new(false);
/// When the last search for modules began, by the clock of trace entries.
static SEARCH_BEGAN: AtomicU64 = AtomicU64::new(0);
/// Decides when the next search for modules may begin.
static SEARCHES: ProcessMutex<SearchPace> = ProcessMutex::new();

/// Requests a search for modules, because a module without a name made a request at `time`, by the
/// clock of trace entries. Does nothing if a search began later: it has found the module.
#[inline]
pub(crate) fn want_names(time: u64) {
    if time >= SEARCH_BEGAN.load(Ordering::Relaxed) {
        WANTS_NAMES.store(true, Ordering::Relaxed);
    }
}

/// Returns true if Python should search for modules and pass their names.
pub(crate) fn wants_search() -> bool {
    WANTS_NAMES.load(Ordering::Relaxed) && SEARCHES.lock().is_due(Instant::now())
}

/// Begins a search for modules and returns true. Returns false if no search is needed any more, or
/// if the pause after the last search has not passed: another request may have caused a search in
/// the meantime.
pub(crate) fn begin_search() -> bool {
    let mut searches = SEARCHES.lock();
    let begins = WANTS_NAMES.load(Ordering::Relaxed) && searches.begin(Instant::now());
    if begins {
        SEARCH_BEGAN.store(time_stamp(), Ordering::Relaxed);
        WANTS_NAMES.store(false, Ordering::Relaxed);
    }
    begins
}

/// Ends the search for modules, with or without success. `duration` is the time it took, on which
/// the pause before the next search depends.
pub(crate) fn end_search(duration: Duration) {
    SEARCHES.lock().end(Instant::now(), duration);
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: u64 = 0x7f00_1234_5670;
    const B: u64 = 0x7f00_1234_5680;

    #[test]
    fn module_at_the_address_of_a_freed_one_has_another_identity() {
        let table = ModuleTable::<64>::new();
        assert_eq!(table.identity(A), UNNAMED);
        assert!(table.add(A, "Net"));
        let first = table.identity(A);
        assert_eq!(table.identity(B), UNNAMED, "a neighbor");
        table.remove(A);
        assert_eq!(table.identity(A), UNNAMED);
        assert!(table.add(A, "Critic") && table.add(B, "Net"));
        let identities = [first, table.identity(A), table.identity(B)];
        assert_eq!(
            identities.map(|identity| table.name(identity).expect("a name")).each_ref().map(|name| &**name),
            ["Net", "Critic", "Net"]
        );
        assert!(identities[0] != identities[1] && !identities.contains(&UNNAMED));
    }

    #[test]
    fn module_keeps_its_identity_until_its_name_changes() {
        let table = ModuleTable::<64>::new();
        let mut add = |name: &str| {
            assert!(table.add(A, name));
            table.identity(A)
        };
        let [first, again, renamed] = ["Net", "Net", "DDP/module"].map(&mut add);
        assert_eq!(first, again);
        assert_ne!(first, renamed);
        assert_eq!(
            [first, renamed].map(|identity| table.name(identity)),
            [Some(Arc::from("Net")), Some(Arc::from("DDP/module"))]
        );
        table.remove(A);
        assert_eq!(table.identity(A), UNNAMED, "the first identity is not found again");
    }

    #[test]
    fn memory_is_bounded_by_the_modules_that_are_alive() {
        let table = ModuleTable::<64>::new();
        assert!(table.add(B, "alive"));
        table.names.lock().last_count = (1 << COUNT_BITS) - 1000;
        for number in 0..KEPT_FREED + 2000 {
            assert!(table.add(A, &number.to_string()), "module {number}");
            let identity = table.identity(A);
            table.remove(A);
            assert_eq!(table.name(identity).as_deref(), Some(&*number.to_string()), "a stack in the ring has it");
        }
        let names = table.names.lock();
        assert_eq!((names.by_identity.len(), names.freed.len()), (KEPT_FREED + 1, KEPT_FREED));
        drop(names);
        assert_eq!(table.name(table.identity(B)).as_deref(), Some("alive"));
    }

    #[test]
    fn modules_beyond_the_slots_have_no_name_until_others_are_freed() {
        let table = ModuleTable::<64>::new();
        let address = |number: u64| A + 16 * number;
        let added: Vec<_> = (0..100).filter(|&number| table.add(address(number), &number.to_string())).collect();
        assert!((WINDOW..=64).contains(&added.len()), "{added:?}");
        let check = |number: &u64| {
            let name = table.name(table.identity(address(*number)));
            assert_eq!(name.as_deref(), added.contains(number).then(|| number.to_string()).as_deref());
        };
        (0..100).for_each(|number| check(&number));
        let refused = (0..100).find(|number| !added.contains(number)).expect("one is refused");
        added.iter().for_each(|&number| table.remove(address(number)));
        assert!(table.add(address(refused), "later"));
        assert_eq!(table.name(table.identity(address(refused))).as_deref(), Some("later"));
    }

    #[test]
    fn large_models_have_slots() {
        static TABLE: ModuleTable<SLOTS> = ModuleTable::new();
        // Addresses are spread as a program's are: in steps of 64 bytes, in a few memory areas.
        let address = |number: u64| A + ((number / 1000) << 20) + (number % 1000) * 64;
        let mut farthest = 0;
        for number in 0..65_536 {
            assert!(TABLE.add(address(number), "Net"), "module {number}");
            let used = TABLE
                .identities
                .window(address(number))
                .position(|slot| slot.load(Ordering::Relaxed) == TABLE.identity(address(number)));
            farthest = farthest.max(used.expect("a slot in its window"));
        }
        println!("slots from the first one: {farthest}");
    }

    #[test]
    fn words_that_are_no_address_have_no_name() {
        let table = ModuleTable::<64>::new();
        for address in [0, 1, A + 8, 1 << 48] {
            assert!(!table.add(address, "Net"));
            assert_eq!(table.name(table.identity(address)), None, "{address}");
        }
    }
}
