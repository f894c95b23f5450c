//! Searches all placements below a height.
//!
//! The search and the rules by which it leaves out placements are from Moffitt, "MiniMalloc: A
//! Lightweight Memory Allocator for Hardware-Accelerated Machine Learning", ASPLOS 2023. It places
//! one buffer after another at its lowest possible offset, never below the offset of the one before
//! (a canonical placement; if any placement fits, a canonical placement fits, too). A partial
//! placement is given up if, at some time, the bytes above its floor do not hold the buffers that
//! are not placed yet. Once the rest falls into parts that have no time in common, each part is
//! searched alone.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;

use super::budget::Budget;
use super::layout::UNPLACED;
use super::overlaps::OverlapIndex;
use super::problem::Span;

/// Maximum number of pairs of buffers that live at one time. Beyond, the search takes too long to
/// help.
const MAX_OVERLAPS: usize = 1 << 23;

/// The order in which buffers that could have the same offset are tried. The fastest rule differs
/// from problem to problem, so the search tries all in turn, each time for longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// Longest lifetime first, then largest area (size × lifetime), then the fullest cliques. A
    /// clique is a maximal set of buffers that live at one time.
    DurationAreaTotal,
    /// Buffers in the fullest cliques first, then largest area, then longest lifetime.
    TotalAreaDuration,
    /// Buffers in the fullest cliques first, then longest lifetime, then largest area.
    TotalDurationArea,
}

/// All rules, in the order in which they are tried.
const RULES: [Rule; 3] = [Rule::DurationAreaTotal, Rule::TotalAreaDuration, Rule::TotalDurationArea];

/// The result of a finished [`ExactSearch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A placement below the height: the offset of each buffer in units.
    Fits(Vec<u64>),
    /// There is no such placement.
    Infeasible,
}

/// A search for a placement below a height.
#[derive(Clone, Debug, Default)]
pub(super) struct ExactSearch {
    /// The height to stay below, in units.
    height: u64,
    /// The lowest offset that each buffer can have.
    min_offsets: Vec<u64>,
    /// Length of each buffer's lifetime.
    durations: Vec<u64>,
    /// Area of each buffer: its size times the length of its lifetime.
    areas: Vec<u128>,
    sizes: Vec<u64>,
    /// The cliques that contain each buffer.
    cliques: Vec<Range<usize>>,
    /// The buffers in each clique.
    members: Vec<Vec<u32>>,
    /// The buffers that live at the same time as each buffer.
    overlaps: Vec<Vec<u32>>,
    state: SearchState,
    /// The offset of each buffer in the last consistent placement of its part.
    solution: Vec<u64>,
    /// The search's path: each frame's buffer is placed before that of the next frame.
    frames: Vec<Frame>,
    /// The parts that have no time in common; the one at the end is searched first.
    parts: Vec<Child>,
    /// Whether the part that was searched last fits; the frame that divided it takes this next.
    result: Option<bool>,
    /// The position in [`RULES`].
    rule: usize,
    /// Number of placements that the present rule may still try.
    nodes_left: u64,
    /// Number of placements that the present rule could try at its beginning.
    node_limit: u64,
}

/// The state of the search, which placing and removing a buffer change.
#[derive(Clone, Debug, Default)]
struct SearchState {
    offsets: Vec<u64>,
    /// The lowest offset at which each buffer overlaps no placed buffer.
    min_offsets: Vec<u64>,
    /// The lowest offset that any buffer of a clique can have that is not placed.
    floors: Vec<u64>,
    /// Units of the buffers of a clique that are not placed.
    totals: Vec<u64>,
    /// Number of buffers not placed that are in a clique and in the next one.
    cuts: Vec<u32>,
    /// Changes to undo, the newest last.
    undo: Vec<Undo>,
    /// By clique, the number of the last placement that changed its floor, to look at each clique
    /// once.
    marks: Vec<u64>,
    /// Number of placements so far.
    placements: u64,
}

/// A value before a change.
#[derive(Clone, Copy, Debug)]
enum Undo {
    /// The entry of a buffer in `min_offsets`: number and value.
    MinOffset(u32, u64),
    /// The entry of a clique in `floors`: number and value.
    Floor(u32, u64),
}

/// The buffers of a part, in the order of the rule, and the part's cliques.
#[derive(Debug)]
struct Part {
    order: Vec<u32>,
    cliques: Range<usize>,
}

/// A part, or the rest of one, to search.
#[derive(Clone, Debug)]
enum Child {
    /// The rest of the frame's part.
    Rest,
    /// A part of the frame's part that has no time in common with the others: its buffers and
    /// cliques.
    Part(Vec<u32>, Range<usize>),
}

/// The choice of the buffer to place next.
#[derive(Clone, Debug)]
struct Frame {
    part: Arc<Part>,
    /// The buffers to try: lowest possible offset and position in the part's order.
    candidates: Vec<(u64, u32)>,
    /// The next candidate to try.
    next: usize,
    /// The placed candidate.
    placed: Option<Placed>,
}

/// A placed buffer, and the parts to place after it.
#[derive(Clone, Debug)]
struct Placed {
    number: u32,
    offset: u64,
    position: u32,
    /// Length of [`SearchState::undo`] before this placement.
    undo_from: usize,
    /// No unplaced buffer lives at the same time, so no other candidate can be better.
    is_topmost: bool,
    /// Partial placements to search next, the first at the end.
    children: Vec<Child>,
    /// Whether all unplaced buffers may still have room.
    fits: bool,
}

impl ExactSearch {
    /// Creates a search for a placement below `height`, given the length of each buffer's lifetime
    /// and the lowest offset that it can have. `None` if too many buffers live at the same time.
    pub(super) fn new(spans: &[Span], durations: Vec<u64>, min_offsets: Vec<u64>, height: u64) -> Option<Self> {
        let cliques: Vec<Range<usize>> = spans.iter().map(|span| span.cliques()).collect();
        let clique_count = cliques.iter().map(|cliques| cliques.end).max().unwrap_or(0);
        let mut members: Vec<Vec<u32>> = vec![Vec::new(); clique_count];
        if cliques.iter().map(ExactSizeIterator::len).sum::<usize>() > MAX_OVERLAPS {
            return None;
        }
        for (number, cliques) in (0..).zip(&cliques) {
            members[cliques.clone()].iter_mut().for_each(|members| members.push(number));
        }
        let index = OverlapIndex::new(spans);
        let mut overlaps: Vec<Vec<u32>> = Vec::with_capacity(spans.len());
        let mut count = 0;
        for number in 0..spans.len() as u32 {
            let mut others = Vec::new();
            index.for_each(spans, number, |other| others.push(other));
            count += others.len();
            if count > MAX_OVERLAPS {
                return None;
            }
            overlaps.push(others);
        }
        let sizes: Vec<u64> = spans.iter().map(|span| span.size).collect();
        let area = |(&size, &duration): (&u64, &u64)| u128::from(size) * u128::from(duration);
        let mut search = Self {
            height,
            areas: sizes.iter().zip(&durations).map(area).collect(),
            durations,
            min_offsets,
            solution: vec![UNPLACED; sizes.len()],
            sizes,
            cliques,
            members,
            overlaps,
            node_limit: spans.len() as u64 * 2,
            ..Self::default()
        };
        search.restart();
        Some(search)
    }

    /// Returns the number of pairs of buffers that live at the same time, each counted twice.
    pub(super) fn overlaps(&self) -> u64 {
        self.overlaps.iter().map(|others| others.len() as u64).sum()
    }

    /// Forgets all placements.
    fn restart(&mut self) {
        let (buffers, cliques) = (self.sizes.len(), self.members.len());
        let mut cuts = vec![0; cliques];
        for range in &self.cliques {
            cuts[range.start..range.end - 1].iter_mut().for_each(|count| *count += 1);
        }
        self.state = SearchState {
            offsets: vec![UNPLACED; buffers],
            min_offsets: self.min_offsets.clone(),
            floors: self.members.iter().map(|members| lowest_of(members, &self.min_offsets)).collect(),
            totals: self
                .members
                .iter()
                .map(|members| members.iter().map(|&one| self.sizes[one as usize]).sum())
                .collect(),
            cuts,
            undo: Vec::new(),
            marks: vec![0; cliques],
            placements: 0,
        };
        self.frames.clear();
        self.result = None;
        self.parts = self.parts_of(0..cliques, (0..buffers as u32).collect());
        self.nodes_left = self.node_limit;
    }

    /// Continues the search. Returns its result; `None` if the budget is spent.
    pub(super) fn run(&mut self, budget: &mut Budget) -> Option<Outcome> {
        while !budget.is_spent() {
            if self.nodes_left == 0 {
                self.rule += 1;
                if self.rule == RULES.len() {
                    self.rule = 0;
                    self.node_limit = self.node_limit.saturating_mul(2);
                }
                self.restart();
            }
            let result = self.result.take();
            let Some(frame) = self.frames.last_mut() else {
                if result == Some(false) {
                    return Some(Outcome::Infeasible);
                }
                match self.parts.pop() {
                    Some(child) => self.enter(child, budget),
                    None => return Some(Outcome::Fits(std::mem::take(&mut self.solution))),
                }
                continue;
            };
            match &mut frame.placed {
                Some(placed) if result == Some(false) => {
                    if placed.is_topmost {
                        frame.next = frame.candidates.len();
                    }
                    self.take_back();
                }
                Some(placed) => match placed.children.pop() {
                    Some(child) => self.enter(child, budget),
                    None => {
                        self.take_back();
                        self.frames.pop();
                        self.result = Some(true);
                    }
                },
                None => {
                    if !self.place_next(budget) {
                        self.frames.pop();
                        self.result = Some(false);
                    }
                }
            }
        }
        None
    }

    /// Starts to search a part, or what remains of the last frame's part.
    fn enter(&mut self, child: Child, budget: &mut Budget) {
        self.nodes_left -= 1;
        let (part, first) = match (child, self.frames.last()) {
            (Child::Part(numbers, cliques), _) => {
                let order = self.ordered(numbers);
                (Arc::new(Part { order, cliques }), (0, 0))
            }
            (Child::Rest, Some(Frame { part, placed: Some(placed), .. })) => {
                (part.clone(), (placed.offset, placed.position))
            }
            (Child::Rest, _) => unreachable!("the rest of a part follows the placement of a buffer"),
        };
        let SearchState { offsets, min_offsets, .. } = &self.state;
        let unplaced = (0..).zip(&part.order).filter(|&(_, &number)| offsets[number as usize] == UNPLACED);
        let unplaced = unplaced.map(|(position, &number)| (min_offsets[number as usize], position, number));
        // A candidate at or above the lowest possible end of another buffer would leave a gap with
        // room for that buffer.
        let min_end = unplaced.clone().map(|(offset, _, number)| offset + self.sizes[number as usize]).min();
        budget.spend(part.order.len() as u64);
        let Some(min_end) = min_end else {
            self.result = Some(true);
            return;
        };
        // Canonical: not below the buffer placed before, nor before it in the order.
        let candidates = unplaced.map(|(offset, position, _)| (offset, position));
        let mut candidates: Vec<(u64, u32)> =
            candidates.filter(|candidate| *candidate >= first && candidate.0 < min_end).collect();
        candidates.sort_unstable();
        self.frames.push(Frame { part, candidates, next: 0, placed: None });
    }

    /// Returns the buffers of a part in the order of the rule.
    fn ordered(&self, mut numbers: Vec<u32>) -> Vec<u32> {
        numbers.sort_by_cached_key(|&number| {
            let index = number as usize;
            let fullest = self.state.totals[self.cliques[index].clone()].iter().max();
            let total = u128::from(*fullest.expect("a buffer lives in a clique"));
            let (duration, area) = (u128::from(self.durations[index]), self.areas[index]);
            let key = match RULES[self.rule] {
                Rule::DurationAreaTotal => [duration, area, total],
                Rule::TotalAreaDuration => [total, area, duration],
                Rule::TotalDurationArea => [total, duration, area],
            };
            (Reverse(key), number)
        });
        numbers
    }

    /// Places the last frame's next candidate that leaves room for the others. Returns false if no
    /// candidate does.
    fn place_next(&mut self, budget: &mut Budget) -> bool {
        while let Some(frame) = self.frames.last_mut()
            && let Some(&(offset, position)) = frame.candidates.get(frame.next)
        {
            frame.next += 1;
            let part = frame.part.clone();
            let number = part.order[position as usize];
            let undo_from = self.state.undo.len();
            let (is_topmost, fits) = self.place(number, offset, part.cliques.clone(), budget);
            let children = if fits { self.children(&part, number) } else { Vec::new() };
            let placed = Placed { number, offset, position, undo_from, is_topmost, children, fits };
            let frame = self.frames.last_mut().expect("the frame is still there");
            frame.placed = Some(placed);
            if fits {
                self.solution[number as usize] = offset;
                return true;
            }
            self.take_back();
            if is_topmost {
                return false;
            }
        }
        false
    }

    /// Places a buffer. Returns whether no unplaced buffer lives at the same time, and whether all
    /// unplaced buffers of the part still have room as far as each clique tells.
    fn place(&mut self, number: u32, offset: u64, cliques: Range<usize>, budget: &mut Budget) -> (bool, bool) {
        let Self { state, sizes, members, overlaps, height, .. } = self;
        let size = sizes[number as usize];
        let end = offset + size;
        state.offsets[number as usize] = offset;
        state.placements += 1;
        for clique in self.cliques[number as usize].clone() {
            state.undo.push(Undo::Floor(clique as u32, state.floors[clique]));
            state.floors[clique] = end;
            state.totals[clique] -= size;
        }
        let mut is_topmost = true;
        let mut raised: Vec<(u32, u64)> = Vec::new();
        for &other in &overlaps[number as usize] {
            let min_offset = &mut state.min_offsets[other as usize];
            if state.offsets[other as usize] != UNPLACED {
                continue;
            }
            is_topmost = false;
            if *min_offset < end {
                state.undo.push(Undo::MinOffset(other, *min_offset));
                raised.push((other, *min_offset));
                *min_offset = end;
            }
        }
        budget.spend(overlaps[number as usize].len() as u64);
        // The floor of a clique is not below the lowest of its buffers. Outside of the placed
        // buffer's cliques, only a buffer that was at the floor can have raised it.
        let own = self.cliques[number as usize].clone();
        let elsewhere = raised
            .iter()
            .flat_map(|&(other, before)| self.cliques[other as usize].clone().map(move |clique| (clique, before)));
        for (clique, before) in own.map(|clique| (clique, 0)).chain(elsewhere) {
            budget.spend(1);
            if state.marks[clique] == state.placements || before > state.floors[clique] {
                continue;
            }
            state.marks[clique] = state.placements;
            let unplaced = members[clique].iter().filter(|&&one| state.offsets[one as usize] == UNPLACED);
            let lowest = unplaced.map(|&one| state.min_offsets[one as usize]).min();
            budget.spend(members[clique].len() as u64);
            let Some(lowest) = lowest.filter(|&lowest| lowest > state.floors[clique]) else { continue };
            state.undo.push(Undo::Floor(clique as u32, state.floors[clique]));
            state.floors[clique] = lowest;
            if lowest + state.totals[clique] > *height {
                return (is_topmost, false);
            }
        }
        budget.spend(cliques.len() as u64);
        // No buffer that is placed later is lower than this one.
        let mut rest = state.floors[cliques.clone()].iter().zip(&state.totals[cliques]);
        (is_topmost, rest.all(|(&floor, total)| floor.max(offset) + total <= *height))
    }

    /// Returns the unplaced buffers after a buffer of a part is placed: as one part, or as the
    /// independent parts into which they fall.
    fn children(&mut self, part: &Part, number: u32) -> Vec<Child> {
        let own = self.cliques[number as usize].clone();
        let mut is_cut = false;
        for clique in own.start..own.end - 1 {
            self.state.cuts[clique] -= 1;
            is_cut |= self.state.cuts[clique] == 0;
        }
        if !is_cut {
            return vec![Child::Rest];
        }
        let unplaced = part.order.iter().copied().filter(|&one| self.state.offsets[one as usize] == UNPLACED);
        self.parts_of(part.cliques.clone(), unplaced.collect())
    }

    /// Divides buffers into parts that have no clique in common, the earliest last.
    fn parts_of(&self, cliques: Range<usize>, mut numbers: Vec<u32>) -> Vec<Child> {
        numbers.sort_by_key(|&number| self.cliques[number as usize].start);
        let mut parts: Vec<Child> = Vec::new();
        for number in numbers {
            let own = self.cliques[number as usize].clone();
            debug_assert!(cliques.start <= own.start && own.end <= cliques.end, "a buffer of another part");
            match parts.last_mut() {
                Some(Child::Part(numbers, range)) if own.start < range.end => {
                    numbers.push(number);
                    range.end = range.end.max(own.end);
                }
                _ => parts.push(Child::Part(vec![number], own)),
            }
        }
        parts.reverse();
        parts
    }

    /// Takes back the last frame's placement.
    fn take_back(&mut self) {
        let Some(placed) = self.frames.last_mut().and_then(|frame| frame.placed.take()) else { return };
        let state = &mut self.state;
        while state.undo.len() > placed.undo_from {
            match state.undo.pop() {
                Some(Undo::MinOffset(number, before)) => state.min_offsets[number as usize] = before,
                Some(Undo::Floor(clique, before)) => state.floors[clique as usize] = before,
                None => break,
            }
        }
        state.offsets[placed.number as usize] = UNPLACED;
        let own = self.cliques[placed.number as usize].clone();
        for clique in own.clone() {
            state.totals[clique] += self.sizes[placed.number as usize];
        }
        if placed.fits {
            state.cuts[own.start..own.end - 1].iter_mut().for_each(|count| *count += 1);
        }
    }
}

/// Returns the lowest of the offsets of some buffers; 0 without buffers.
fn lowest_of(numbers: &[u32], offsets: &[u64]) -> u64 {
    numbers.iter().map(|&number| offsets[number as usize]).min().unwrap_or(0)
}
