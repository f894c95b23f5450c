//! The times of a recording's events.

/// Times of events by their index, at 4 bytes an event.
#[derive(Debug, Default)]
pub(super) struct EventTimes {
    groups: Vec<TimeGroup>,
    /// Nanoseconds since the base of the event's group.
    offsets: Vec<u32>,
}

/// Consecutive events that are each less than 2³² ns (4.3 s) after the first of them.
#[derive(Clone, Copy, Debug)]
struct TimeGroup {
    /// Index of the first event in the recording.
    first_event: u64,
    /// Position of the first event in [`EventTimes::offsets`].
    start: usize,
    /// Time of the first event.
    base_ns: u64,
}

impl EventTimes {
    /// Adds the event with index `event`; indexes must increase. A time that is earlier than that
    /// of the event before counts as equal to it.
    #[inline]
    pub(super) fn push(&mut self, event: u64, time_ns: u64) {
        let offset = self.groups.last().and_then(|group| {
            let follows = group.first_event + (self.offsets.len() - group.start) as u64 == event;
            let earliest = self.offsets.last().copied().unwrap_or(0);
            let offset = time_ns.saturating_sub(group.base_ns).max(u64::from(earliest));
            u32::try_from(offset).ok().filter(|_| follows)
        });
        if offset.is_none() {
            self.groups.push(TimeGroup { first_event: event, start: self.offsets.len(), base_ns: time_ns });
        }
        self.offsets.push(offset.unwrap_or(0));
    }

    /// Returns the time of the event with index `event`, in nanoseconds; of an event that was not
    /// added, that of the last one before it, or 0.
    #[inline]
    pub(super) fn at(&self, event: u64) -> u64 {
        let after = self.groups.partition_point(|group| group.first_event <= event);
        let Some(group) = after.checked_sub(1).map(|group| self.groups[group]) else { return 0 };
        let end = self.groups.get(after).map_or(self.offsets.len(), |next| next.start);
        let position = (event - group.first_event).min((end - group.start) as u64 - 1);
        group.base_ns + u64::from(self.offsets[group.start + position as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_that_were_added() {
        let second = 1_000_000_000;
        // A gap in the indexes, a long pause, and a clock that goes back.
        let added = [(3, 7), (4, 9), (5, 9), (9, 20), (10, 30 * second), (11, 30 * second + 1), (12, second)];
        let mut times = EventTimes::default();
        added.iter().for_each(|&(event, time_ns)| times.push(event, time_ns));
        for (event, time_ns) in added {
            let expected = if event == 12 { 30 * second + 1 } else { time_ns };
            assert_eq!(times.at(event), expected, "event {event}");
        }
        assert_eq!((times.at(0), times.at(7), times.at(99)), (0, 9, 30 * second + 1));
        assert_eq!(EventTimes::default().at(5), 0);
    }
}
