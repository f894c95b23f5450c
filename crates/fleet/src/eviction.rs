//! Removes processes from maps of limited size.

use std::collections::BTreeMap;

/// Removes the process with the smallest `key` and returns it; `None` if no process may be removed.
/// `key` returns `None` for a process that must stay.
pub(crate) fn remove_least<V, K: Ord>(processes: &mut BTreeMap<String, V>, key: impl Fn(&V) -> Option<K>) -> Option<V> {
    let removable = processes.iter().filter_map(|(identity, process)| Some((key(process)?, identity)));
    let (_, identity) = removable.min()?;
    let identity = identity.clone();
    processes.remove(&identity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_process_that_may_go_is_removed() {
        let mut processes: BTreeMap<String, u32> =
            [("a", 7), ("b", 3), ("c", 1)].map(|(name, n)| (name.to_owned(), n)).into();
        let key = |number: &u32| (*number > 1).then_some(*number);
        assert_eq!([0; 3].map(|_| remove_least(&mut processes, key)), [Some(3), Some(7), None]);
        assert_eq!(processes.len(), 1);
    }
}
