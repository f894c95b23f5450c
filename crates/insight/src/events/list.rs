//! The list of the events that match a query.

use vramscope_trace::{Recording, Replay};

use super::error::{EventListError, Result};
use super::freed_blocks::FreedBlocks;
use super::matches::{GROUP_EVENTS, GroupMatches, Matches};
use super::row::{EventRow, event_rows};
use crate::history::History;
use crate::query::{Matcher, ScanProgress};

/// The result of a search for the next or previous match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchSearch {
    /// The number of the matching event.
    Found(u64),
    /// No event in that direction matches.
    NotFound,
    /// As many events were searched as allowed; call again to continue.
    Unfinished,
}

/// The events of a recording that match a query, in order.
///
/// Without a query the list has every event, also events that were not recorded: position i has the
/// event number i + 1 + [`Recording::first_event`], and nothing needs to be searched. With a query,
/// [`step`](Self::step) searches the recording, from the cursor to the end and then from the start
/// to the cursor. The list can be read meanwhile; it then has the matches found so far, in order.
///
/// Up to 4 million matches are stored, at 2 bytes each. Beyond, the list keeps the number of
/// matches in each group of 4,096 events, and searches a group again when it is read.
#[derive(Clone, Debug, Default)]
pub struct EventList {
    matcher: Matcher,
    /// The recording's first and last moment, as of the last [`update`](Self::update).
    first: u64,
    end: u64,
    matches: Matches,
    /// Recorded events that were searched.
    searched: u64,
    /// Recorded events in all.
    recorded: u64,
    /// The group to search next.
    next_group: u64,
    /// The group with which the search began.
    begin_group: u64,
    /// Whether the search has passed the end and continued at the start.
    is_wrapped: bool,
    is_complete: bool,
    blocks: FreedBlocks,
    /// The group that was searched again last, with its matches.
    read_again: Option<(u64, Vec<u16>)>,
}

impl EventList {
    /// Creates the list of the events of a recording that match; the search begins at the event
    /// number `cursor`.
    #[must_use]
    pub fn new(recording: &Recording, matcher: Matcher, cursor: u64) -> Self {
        let begin_group = cursor.saturating_sub(1).max(recording.first_event()) / GROUP_EVENTS;
        let is_complete = matcher.matches_everything();
        Self {
            matcher,
            first: recording.first_event(),
            end: recording.end_event(),
            recorded: recording.events(),
            next_group: begin_group,
            begin_group,
            is_complete,
            ..Self::default()
        }
    }

    /// Adopts new events and definitions of a live recording, and drops events that the recording
    /// no longer has.
    pub fn update(&mut self, recording: &Recording) {
        let (first, end) = (recording.first_event(), recording.end_event());
        if (first, end) == (self.first, self.end) {
            return;
        }
        self.matcher.update(recording.definitions());
        self.read_again = None;
        if first > self.first {
            self.matches.remove_before(first / GROUP_EVENTS);
            self.matches.remove(first / GROUP_EVENTS);
        }
        // The last group may have been searched when it was not complete.
        if end > self.end
            && let Some(last) = self.matches.last_group().filter(|&last| last >= self.end / GROUP_EVENTS)
        {
            self.matches.remove(last);
        }
        (self.first, self.end, self.recorded) = (first, end, recording.events());
        if self.matcher.matches_everything() {
            return;
        }
        if self.is_complete {
            // Only the groups after the last one that was searched remain.
            self.search_from(self.matches.last_group().unwrap_or(first / GROUP_EVENTS));
            (self.begin_group, self.is_wrapped) = (u64::MAX, true);
        } else {
            self.search_from(self.next_group.max(first / GROUP_EVENTS));
        }
    }

    /// Continues the search at the event number `cursor`, and keeps the matches found so far.
    pub fn prioritize(&mut self, cursor: u64) {
        if !self.is_complete {
            self.search_from(cursor.saturating_sub(1).max(self.first) / GROUP_EVENTS);
        }
    }

    /// Restarts the search at a group; groups that were searched are skipped.
    fn search_from(&mut self, group: u64) {
        (self.begin_group, self.next_group) = (group, group);
        (self.is_wrapped, self.is_complete) = (false, false);
    }

    /// Searches up to about `max_events` events (at least one group of 4,096) and returns how far
    /// the search is.
    ///
    /// # Errors
    /// If a chunk is not loaded or cannot be read. Matches found so far are kept, and the next call
    /// tries these events again.
    pub fn step(&mut self, recording: &Recording, replay: &mut Replay, max_events: u64) -> Result<ScanProgress> {
        let mut budget = max_events.max(1);
        while budget > 0 && !self.is_complete {
            let start = self.next_group.saturating_mul(GROUP_EVENTS).max(self.first);
            match recording.next_event(start).filter(|&next| next < self.end).map(|next| next / GROUP_EVENTS) {
                Some(group) if !(self.is_wrapped && group >= self.begin_group) => {
                    let is_searched = self.matches.group(group).is_some();
                    let events = if is_searched { 0 } else { self.search_group(recording, replay, group)? };
                    // A group that was searched before costs little, but not nothing.
                    budget = budget.saturating_sub(events.max(16));
                    self.next_group = group + 1;
                }
                _ if self.is_wrapped => self.is_complete = true,
                _ => (self.is_wrapped, self.next_group) = (true, self.first / GROUP_EVENTS),
            }
        }
        Ok(self.progress())
    }

    /// Returns how many of the recorded events were searched.
    #[must_use]
    pub fn progress(&self) -> ScanProgress {
        let total = self.recorded.max(1);
        let done = if self.is_complete { total } else { self.searched.min(total - 1) };
        ScanProgress { done, total }
    }

    /// Searches a group and stores its matches. Returns the number of its recorded events.
    fn search_group(&mut self, recording: &Recording, replay: &mut Replay, group: u64) -> Result<u64> {
        let (matches, events) = self.matches_in(recording, replay, group)?;
        self.matches.insert(group, &matches);
        self.searched = self.searched.saturating_add(events);
        Ok(events)
    }

    /// Returns the matches in a group, each as its index in the group, and the number of the
    /// group's recorded events.
    fn matches_in(&mut self, recording: &Recording, replay: &mut Replay, group: u64) -> Result<(Vec<u16>, u64)> {
        let start = group.saturating_mul(GROUP_EVENTS);
        let end = start.saturating_add(GROUP_EVENTS).min(self.end);
        let failed = |error| EventListError::reading(recording, start.max(self.first), end.saturating_sub(1), error);
        let (mut matches, mut events) = (Vec::new(), 0);
        let mut index = start.max(self.first);
        while index < end {
            let Some(event) = replay.event(recording, index).map_err(failed)? else {
                match recording.next_event(index).filter(|&next| next > index) {
                    Some(next) => index = next,
                    None => break,
                }
                continue;
            };
            events += 1;
            let freed = if self.matcher.needs_freed_block() {
                self.blocks.visit(recording, replay, index, &event).map_err(failed)?
            } else {
                None
            };
            if self.matcher.matches_event(index + 1, &event, freed.as_ref(), recording.definitions()) {
                matches.push((index - start) as u16);
            }
            index += 1;
        }
        Ok((matches, events))
    }

    /// Returns the matches of a group that was searched, each as its index in the group; searches
    /// it again if they are not stored.
    fn group_matches(&mut self, recording: &Recording, replay: &mut Replay, group: u64) -> Result<Vec<u16>> {
        match self.matches.group(group) {
            Some(GroupMatches::Stored(matches)) => return Ok(matches.to_vec()),
            Some(GroupMatches::Counted(0)) | None => return Ok(Vec::new()),
            Some(GroupMatches::Counted(_)) => {}
        }
        if let Some((_, matches)) = self.read_again.as_ref().filter(|(last, _)| *last == group) {
            return Ok(matches.clone());
        }
        let (matches, _) = self.matches_in(recording, replay, group)?;
        self.read_again = Some((group, matches.clone()));
        Ok(matches)
    }

    /// Returns true if all events were searched.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns the number of events in the list, as far as they are found.
    #[must_use]
    pub fn len(&self) -> u64 {
        if self.matcher.matches_everything() { self.end.saturating_sub(self.first) } else { self.matches.len() }
    }

    /// Returns true if the list has no events so far.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the numbers of up to `count` events from position `offset` on.
    ///
    /// # Errors
    /// If a chunk is not loaded or cannot be read, and its matches are not stored.
    pub fn numbers(
        &mut self,
        recording: &Recording,
        replay: &mut Replay,
        offset: u64,
        count: usize,
    ) -> Result<Vec<u64>> {
        if self.matcher.matches_everything() {
            let start = self.first.saturating_add(1).saturating_add(offset);
            let end = start.saturating_add(count as u64).min(self.end.saturating_add(1));
            return Ok((start..end).collect());
        }
        let mut numbers = Vec::new();
        let Some((mut group, before)) = self.matches.group_at(offset) else { return Ok(numbers) };
        let mut skipped = usize::try_from(offset - before).unwrap_or(usize::MAX);
        loop {
            let start = group.saturating_mul(GROUP_EVENTS).saturating_add(1);
            let matches = self.group_matches(recording, replay, group)?;
            let left = count - numbers.len();
            numbers.extend(matches.iter().skip(skipped).take(left).map(|&index| start + u64::from(index)));
            skipped = 0;
            match self.matches.group_after(group) {
                Some(next) if numbers.len() < count => group = next,
                _ => return Ok(numbers),
            }
        }
    }

    /// Returns the rows of up to `count` events from position `offset` on; see [`event_rows`].
    ///
    /// # Errors
    /// If a chunk is not loaded or cannot be read.
    pub fn rows(
        &mut self,
        recording: &Recording,
        replay: &mut Replay,
        history: Option<&History>,
        offset: u64,
        count: usize,
    ) -> Result<Vec<EventRow>> {
        let numbers = self.numbers(recording, replay, offset, count)?;
        event_rows(recording, replay, history, numbers)
    }

    /// Returns the position of the first event in the list whose number is at least `number`, as
    /// far as the events are found.
    ///
    /// # Errors
    /// If a chunk is not loaded or cannot be read, and its matches are not stored.
    pub fn position_of(&mut self, recording: &Recording, replay: &mut Replay, number: u64) -> Result<u64> {
        if self.matcher.matches_everything() {
            return Ok(number.saturating_sub(self.first.saturating_add(1)).min(self.len()));
        }
        let index = number.saturating_sub(1);
        let (group, within) = (index / GROUP_EVENTS, index % GROUP_EVENTS);
        let matches = self.group_matches(recording, replay, group)?;
        let before = matches.partition_point(|&one| u64::from(one) < within) as u64;
        Ok(self.matches.count_before(group).saturating_add(before))
    }

    /// Finds the first matching event after the moment `moment`, searching up to about `max_events`
    /// events that were not searched before.
    ///
    /// # Errors
    /// If a chunk is not loaded or cannot be read.
    pub fn next_match(
        &mut self,
        recording: &Recording,
        replay: &mut Replay,
        moment: u64,
        max_events: u64,
    ) -> Result<MatchSearch> {
        let mut index = moment.max(self.first);
        let mut budget = max_events.max(1);
        while let Some(next) = recording.next_event(index).filter(|&next| next < self.end) {
            if self.matcher.matches_everything() {
                return Ok(MatchSearch::Found(next + 1));
            }
            let (group, within) = (next / GROUP_EVENTS, next % GROUP_EVENTS);
            let Some(used) = self.search_if_needed(recording, replay, group, budget)? else {
                return Ok(MatchSearch::Unfinished);
            };
            budget = budget.saturating_sub(used);
            let matches = self.group_matches(recording, replay, group)?;
            if let Some(&found) = matches.iter().find(|&&one| u64::from(one) >= within) {
                return Ok(MatchSearch::Found(group * GROUP_EVENTS + u64::from(found) + 1));
            }
            index = (group + 1).saturating_mul(GROUP_EVENTS);
        }
        Ok(MatchSearch::NotFound)
    }

    /// Finds the last matching event before the event with number `moment`, searching up to about
    /// `max_events` events that were not searched before.
    ///
    /// # Errors
    /// If a chunk is not loaded or cannot be read.
    pub fn previous_match(
        &mut self,
        recording: &Recording,
        replay: &mut Replay,
        moment: u64,
        max_events: u64,
    ) -> Result<MatchSearch> {
        let mut before = moment.saturating_sub(1).min(self.end);
        let mut budget = max_events.max(1);
        while let Some(last) = previous_event(recording, self.first, before) {
            if self.matcher.matches_everything() {
                return Ok(MatchSearch::Found(last + 1));
            }
            let (group, within) = (last / GROUP_EVENTS, last % GROUP_EVENTS);
            let Some(used) = self.search_if_needed(recording, replay, group, budget)? else {
                return Ok(MatchSearch::Unfinished);
            };
            budget = budget.saturating_sub(used);
            let matches = self.group_matches(recording, replay, group)?;
            if let Some(&found) = matches.iter().rev().find(|&&one| u64::from(one) <= within) {
                return Ok(MatchSearch::Found(group * GROUP_EVENTS + u64::from(found) + 1));
            }
            before = group * GROUP_EVENTS;
        }
        Ok(MatchSearch::NotFound)
    }

    /// Searches a group unless it was searched. Returns the work that this took, in events; `None`
    /// if `budget` is 0.
    fn search_if_needed(
        &mut self,
        recording: &Recording,
        replay: &mut Replay,
        group: u64,
        budget: u64,
    ) -> Result<Option<u64>> {
        if budget == 0 {
            return Ok(None);
        }
        if self.matches.group(group).is_some() {
            return Ok(Some(16));
        }
        self.search_group(recording, replay, group).map(Some)
    }
}

/// Returns the index (from 0) of the last recorded event before the index `before`, from `first`
/// on.
fn previous_event(recording: &Recording, first: u64, before: u64) -> Option<u64> {
    // No event is recorded from `empty_from` to `before`.
    let (mut low, mut empty_from) = (first, before);
    while low < empty_from {
        let middle = low + (empty_from - low) / 2;
        if recording.next_event(middle).is_none_or(|next| next >= before) {
            empty_from = middle;
        } else {
            low = middle + 1;
        }
    }
    empty_from.checked_sub(1).filter(|&last| last >= first && last < before)
}

#[cfg(test)]
mod tests {
    use vramscope_trace::{DeviceId, Encoder, Event, EventKind, RecordingInfo, Sink, SiteId};

    use super::*;
    use crate::query::Query;

    #[test]
    fn matches_that_are_not_stored_are_found_again() {
        let mut encoder = Encoder::new(&RecordingInfo::default());
        for index in 0..20_000 {
            let kind = if index % 3 == 0 {
                EventKind::FreeRequested { address: 512, site: SiteId(0) }
            } else {
                EventKind::Gap { lost: 0 }
            };
            encoder.event(&Event { device: DeviceId(0), time_ns: index, kind });
        }
        encoder.flush();
        let mut recording = Recording::new();
        for chunk in encoder.take_output() {
            recording.push(&chunk.bytes).expect("the encoder writes valid chunks");
        }
        let expected: Vec<u64> = (0..20_000).filter(|index| index % 3 == 0).map(|index| index + 1).collect();
        let query = Query::parse("kind:free").expect("a valid query");
        let mut replay = Replay::new();
        for max_stored in [0, 1000, 3000, 10_000] {
            let mut list = EventList::new(&recording, query.compile(&recording, &[], None), 9000);
            list.matches = Matches::with_max_stored(max_stored);
            while !list.step(&recording, &mut replay, 1).expect("readable").is_finished() {}
            assert_eq!(list.len(), expected.len() as u64);
            for (offset, count) in [(0usize, usize::MAX), (1300, 200), (2731, 1), (6667, 5)] {
                let numbers = list.numbers(&recording, &mut replay, offset as u64, count).expect("readable");
                let end = offset.saturating_add(count).min(expected.len());
                assert_eq!(numbers, expected.get(offset..end).unwrap_or_default(), "{max_stored} stored");
            }
            let position = list.position_of(&recording, &mut replay, 15_001).expect("readable");
            assert_eq!(position, 5000);
            let next = list.next_match(&recording, &mut replay, 15_001, 1).expect("readable");
            assert_eq!(next, MatchSearch::Found(15_004));
        }
    }
}
