//! Places buffers in steps: a valid placement first, then ever lower ones.

use super::budget::Budget;
use super::buffer::{Buffer, InvalidBuffer};
use super::ejection::EjectionSearch;
use super::exact::{ExactSearch, Outcome};
use super::greedy::Greedy;
use super::layout::{Layout, UNPLACED};
use super::long_lived::Separation;
use super::problem::Problem;
use super::reuse::Reuse;
use super::time_order::place_in_time_order;

/// Number of steps that the ejection search may take before the exact search continues.
const EJECTION_TURN_STEPS: u64 = 4_000_000;
/// Number of steps that the exact search may take before the ejection search continues. The exact
/// search has more, because it also finds placements without any free byte, which the other cannot.
const EXACT_TURN_STEPS: u64 = 12_000_000;
/// Number of steps of the first attempts of the ejection search; then an attempt is given up.
const ATTEMPT_STEPS: u64 = 100_000_000;
/// Number of steps after which the exact search gives up its first height.
const EXACT_PATIENCE_STEPS: u64 = 200_000_000;
/// Height of the first attempt, as a part of the distance from the lower bound to the best
/// placement.
const FIRST_SHARE: f64 = 0.5;
/// [`ATTEMPT_STEPS`] for requests of several streams and pools. Of five pairs of this and the next
/// constant, tried on `tests/data/streams`, this pair comes within 4% in the fewest steps.
const ATTEMPT_STEPS_OF_STREAMS: u64 = 200_000_000;
/// [`FIRST_SHARE`] for requests of several streams and pools.
const FIRST_SHARE_OF_STREAMS: f64 = 0.75;
/// The highest [`Search::share`].
const HIGHEST_SHARE: f64 = 0.999;
/// The [`Search::share`] that follows one above [`HIGHEST_SHARE`].
const RETRY_SHARE: f64 = 0.8;

/// How far a [`Packer`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackingState {
    /// Height of the lowest placement so far, in bytes.
    pub height_bytes: u64,
    /// Peak of the live bytes.
    pub peak_live_bytes: u64,
    /// Lower bound of every placement's height: the peak of the live bytes, or more if that was
    /// proven.
    pub lower_bound_bytes: u64,
    /// True if more steps change nothing: the placement is the lowest, or as low as wanted.
    pub is_done: bool,
}

/// Finds offsets for buffers, so that no two of them overlap while both need their memory, and the
/// highest end is as low as possible.
///
/// ```
/// use vramscope_insight::packing::{Buffer, Packer, check_placement};
///
/// let buffers = [(0, 3, 4), (3, 9, 4), (0, 9, 4), (9, 21, 4), (0, 21, 4)];
/// let buffers = buffers.map(|(lower, upper, size)| Buffer { lower, upper, size });
/// let mut packer = Packer::new(&buffers)?;
/// while !packer.state().is_done {
///     packer.advance(1_000_000);
/// }
/// assert_eq!(packer.state().height_bytes, 12);
/// assert_eq!(check_placement(&buffers, &packer.offsets()), Ok(12));
/// # Ok::<(), vramscope_insight::packing::InvalidBuffer>(())
/// ```
#[derive(Clone, Debug)]
pub struct Packer {
    /// Number of buffers, including buffers of 0 bytes.
    buffer_count: usize,
    /// Positions of the buffers that have bytes.
    kept: Vec<u32>,
    problem: Problem,
    /// The lowest placement so far: the offset of each buffer, in units.
    best: Vec<u64>,
    /// The height of `best`, in units.
    best_height: u64,
    /// Lower bound of every placement's height, in units.
    lower_bound: u64,
    /// The height that is low enough, in units.
    wanted: u64,
    /// Positions of the buffers of `layout`: all that do not live long.
    movable: Vec<u32>,
    /// Offsets of the long-lived buffers.
    long_lived: Vec<u64>,
    layout: Layout,
    /// Lower bound of the height of placements of the layout's buffers above the long-lived ones,
    /// in units.
    layout_lower_bound: u64,
    /// The lowest placement of the layout's buffers so far: their offsets, in units.
    layout_best: Vec<u64>,
    /// The height of `layout_best`, in units.
    layout_height: u64,
    phase: Phase,
    /// False for requests of several streams and pools, whose lifetimes alone do not say which of
    /// them need different memory.
    searches_exactly: bool,
}

/// The work of the next steps.
#[derive(Clone, Debug)]
enum Phase {
    /// Nothing but the first placement exists.
    NotStarted,
    Greedy(Greedy),
    Search(Box<Search>),
}

/// The searches below a height, in turn.
#[derive(Clone, Debug)]
struct Search {
    ejection: Option<EjectionSearch>,
    /// Searches for a placement of the layout's buffers, and of all buffers.
    exact: [Exact; 2],
    turn: Turn,
    /// Steps that the ejection search may still take.
    attempt_steps_left: u64,
    /// Number of steps of an attempt.
    attempt_steps: u64,
    /// Height that an attempt must stay below, as a part of the distance from the lower bound to
    /// the best placement.
    share: f64,
    /// Number of attempts so far, which seeds the random choices of the next one.
    attempts: u64,
}

/// The search that continues next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Ejection,
    /// The exact search for a placement of the layout's buffers, above the long-lived ones.
    ExactAbove,
    /// The exact search for a placement of all buffers.
    ExactOfAll,
}

/// An exact search below one height after another.
///
/// The first height is the lowest that is possible. If the search takes too long there, it
/// continues at a height half the way up to the best placement; at the top it begins again, with
/// more patience.
#[derive(Clone, Debug)]
struct Exact {
    state: ExactState,
    /// The height that the search stays below, in units.
    height: u64,
    /// Number of steps that it may still take below this height.
    steps_left: u64,
    /// Number of steps that it may take below one height.
    patience_steps: u64,
}

/// The state of an exact search.
#[derive(Clone, Debug)]
enum ExactState {
    NotStarted,
    Running(Box<ExactSearch>),
    /// No lower placement exists.
    Impossible,
    /// There are too many buffers, or none that can move.
    TooLarge,
}

impl Packer {
    /// Creates a packer for buffers, with a placement in the order of their starts.
    ///
    /// # Errors
    /// [`InvalidBuffer`] if a lifetime is empty or the buffers have too many bytes in all.
    pub fn new(buffers: &[Buffer]) -> Result<Self, InvalidBuffer> {
        let mut kept = Vec::new();
        let problem = Problem::new(buffers, &mut kept)?;
        let best = place_in_time_order(&problem);
        Ok(Self {
            buffer_count: buffers.len(),
            kept,
            best_height: problem.height(&best),
            best,
            lower_bound: problem.peak_live,
            wanted: 0,
            layout: Layout::new(Vec::new(), Vec::new()),
            layout_lower_bound: problem.peak_live,
            layout_best: Vec::new(),
            layout_height: u64::MAX,
            movable: Vec::new(),
            long_lived: Vec::new(),
            problem,
            phase: Phase::NotStarted,
            searches_exactly: true,
        })
    }

    /// Places the long-lived buffers and prepares the layout of the others. For a million buffers,
    /// this takes as long as the first placement, which is often low enough.
    fn start(&mut self) {
        let separation = Separation::new(&self.problem);
        let spans = separation.movable.iter().map(|&number| self.problem.spans[number as usize]).collect();
        self.layout = Layout::new(spans, separation.floors);
        self.layout_lower_bound = separation.lower_bound;
        self.movable = separation.movable;
        self.long_lived = separation.offsets;
        self.phase = Phase::Greedy(Greedy::new());
    }

    /// Creates a packer for requests of several streams and pools, to improve a placement of them:
    /// `offsets` in bytes. No placement is lower than `lower_bound_bytes`.
    ///
    /// # Errors
    /// [`InvalidBuffer`] if a lifetime is empty or the buffers have too many bytes in all.
    pub(super) fn improving(
        reuses: Vec<Reuse>,
        offsets: &[u64],
        lower_bound_bytes: u64,
    ) -> Result<Self, InvalidBuffer> {
        let buffer = |&Reuse { lower, given_back, bytes, .. }: &Reuse| Buffer { lower, upper: given_back, size: bytes };
        let mut kept = Vec::new();
        let problem = Problem::new(&reuses.iter().map(buffer).collect::<Vec<_>>(), &mut kept)?;
        let best: Vec<u64> = kept.iter().map(|&position| offsets[position as usize] / problem.unit_bytes).collect();
        let kept_reuses = kept.iter().map(|&position| reuses[position as usize]).collect();
        let (best_height, lower_bound) = (problem.height(&best), lower_bound_bytes / problem.unit_bytes);
        let count = kept.len();
        Ok(Self {
            buffer_count: reuses.len(),
            kept,
            layout: Layout::new(problem.spans.clone(), vec![0; count]).with_reuses(kept_reuses),
            layout_lower_bound: lower_bound,
            layout_best: best.clone(),
            layout_height: best_height,
            movable: (0..count as u32).collect(),
            long_lived: vec![UNPLACED; count],
            best_height,
            best,
            lower_bound,
            wanted: 0,
            problem,
            phase: Phase::Greedy(Greedy::new()),
            searches_exactly: false,
        })
    }

    /// Sets a height in bytes that is low enough: the packer is done once the placement is not
    /// higher.
    #[must_use]
    pub fn with_capacity(mut self, bytes: u64) -> Self {
        self.wanted = bytes / self.problem.unit_bytes;
        self
    }

    /// Returns how far the packer is.
    #[must_use]
    pub fn state(&self) -> PackingState {
        let unit_bytes = self.problem.unit_bytes;
        PackingState {
            height_bytes: self.best_height * unit_bytes,
            peak_live_bytes: self.problem.peak_live * unit_bytes,
            lower_bound_bytes: self.lower_bound * unit_bytes,
            // Below the lower bound there is nothing to find.
            is_done: self.best_height <= self.wanted.max(self.lower_bound) || self.wanted_is_impossible(),
        }
    }

    /// Returns true if a capacity is set that is below the lower bound.
    fn wanted_is_impossible(&self) -> bool {
        self.wanted > 0 && self.wanted < self.lower_bound
    }

    /// Returns the offset of each buffer in the lowest placement so far, in bytes.
    #[must_use]
    pub fn offsets(&self) -> Vec<u64> {
        let mut offsets = vec![0; self.buffer_count];
        for (&position, offset) in self.kept.iter().zip(&self.best) {
            offsets[position as usize] = offset * self.problem.unit_bytes;
        }
        offsets
    }

    /// Continues for about `steps` steps, of which 100 million take half a second to a second, and
    /// returns how far the packer is. Equal calls for equal buffers give equal results.
    pub fn advance(&mut self, steps: u64) -> PackingState {
        self.run(&mut Budget::new(steps))
    }

    /// Continues until the budget is spent or the packer is done.
    pub(super) fn run(&mut self, budget: &mut Budget) -> PackingState {
        while !budget.is_spent() && !self.state().is_done {
            match &mut self.phase {
                Phase::NotStarted => self.start(),
                Phase::Greedy(greedy) => {
                    if greedy.run(&mut self.layout, budget) {
                        self.adopt_layout();
                    } else if greedy.is_done() {
                        let (share, attempt_steps) = match self.searches_exactly {
                            true => (FIRST_SHARE, ATTEMPT_STEPS),
                            false => (FIRST_SHARE_OF_STREAMS, ATTEMPT_STEPS_OF_STREAMS),
                        };
                        self.phase = Phase::Search(Box::new(Search::new(share, attempt_steps)));
                    }
                }
                Phase::Search(search) => match search.turn {
                    Turn::Ejection => self.eject(budget),
                    Turn::ExactAbove => self.search_exactly(false, budget),
                    Turn::ExactOfAll => self.search_exactly(true, budget),
                },
            }
        }
        self.state()
    }

    /// Takes the layout, with the long-lived buffers, as the best placement if it is lower.
    fn adopt_layout(&mut self) {
        let mut offsets = self.long_lived.clone();
        for (&number, &offset) in self.movable.iter().zip(&self.layout.offsets) {
            offsets[number as usize] = offset;
        }
        let height = self.problem.height(&offsets);
        if height < self.layout_height {
            self.layout_best.clone_from(&self.layout.offsets);
            self.layout_height = height;
        }
        self.adopt(offsets);
    }

    /// Takes a placement as the best one if it is lower.
    fn adopt(&mut self, offsets: Vec<u64>) {
        let height = self.problem.height(&offsets);
        if height < self.best_height {
            self.best = offsets;
            self.best_height = height;
        }
    }

    /// Continues the ejection search for one turn.
    fn eject(&mut self, budget: &mut Budget) {
        let highest = self.layout_height.min(self.best_height) - 1;
        if highest < self.layout_lower_bound {
            self.let_all_buffers_move();
        }
        let Phase::Search(search) = &mut self.phase else { return };
        search.turn = Turn::ExactAbove;
        let ejection = search.ejection.get_or_insert_with(|| {
            let lowest = self.lower_bound.max(self.layout_lower_bound);
            let above = (highest + 1 - lowest) as f64 * search.share;
            let height = (lowest + above as u64).max(self.wanted).min(highest);
            search.attempts += 1;
            budget.spend(self.layout.spans.len() as u64);
            search.attempt_steps_left = search.attempt_steps;
            EjectionSearch::new(&mut self.layout, &self.layout_best, height, search.attempts)
        });
        let turn_steps = EJECTION_TURN_STEPS.min(budget.remaining()).min(search.attempt_steps_left);
        let mut turn = Budget::new(turn_steps);
        let result = ejection.run(&mut self.layout, &mut turn);
        let spent = turn_steps - turn.remaining();
        budget.spend(spent.max(1));
        search.attempt_steps_left -= spent;
        match result {
            Some(true) => {
                search.ejection = None;
                self.adopt_layout();
            }
            None if search.attempt_steps_left > 0 => {}
            Some(false) | None => {
                search.ejection = None;
                search.share = 1.0 - (1.0 - search.share) / 2.0;
                if search.share > HIGHEST_SHARE {
                    search.share = RETRY_SHARE;
                    search.attempt_steps = search.attempt_steps.saturating_mul(2);
                }
            }
        }
    }

    /// Lets the long-lived buffers move, too: at their present offsets, no placement is lower than
    /// the best one.
    fn let_all_buffers_move(&mut self) {
        let separation = Separation::none(&self.problem);
        self.movable = separation.movable;
        self.long_lived = separation.offsets;
        self.layout = Layout::new(self.problem.spans.clone(), separation.floors);
        self.layout_lower_bound = separation.lower_bound;
        self.layout_best.clone_from(&self.best);
        self.layout_height = self.best_height;
        if let Phase::Search(search) = &mut self.phase {
            search.ejection = None;
            search.exact[0].state = ExactState::TooLarge;
        }
    }

    /// Continues an exact search for one turn: for a placement of all buffers if `is_of_all`, else
    /// of the layout's.
    fn search_exactly(&mut self, is_of_all: bool, budget: &mut Budget) {
        let has_long_lived = self.movable.len() < self.problem.spans.len();
        let Phase::Search(search) = &mut self.phase else { return };
        search.turn = if is_of_all { Turn::Ejection } else { Turn::ExactOfAll };
        let exact = &mut search.exact[usize::from(is_of_all)];
        if matches!(exact.state, ExactState::TooLarge) || !self.searches_exactly {
            return;
        }
        let lowest = self.lower_bound.max(self.wanted);
        if exact.height < lowest || exact.height >= self.best_height {
            (exact.height, exact.state) = (lowest, ExactState::NotStarted);
        }
        if matches!(exact.state, ExactState::NotStarted) {
            let durations = &self.problem.durations;
            let started = if is_of_all {
                let floors = vec![0; self.problem.spans.len()];
                ExactSearch::new(&self.problem.spans, durations.clone(), floors, exact.height)
            } else if has_long_lived {
                let durations = self.movable.iter().map(|&number| durations[number as usize]).collect();
                ExactSearch::new(&self.layout.spans, durations, self.layout.floors.clone(), exact.height)
            } else {
                None
            };
            // About the time that the visit of the buffers took.
            budget.spend(started.as_ref().map_or(self.problem.spans.len() as u64, ExactSearch::overlaps));
            // With a capacity, only a placement below it helps.
            exact.steps_left = if self.wanted > 0 { u64::MAX } else { exact.patience_steps };
            exact.state = started.map_or(ExactState::TooLarge, |search| ExactState::Running(Box::new(search)));
        }
        let ExactState::Running(running) = &mut exact.state else { return };
        let turn_steps = EXACT_TURN_STEPS.min(budget.remaining()).min(exact.steps_left);
        let mut turn = Budget::new(turn_steps);
        let outcome = running.run(&mut turn);
        let spent = turn_steps - turn.remaining();
        budget.spend(spent.max(1));
        exact.steps_left -= spent;
        match outcome {
            None if exact.steps_left > 0 => {}
            None => exact.raise(self.best_height, lowest),
            Some(Outcome::Infeasible) => {
                if is_of_all {
                    self.lower_bound = exact.height + 1;
                }
                exact.raise(self.best_height, exact.height + 1);
            }
            Some(Outcome::Fits(offsets)) => {
                (exact.height, exact.state) = (lowest, ExactState::NotStarted);
                if is_of_all {
                    self.adopt(offsets);
                } else {
                    search.ejection = None;
                    self.layout.offsets = offsets;
                    self.adopt_layout();
                }
            }
        }
    }
}

impl Exact {
    /// Creates a search that has not started.
    fn new() -> Self {
        Self { state: ExactState::NotStarted, height: 0, steps_left: 0, patience_steps: EXACT_PATIENCE_STEPS }
    }

    /// Raises the height half the way up to the best placement; from the top, begins again at
    /// `lowest` with more patience.
    fn raise(&mut self, best_height: u64, lowest: u64) {
        let next = self.height.midpoint(best_height).max(self.height + 1);
        self.state = ExactState::NotStarted;
        if next < best_height {
            self.height = next;
        } else if lowest < best_height {
            self.height = lowest;
            self.patience_steps = self.patience_steps.saturating_mul(2);
        } else {
            self.state = ExactState::Impossible;
        }
    }
}

impl Search {
    /// Creates the searches before their first attempt.
    fn new(share: f64, attempt_steps: u64) -> Self {
        Self {
            ejection: None,
            exact: [Exact::new(), Exact::new()],
            turn: Turn::Ejection,
            attempt_steps_left: 0,
            attempt_steps,
            share,
            attempts: 0,
        }
    }
}
