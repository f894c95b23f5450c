//! Places the requests of a recorded device: each group of requests, and the groups.

use std::collections::VecDeque;

use vramscope_pool::rerun::{RecordedRequests, RequestArena};

use super::arenas::{self, Group};
use super::budget::Budget;
use super::buffer::{Buffer, InvalidBuffer};
use super::packer::{Packer, PackingState};
use super::problem::check_total;
use super::reuse::{self, Reuse};

/// Number of steps for which one group is packed before the next group's turn.
const TURN_STEPS: u64 = 20_000_000;
/// Number of steps for which all groups are packed before they are placed for the first time, and
/// for which they are placed then.
const FIRST_STAGE_STEPS: u64 = 20_000_000;

/// Maximum number of requests of several streams and pools that are placed one by one. The time for
/// one of them grows with their number, because memory that a stream keeps is excluded from all
/// others.
const MAX_SINGLE_REQUESTS: usize = 30_000;

/// Places the requests of a recorded device, so that memory goes from one stream or pool to another
/// only as PyTorch's allocator can pass it on.
///
/// Requests of one stream and pool can follow each other in memory at once. A request of another
/// stream would have to wait, so it gets memory through the driver: memory of a stream without live
/// requests, or of a freed request of 10 MiB and more, which had a segment of its own. A private
/// pool keeps its memory until its segments are released, because CUDA graphs use its addresses.
///
/// Requests of several streams and pools are placed in groups first, each in one range of memory,
/// and then one by one.
#[derive(Clone, Debug)]
pub struct DevicePacker {
    requests: RecordedRequests,
    /// A placement for each division of the requests into groups. Which one is lowest differs from
    /// program to program.
    divisions: Vec<DivisionPacker>,
    /// The division whose turn is next; after the last one, the requests one by one.
    next: usize,
    /// When the memory of each request can be reused, if there are several streams and pools.
    reuses: Vec<Reuse>,
    /// The placement of the requests one by one, which begins with the best one of the divisions.
    single: Option<Packer>,
    /// Lower bound of the height of placements with several streams and pools, in bytes.
    lower_bound_bytes: u64,
}

/// The placement of requests that are divided into groups.
#[derive(Clone, Debug)]
struct DivisionPacker {
    groups: Vec<PlacedGroup>,
    /// The placement of the groups; `None` if there is only one.
    outer: Option<GroupPlacement>,
}

/// A group with the placement of its requests.
#[derive(Clone, Debug)]
struct PlacedGroup {
    group: Group,
    /// `None` for a single request.
    packer: Option<Packer>,
    height_bytes: u64,
}

/// The placement of several groups.
#[derive(Clone, Debug)]
struct GroupPlacement {
    packer: Packer,
    /// The lowest height so far, in bytes.
    best_height: u64,
    /// The number and the offset of each request in the placement of the lowest height.
    best: Vec<(u32, u64)>,
    /// The groups whose placement may become lower, the next one first.
    open: VecDeque<usize>,
    /// Whether a group has become lower since `packer` was created.
    has_lower_group: bool,
    /// Whether groups are being packed now, or placed.
    is_inside_groups: bool,
    /// Number of steps that remain of the present stage.
    steps_left: u64,
    /// Number of steps of the present stage at its beginning.
    stage_steps: u64,
}

/// A request with its address in a placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedRequest {
    /// Its index in [`RecordedRequests::requests`].
    pub number: u32,
    /// Its lifetime and size.
    pub buffer: Buffer,
    /// Its stream and pool.
    pub arena: RequestArena,
    /// Its offset in bytes from the lowest address of the device's placement.
    pub offset: u64,
}

impl DevicePacker {
    /// Creates a packer for a device's requests, with a placement in the order of time.
    ///
    /// # Errors
    /// [`InvalidBuffer`] if the requests have too many bytes in all.
    pub fn new(requests: RecordedRequests) -> Result<Self, InvalidBuffer> {
        check_total(requests.requests.iter().map(|request| request.bytes))?;
        let divisions = arenas::divisions(&requests).into_iter();
        let divisions =
            divisions.map(|groups| DivisionPacker::new(groups, &requests)).collect::<Result<Vec<_>, _>>()?;
        let is_whole = divisions.iter().all(|division| division.outer.is_none());
        let reuses = if is_whole { Vec::new() } else { reuse::reuses(&requests) };
        let lower_bound_bytes = reuse::lower_bound_bytes(&reuses);
        Ok(Self { requests, divisions, next: 0, reuses, single: None, lower_bound_bytes })
    }

    /// Returns how far the packer is. The peak is that of the live requests, which end when the
    /// program frees them. The lower bound is higher if streams still use freed memory, or streams
    /// and private pools keep it.
    #[must_use]
    pub fn state(&self) -> PackingState {
        let best = self.divisions.iter().map(DivisionPacker::state).min_by_key(|state| state.height_bytes);
        let single_height = self.single.as_ref().map_or(u64::MAX, |packer| packer.state().height_bytes);
        let height_bytes = best.map_or(0, |state| state.height_bytes).min(single_height);
        // A bound within a division holds for all placements only if there is nothing else to try.
        let lower_bound_bytes = match &self.divisions[..] {
            [only] if only.outer.is_none() => best.map_or(0, |state| state.lower_bound_bytes),
            _ => self.lower_bound_bytes,
        };
        let divisions_are_done = || self.divisions.iter().all(|division| division.state().is_done);
        PackingState {
            height_bytes,
            peak_live_bytes: self.requests.floor_bytes,
            lower_bound_bytes,
            is_done: height_bytes <= lower_bound_bytes || (!self.places_single_requests() && divisions_are_done()),
        }
    }

    /// Continues for about `steps` steps, and returns how far the packer is. The divisions, the
    /// groups of each, and the requests one by one take turns.
    pub fn advance(&mut self, steps: u64) -> PackingState {
        let mut left = steps;
        while left > 0 && !self.state().is_done {
            let turn_steps = left.min(TURN_STEPS);
            let Some(division) = self.divisions.get_mut(self.next) else {
                self.next = 0;
                left -= self.place_single_requests(turn_steps);
                continue;
            };
            self.next += 1;
            let mut turn_left = turn_steps;
            while turn_left > 0 && !division.state().is_done {
                turn_left = turn_left.saturating_sub(division.take_turn(turn_left).max(1));
            }
            left -= turn_steps - turn_left;
        }
        self.state()
    }

    /// Returns true if the requests are also placed one by one: they are of several streams and
    /// pools, and not too many.
    fn places_single_requests(&self) -> bool {
        (1..=MAX_SINGLE_REQUESTS).contains(&self.reuses.len())
    }

    /// Continues to place the requests one by one, for about `steps` steps. Returns how many were
    /// made.
    fn place_single_requests(&mut self, steps: u64) -> u64 {
        if !self.places_single_requests() {
            return 0;
        }
        if self.single.is_none() {
            let mut offsets = vec![0; self.requests.requests.len()];
            self.best_offsets().into_iter().for_each(|(number, offset)| offsets[number as usize] = offset);
            let offsets: Vec<u64> = self.reuses.iter().map(|reuse| offsets[reuse.number as usize]).collect();
            // The total of the bytes was checked, and lifetimes are not empty.
            self.single = Packer::improving(self.reuses.clone(), &offsets, self.lower_bound_bytes).ok();
        }
        let mut turn = Budget::new(steps);
        if let Some(single) = &mut self.single {
            single.run(&mut turn);
        }
        (steps - turn.remaining()).max(1)
    }

    /// Returns the number and the offset of each request in the lowest placement so far.
    fn best_offsets(&self) -> Vec<(u32, u64)> {
        let division = self.divisions.iter().min_by_key(|division| division.state().height_bytes);
        let division_height = division.map_or(0, |division| division.state().height_bytes);
        match self.single.as_ref().filter(|single| single.state().height_bytes <= division_height) {
            Some(single) => self.reuses.iter().map(|reuse| reuse.number).zip(single.offsets()).collect(),
            None => division.map_or(Vec::new(), DivisionPacker::offsets),
        }
    }

    /// Returns the number of requests that are placed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.divisions.first().map_or(0, |division| division.groups.iter().map(|group| group.group.members.len()).sum())
    }

    /// Returns true if the device has no requests.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns all requests with their addresses in the lowest placement so far, in the order of
    /// their starts.
    #[must_use]
    pub fn placement(&self) -> Vec<PlacedRequest> {
        let place = |(number, offset): (u32, u64)| {
            let request = &self.requests.requests[number as usize];
            let arena = self.requests.arenas[request.arena as usize];
            PlacedRequest { number, buffer: arenas::buffer(request), arena, offset }
        };
        let mut placed: Vec<PlacedRequest> = self.best_offsets().into_iter().map(place).collect();
        placed.sort_unstable_by_key(|one| one.number);
        placed
    }
}

impl DivisionPacker {
    /// Places groups of requests in the order of time.
    fn new(groups: Vec<Group>, requests: &RecordedRequests) -> Result<Self, InvalidBuffer> {
        let groups = groups.into_iter().map(|group| PlacedGroup::new(group, requests));
        let groups = groups.collect::<Result<Vec<_>, _>>()?;
        if groups.len() <= 1 {
            return Ok(Self { groups, outer: None });
        }
        let open = groups.iter().enumerate().filter(|(_, group)| !group.is_done());
        let outer = GroupPlacement {
            packer: packer_of(&groups)?,
            best_height: u64::MAX,
            best: Vec::new(),
            open: open.map(|(index, _)| index).collect(),
            has_lower_group: false,
            is_inside_groups: true,
            steps_left: FIRST_STAGE_STEPS,
            stage_steps: FIRST_STAGE_STEPS,
        };
        let mut packer = Self { groups, outer: Some(outer) };
        packer.adopt();
        Ok(packer)
    }

    /// Returns how far the packer is. The lower bound is that of the first group.
    fn state(&self) -> PackingState {
        if let Some(outer) = &self.outer {
            let is_done = outer.open.is_empty() && !outer.has_lower_group && outer.packer.state().is_done;
            return PackingState { height_bytes: outer.best_height, is_done, ..outer.packer.state() };
        }
        let height_bytes = self.groups.first().map_or(0, |group| group.height_bytes);
        let packer = self.groups.first().and_then(|group| group.packer.as_ref());
        let placed = PackingState {
            height_bytes,
            peak_live_bytes: height_bytes,
            lower_bound_bytes: height_bytes,
            is_done: true,
        };
        packer.map_or(placed, Packer::state)
    }

    /// Continues inside of a group or with the placement of the groups, for at most `steps` steps.
    /// Returns how many were made.
    fn take_turn(&mut self, steps: u64) -> u64 {
        let mut turn = Budget::new(steps);
        let Some(outer) = &mut self.outer else {
            for group in &mut self.groups {
                group.run(&mut turn);
            }
            return steps - turn.remaining();
        };
        let turn_steps = steps.min(outer.steps_left);
        let mut turn = Budget::new(turn_steps);
        if turn_steps > 0
            && outer.is_inside_groups
            && let Some(index) = outer.open.pop_front()
        {
            let group = &mut self.groups[index];
            outer.has_lower_group |= group.run(&mut turn);
            if !group.is_done() {
                outer.open.push_back(index);
            }
            outer.steps_left -= turn_steps - turn.remaining();
        } else if turn_steps > 0 && !outer.is_inside_groups && !outer.packer.state().is_done {
            outer.packer.run(&mut turn);
            outer.steps_left -= turn_steps - turn.remaining();
            self.adopt();
        } else {
            return self.begin_next_stage();
        }
        turn_steps - turn.remaining()
    }

    /// Begins to place the groups, or to pack inside of them. Returns the number of steps that this
    /// took.
    fn begin_next_stage(&mut self) -> u64 {
        let Some(outer) = &mut self.outer else { return 0 };
        outer.is_inside_groups = !outer.is_inside_groups;
        if outer.is_inside_groups {
            outer.stage_steps = outer.stage_steps.saturating_mul(2);
        }
        outer.steps_left = outer.stage_steps;
        // The total of the bytes was checked, and lifetimes are not empty.
        if !outer.is_inside_groups
            && outer.has_lower_group
            && let Ok(packer) = packer_of(&self.groups)
        {
            outer.has_lower_group = false;
            outer.packer = packer;
            self.adopt();
        }
        self.groups.len() as u64
    }

    /// Takes the present placement of the groups as the best one if it is lower.
    fn adopt(&mut self) {
        let Some(outer) = &mut self.outer else { return };
        let height = outer.packer.state().height_bytes;
        if height < outer.best_height {
            outer.best_height = height;
            let placed = self.groups.iter().zip(outer.packer.offsets());
            outer.best = placed.flat_map(|(group, base)| group.offsets(base)).collect();
        }
    }

    /// Returns the number and the offset of each request in the lowest placement so far.
    fn offsets(&self) -> Vec<(u32, u64)> {
        match &self.outer {
            Some(outer) => outer.best.clone(),
            None => self.groups.iter().flat_map(|group| group.offsets(0)).collect(),
        }
    }
}

/// Returns a packer for groups with their present heights.
fn packer_of(groups: &[PlacedGroup]) -> Result<Packer, InvalidBuffer> {
    let buffer = |PlacedGroup { group, height_bytes, .. }: &PlacedGroup| Buffer {
        lower: group.lower,
        upper: group.upper,
        size: *height_bytes,
    };
    Packer::new(&groups.iter().map(buffer).collect::<Vec<_>>())
}

impl PlacedGroup {
    /// Places the requests of a group in the order of time.
    fn new(group: Group, requests: &RecordedRequests) -> Result<Self, InvalidBuffer> {
        if let [number] = group.members[..] {
            let height_bytes = requests.requests[number as usize].bytes;
            return Ok(Self { group, packer: None, height_bytes });
        }
        let members = group.members.iter().map(|&number| arenas::buffer(&requests.requests[number as usize]));
        let packer = Packer::new(&members.collect::<Vec<_>>())?;
        Ok(Self { group, height_bytes: packer.state().height_bytes, packer: Some(packer) })
    }

    /// Returns true if the group's placement cannot become lower.
    fn is_done(&self) -> bool {
        self.packer.as_ref().is_none_or(|packer| packer.state().is_done)
    }

    /// Continues until the budget is spent or the packer is done. Returns true if the placement has
    /// become lower.
    fn run(&mut self, budget: &mut Budget) -> bool {
        let Some(packer) = &mut self.packer else { return false };
        let before = self.height_bytes;
        self.height_bytes = packer.run(budget).height_bytes;
        self.height_bytes < before
    }

    /// Returns the number and the offset of each request, if the group begins at `base`.
    fn offsets(&self, base: u64) -> Vec<(u32, u64)> {
        let offsets = self.packer.as_ref().map_or_else(|| vec![0], Packer::offsets);
        self.group.members.iter().copied().zip(offsets.into_iter().map(|offset| base + offset)).collect()
    }
}
