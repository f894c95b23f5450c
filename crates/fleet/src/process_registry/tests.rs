//! Tests of which processes are read.

use super::*;
use crate::process_record::Details;

fn record(rank: u32, details: Details) -> ProcessRecord {
    let process = Process { identity: name(rank), rank: Some(rank), ..Process::default() };
    ProcessRecord { process, details }
}

fn name(rank: u32) -> String {
    format!("{rank:032x}")
}

fn sends_all() -> Details {
    Details { sends_all: true, ..Details::default() }
}

/// Returns the description of a process of `rank` that sends all, the `number`th one.
fn forged(rank: Option<u32>, number: u64) -> ProcessRecord {
    let process = Process { identity: format!("f{number:031x}"), rank, ..Process::default() };
    ProcessRecord { process, details: Details { sent_unix_ms: 1000 + number, ..sends_all() } }
}

/// Returns a registry of running processes that opens two at once.
fn registry(ranks: u32, are_current: bool) -> ProcessRegistry {
    let mut registry = ProcessRegistry::new(2);
    for rank in 0..ranks {
        let is_read = registry.describe(&record(rank, Details::default()), are_current, Instant::now());
        assert_eq!(is_read, are_current && rank < 2);
    }
    registry
}

/// Returns the ranks whose events are read.
fn read(registry: &ProcessRegistry, now: Instant) -> Vec<u32> {
    let states = registry.states(now).filter(|(_, events, _)| *events != EventsState::Closed);
    states.filter_map(|(record, ..)| record.process.rank).collect()
}

fn none_silent(_: &str) -> bool {
    false
}

#[test]
fn user_opened_process_replaces_automatic_and_silent_ones() {
    let (mut registry, now) = (registry(5, true), Instant::now());
    assert_eq!(read(&registry, now), [0, 1]);
    registry.close_automatic(&name(1));
    assert_eq!(read(&registry, now), [0]);
    assert_eq!(registry.open(&name(4), now, none_silent), Ok(()));
    assert_eq!(registry.open(&name(3), now, none_silent), Ok(()));
    assert_eq!(read(&registry, now), [3, 4]);
    assert_eq!(registry.open(&name(0), now, none_silent), Err(OpenError::Full(2)));
    // An open process stays open, also when a user closes it on another server.
    assert_eq!(registry.open(&name(3), now, none_silent), Ok(()));
    registry.close_automatic(&name(3));
    let later = now + MIN_OPEN_TIME;
    assert_eq!(registry.open(&name(0), now, |name| name == self::name(4)), Err(OpenError::Full(2)));
    assert_eq!(registry.open(&name(0), later, |name| name == self::name(4)), Ok(()));
    assert_eq!(read(&registry, later), [0, 3]);
    registry.close(&name(3));
    assert_eq!(read(&registry, later), [0]);
    assert_eq!(registry.open(&name(9), later, none_silent), Err(OpenError::Unknown));
    // No other process is opened instead of one that a user has closed.
    assert!(!registry.fill_places(later, none_silent));
    assert_eq!(read(&registry, later), [0]);
}

#[test]
fn lost_processes_give_their_places_to_others() {
    let (mut registry, now) = (registry(3, true), Instant::now());
    registry.open(&name(1), now, none_silent).expect("it is open");
    // The first two processes were killed and are restarted with other identities.
    for rank in [10, 11] {
        assert!(!registry.describe(&record(rank, Details::default()), true, now));
    }
    assert!(!registry.fill_places(now, none_silent), "all places are taken");
    assert!(registry.yield_place(&name(0)));
    // A user has opened the other process.
    assert!(!registry.yield_place(&name(1)));
    assert_eq!(read(&registry, now), [1]);
    // Rank 2 is silent, too.
    assert!(registry.fill_places(now, |identity| [name(0), name(1), name(2)].contains(&identity.to_owned())));
    assert_eq!(read(&registry, now), [1, 10]);
    assert!(!registry.fill_places(now, none_silent));
    // A lost process that was read before comes first when it is heard again.
    registry.set_device(&name(0), 0);
    registry.stop(&name(10), Stop::AtEnd, now);
    assert!(registry.fill_places(now, none_silent));
    assert_eq!(read(&registry, now), [0, 1]);
}

#[test]
fn requests_of_other_servers_count_while_they_are_valid() {
    let (mut registry, now) = (registry(4, false), Instant::now());
    let second = Duration::from_secs(1);
    assert!(registry.requested(&name(2), now + 15 * second, now));
    assert!(!registry.requested(&name(2), now + second, now));
    assert!(registry.requested(&name(3), now + 15 * second, now));
    assert!(!registry.requested("unknown", now + second, now));
    assert_eq!(read(&registry, now), [2, 3]);
    // These requests fill all places, so no process is opened automatically.
    assert!(!registry.describe(&record(4, Details::default()), true, now));
    assert_eq!(read(&registry, now), [2, 3]);
    let later = now + 15 * second;
    assert!(read(&registry, later).is_empty());
    assert!(!registry.fill_places(later, none_silent));
    assert!(registry.requested(&name(2), later + second, later));
    assert_eq!(registry.opened().count(), 0);
}

#[test]
fn ended_processes_are_read_while_the_broker_has_their_events() {
    let (mut registry, now) = (registry(0, true), Instant::now());
    let ended = Details { has_ended: true, ..Details::default() };
    assert!(!registry.describe(&record(0, ended.clone()), false, now));
    assert!(!registry.describe(&record(1, Details { start_sequence: 7, ..ended }), false, now));
    assert!(registry.describe(&record(2, sends_all()), true, now));
    assert!(!registry.describe(&record(3, sends_all()), false, now));
    assert_eq!(registry.open(&name(0), now, none_silent), Err(OpenError::Ended));
    assert_eq!(registry.open(&name(1), now, none_silent), Ok(()));
    assert_eq!(registry.open(&name(2), now, none_silent), Ok(()));
    assert_eq!(read(&registry, now), [1, 2]);
    // No events are requested from a process that has ended.
    assert_eq!(registry.opened().count(), 0);
    assert!(registry.set_device(&name(1), 5));
    assert!(!registry.set_device(&name(1), 5));
    registry.stop(&name(1), Stop::AtEnd, now);
    assert_eq!(read(&registry, now), [2]);
    assert_eq!(registry.states(now).find_map(|(_, _, device)| device), Some(5));
    // The server's recording has its events.
    assert_eq!(registry.open(&name(1), now, none_silent), Ok(()));
    // This also holds for a process that sent all events, unless the broker has none of them.
    let stopped = registry.stop(&name(2), Stop::AtEnd, now).expect("it is known");
    assert!(stopped.details.has_ended);
    assert_eq!(registry.open(&name(2), now, none_silent), Err(OpenError::Ended));
    assert!(read(&registry, now).is_empty());
}

#[test]
fn refused_process_has_a_reason_and_is_read_again_after_the_retry_time() {
    let (mut registry, now) = (registry(0, true), Instant::now());
    for (rank, details) in [(0, sends_all()), (1, sends_all()), (2, Details::default())] {
        assert!(registry.describe(&record(rank, details), true, now));
    }
    registry.stop(&name(0), Stop::Refused("damaged".to_owned()), now);
    for rank in [1, 2] {
        registry.stop(&name(rank), Stop::NoPlace("full".to_owned()), now);
    }
    let later = now + RETRY_TIME;
    assert!(!registry.fill_places(later - Duration::from_millis(1), none_silent));
    for (rank, reason) in [(0, "damaged"), (1, "full"), (2, "full")] {
        let expected = Err(OpenError::Refused(reason.to_owned()));
        assert_eq!(registry.open(&name(rank), now, none_silent), expected);
        assert!(!registry.requested(&name(rank), later, now));
    }
    assert!(registry.fill_places(later, none_silent));
    assert_eq!(read(&registry, later), [1, 2]);
    assert!(matches!(registry.open(&name(0), later, none_silent), Err(OpenError::Refused(_))));
}

#[test]
fn any_process_can_be_opened_beyond_the_limit_of_always_read_ones() {
    let (mut registry, now) = (registry(0, true), Instant::now());
    let count = u32::try_from(MAX_READ).expect("a small number") + 2;
    for rank in 0..count {
        let is_read = registry.describe(&record(rank, sends_all()), true, now);
        assert_eq!(is_read, rank < count - 2);
    }
    assert!(!registry.fill_places(now, none_silent));
    assert_eq!(registry.open(&name(count - 1), now, none_silent), Ok(()));
    let is_read = |registry: &ProcessRegistry, rank| read(registry, now).contains(&rank);
    assert!(is_read(&registry, count - 1) && !is_read(&registry, count - 3), "the highest rank gives its place");
    assert_eq!(read(&registry, now).len(), MAX_READ);
    assert!(!registry.requested(&name(count - 2), now + RETRY_TIME, now));
    // A silent process is also replaced, and read again later.
    assert!(registry.yield_place(&name(7)));
    assert!(registry.fill_places(now, |identity| identity == name(7)));
    assert!(is_read(&registry, count - 3) && !is_read(&registry, 7));
    registry.close(&name(count - 1));
    assert!(registry.fill_places(now, none_silent));
    assert!(is_read(&registry, 7) && !is_read(&registry, count - 1));
}

#[test]
fn one_rank_cannot_take_the_places_of_others() {
    let (mut registry, now) = (registry(0, true), Instant::now());
    assert!(registry.describe(&record(0, sends_all()), true, now));
    // This process is described but not read, because it sends no events now.
    assert!(!registry.describe(&record(1, sends_all()), false, now));
    for number in 0..MAX_PROCESSES as u64 + 10 {
        assert!(registry.describe(&forged(Some(7), number), true, now), "the newest processes of a rank are read");
    }
    assert!(!registry.fill_places(now, none_silent));
    let read = read(&registry, now);
    assert_eq!((read.len(), read.contains(&0)), (1 + MAX_ALWAYS_READ_OF_RANK, true));
    assert_eq!(registry.processes.len(), MAX_PROCESSES);
    assert!(registry.process(&name(1)).is_some());
    assert!(registry.describe(&record(2, sends_all()), true, now));
}

#[test]
fn processes_without_rank_share_the_places_of_all() {
    let (mut registry, now) = (registry(0, true), Instant::now());
    for number in 0..MAX_READ as u64 + 1 {
        assert_eq!(registry.describe(&forged(None, number), true, now), number < MAX_READ as u64);
    }
}
