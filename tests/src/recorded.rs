//! Answers computed from recordings, by plain loops over `trace`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use vramscope_insight::group::{GroupBy, Grouping, MergedSites};
use vramscope_insight::history::History;
use vramscope_insight::spans::Marks;
use vramscope_insight::steps::{GroupsByStep, Step, Steps, find_steps};
use vramscope_trace::{
    Allocation, Block, ByteSize, Category, DeviceId, DeviceLifetimes, DeviceState, Event, EventKind, Peak, Recording,
    Replay, SiteId, site_name,
};

/// Bytes and number of the blocks of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sum {
    /// Bytes of all blocks.
    pub bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes of the largest block.
    pub largest_bytes: u64,
}

impl Sum {
    /// Adds a block.
    fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.blocks += 1;
        self.largest_bytes = self.largest_bytes.max(bytes);
    }

    /// Returns the sum of blocks of these sizes.
    #[must_use]
    pub fn of(sizes: impl IntoIterator<Item = u64>) -> Self {
        let mut sum = Self::default();
        sizes.into_iter().for_each(|bytes| sum.add(bytes));
        sum
    }
}

/// Returns a size as the page shows it.
#[must_use]
pub fn size(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

/// Returns the free parts of a device's segments, each with its size.
#[must_use]
pub fn free_sizes(state: &DeviceState) -> Vec<u64> {
    let extents = state.segments().flat_map(|segment| state.extents(segment));
    extents.filter(|extent| extent.block.is_none()).map(|extent| extent.size).collect()
}

/// Returns the fragmentation: 1 − largest free part ÷ all of them; 0 where none is free.
#[must_use]
pub fn fragmentation(state: &DeviceState) -> f64 {
    let free = free_sizes(state);
    let (largest, all) = (free.iter().max().copied().unwrap_or(0), free.iter().sum::<u64>());
    if all == 0 { 0.0 } else { 1.0 - largest as f64 / all as f64 }
}

/// A recording with the lifetimes of its allocations.
#[derive(Debug)]
pub struct Recorded {
    /// The recording.
    pub recording: Recording,
    history: History,
    device: DeviceId,
}

impl Recorded {
    /// Reads a recording; questions are about its first device.
    ///
    /// # Panics
    /// Panics if it cannot be read, or is not complete.
    #[must_use]
    pub fn open(path: &Path) -> Self {
        let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut recording = Recording::new();
        recording.push(&bytes).expect("the recording is valid");
        recording.finish().expect("the recording is complete");
        let history = History::of(&recording).expect("the recording is complete");
        Self { recording, history, device: DeviceId(0) }
    }

    /// Returns the lifetimes of all allocations.
    #[must_use]
    pub fn lifetimes(&self) -> &DeviceLifetimes {
        self.history.lifetimes(self.device).expect("the device has events")
    }

    /// Returns the device's memory at a moment.
    #[must_use]
    pub fn state(&self, moment: u64) -> DeviceState {
        self.state_of(self.device, moment)
    }

    /// Returns the memory of any device at a moment.
    #[must_use]
    pub fn state_of(&self, device: DeviceId, moment: u64) -> DeviceState {
        let mut replay = Replay::new();
        let state = replay.seek(&self.recording, moment).expect("the moment is in the recording");
        state.device(device).cloned().unwrap_or_default()
    }

    /// Returns the event with this number.
    #[must_use]
    pub fn event(&self, number: u64) -> Event {
        let event = Replay::new().event(&self.recording, number - 1).expect("the recording is complete");
        event.expect("the recording has this event")
    }

    /// Returns the first moment at which `wanted` is true for the device's memory.
    #[must_use]
    pub fn first_moment(&self, wanted: impl Fn(&DeviceState) -> bool) -> u64 {
        let mut replay = Replay::new();
        let mut is_wanted = |moment: &u64| {
            let state = replay.seek(&self.recording, *moment).expect("the moment is in the recording");
            state.device(self.device).is_some_and(&wanted)
        };
        let moments = self.recording.first_event()..=self.recording.end_event();
        moments.into_iter().find(&mut is_wanted).expect("there is such a moment")
    }

    /// Returns the peak of the allocated bytes, where the page opens.
    #[must_use]
    pub fn peak(&self) -> Peak {
        self.recording.series(self.device).expect("the device has events").peak_allocated()
    }

    /// Returns the peak of the reserved bytes.
    #[must_use]
    pub fn peak_reserved(&self) -> Peak {
        self.recording.series(self.device).expect("the device has events").peak_reserved()
    }

    /// Returns the steps.
    #[must_use]
    pub fn steps(&self) -> Vec<Step> {
        self.found_steps().as_slice().to_vec()
    }

    fn found_steps(&self) -> Steps {
        let mut marks = Marks::default();
        marks.update(&self.recording);
        let time_ns = |event| self.history.time_ns(event);
        find_steps(&self.recording, &marks, self.device, self.lifetimes(), None, time_ns)
    }

    /// Returns the steps by which growth is judged: those after the warm-up.
    #[must_use]
    pub fn compared_steps(&self) -> Vec<Step> {
        let steps = self.found_steps();
        GroupsByStep::new(&steps, steps.default_warm_up()).steps().to_vec()
    }

    /// Returns the bytes by which the growing sites grow in all compared steps, by the innermost
    /// line of a file in their stacks; 0 stands for stacks without the file.
    #[must_use]
    pub fn growth_through(&self, file: &str) -> BTreeMap<u32, u64> {
        let steps = self.found_steps();
        let mut grouping = Grouping::of(GroupBy::Site, &self.recording);
        let mut groups = GroupsByStep::new(&steps, steps.default_warm_up());
        while !groups.step(self.lifetimes(), |one| grouping.group_of_allocation(one)) {}
        let definitions = self.recording.definitions();
        let mut growth = BTreeMap::new();
        for one in groups.growing(&MergedSites::new(&grouping, definitions)).as_slice() {
            let stack = grouping.group_details(definitions, one.group).stack;
            let line = stack.frames().find(|frame| frame.file.ends_with(file)).map_or(0, |frame| frame.line);
            *growth.entry(line).or_default() += one.last_bytes - one.first_bytes;
        }
        growth
    }

    /// Returns the name of a site.
    #[must_use]
    pub fn site(&self, site: SiteId) -> String {
        site_name(self.recording.definitions(), site)
    }

    /// Returns the site of an allocation; of one without a stack, why it has none.
    #[must_use]
    pub fn site_of(&self, one: &Allocation) -> String {
        let mut grouping = Grouping::of(GroupBy::Site, &self.recording);
        let group = grouping.group_of_allocation(one);
        grouping.group_name(self.recording.definitions(), group)
    }

    /// Returns true if a frame of a site's stack has this function.
    #[must_use]
    pub fn is_called_by(&self, site: SiteId, function: &str) -> bool {
        let definitions = self.recording.definitions();
        let frames = definitions.stack(definitions.site(site).stack);
        frames.into_iter().any(|frame| definitions.string(frame.function) == function)
    }

    /// Returns the sums of allocations by line, most bytes first.
    #[must_use]
    pub fn by_line(&self, allocations: impl Iterator<Item = Allocation>) -> Vec<(String, Sum)> {
        let mut grouping = Grouping::of(GroupBy::Line, &self.recording);
        let mut sums: BTreeMap<u32, Sum> = BTreeMap::new();
        allocations.for_each(|one| sums.entry(grouping.group_of_allocation(&one)).or_default().add(one.size));
        let definitions = self.recording.definitions();
        let mut sums: Vec<(String, Sum)> =
            sums.into_iter().map(|(group, sum)| (grouping.group_name(definitions, group), sum)).collect();
        sums.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.bytes));
        sums
    }

    /// Returns the sum of the blocks of a category at a moment, inferred ones included.
    ///
    /// # Panics
    /// Panics if the recording is not complete.
    #[must_use]
    pub fn category(&self, category: Category, moment: u64) -> Sum {
        let grouping =
            Grouping::of(GroupBy::Category, &self.recording).with_categories(&self.history.categories(self.device));
        let state = self.state(moment);
        Sum::of(state.blocks().filter(|block| grouping.category_of(block).category == category).map(|block| block.size))
    }

    /// Returns the number of events that meet a condition.
    ///
    /// # Panics
    /// Panics if the recording is not complete.
    pub fn count_events(&self, wanted: impl Fn(&EventKind) -> bool) -> usize {
        let numbers = self.recording.first_event() + 1..=self.recording.end_event();
        numbers.filter(|&number| wanted(&self.event(number).kind)).count()
    }

    /// Returns the line of a file in a site's stack, the innermost one.
    #[must_use]
    pub fn line_in(&self, site: SiteId, file: &str) -> Option<u32> {
        let definitions = self.recording.definitions();
        let mut frames = definitions.stack(definitions.site(site).stack);
        frames.find(|frame| definitions.string(frame.file).ends_with(file)).map(|frame| frame.line)
    }

    /// Returns the sums of blocks by site, most bytes first.
    #[must_use]
    pub fn by_site<'a>(&self, blocks: impl IntoIterator<Item = &'a Block>) -> Vec<(String, Sum)> {
        let mut sums: BTreeMap<SiteId, Sum> = BTreeMap::new();
        blocks.into_iter().for_each(|block| sums.entry(block.site).or_default().add(block.size));
        let mut sums: Vec<(String, Sum)> = sums.into_iter().map(|(site, sum)| (self.site(site), sum)).collect();
        sums.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.bytes));
        sums
    }
}
