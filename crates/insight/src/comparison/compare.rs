//! Compares two recordings device by device.

use std::collections::BTreeSet;
use std::sync::Arc;

use vramscope_trace::{
    AllocationOrigin, Churn, Definitions, DeviceId, DeviceState, FormatError, PerRecording, PoolKey, Recording, Replay,
    SiteId, StreamId,
};

use super::device_totals::{DeviceStates, DeviceTotals};
use super::first_difference::{FirstDifference, Requests, first_differences};
use super::less_memory::{ComparedDevice, LessMemory, less_memory};
use super::moment::{Moment, MomentError};
use super::ranking::rank;
use super::recording_label::RecordingLabel;
use super::site_changes::{SiteChange, SitesOfDevice, SitesOfRecording, site_changes, sites_of_device};
use crate::difference::{DifferenceRow, MatchingNames, differences};
use crate::group::{DeviceCategories, GroupBy, Grouping, RecordingCategories};
use crate::history::History;
use crate::matching::{MatchedSites, churn_by_site};
use crate::sites::{GroupRow, live_groups};

/// A recording to compare, with its complete history, and the moment to compare.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// The recording.
    pub recording: &'a Recording,
    /// The lifetimes of all its allocations, see [`History::extend`].
    pub history: &'a History,
    /// The moment whose live blocks are compared.
    pub moment: &'a Moment,
}

/// The error of [`compare`].
#[derive(Debug, thiserror::Error)]
pub enum ComparisonError {
    /// A recording cannot be read.
    #[error("cannot read {recording}: {source}")]
    Unreadable {
        /// The recording.
        recording: RecordingLabel,
        /// Why.
        source: FormatError,
    },
    /// A recording does not have the moment.
    #[error("{recording} has {source}")]
    Moment {
        /// The recording.
        recording: RecordingLabel,
        /// Why.
        source: MomentError,
    },
    /// A recording does not have the device.
    #[error("{recording} has no {device}")]
    NoDevice {
        /// The recording.
        recording: RecordingLabel,
        /// The device.
        device: DeviceId,
    },
}

/// The difference between two recordings, or two moments of one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// The compared devices, by A's device number.
    pub devices: Vec<DeviceComparison>,
    /// Whether the programs differ in so much code that not everything that moved or was renamed
    /// was searched for. A site may then be shown as one that only A has and one that only B has.
    pub is_matching_limited: bool,
}

/// The difference of a device in two recordings, or between two devices.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceComparison {
    /// The device in each recording.
    pub device: PerRecording<DeviceId>,
    /// Its totals; `None` in a recording without the device.
    pub totals: PerRecording<Option<DeviceTotals>>,
    /// Live bytes by category (recorded or inferred) at the compared moments, largest change first.
    /// The changes add up to the difference of the active bytes.
    pub categories: Vec<DifferenceRow>,
    /// The sites with memory at the compared moments or the end of either recording, or with a
    /// recorded allocation. The site that explains the difference between two programs comes first,
    /// then the largest change of live bytes. The changes add up to the difference of the active
    /// bytes.
    pub sites: Vec<SiteChange>,
    /// Where the requests of two programs first differ, at the first of `sites`; `None` within one
    /// recording, or if the requests do not differ or that does not explain the difference.
    pub first_difference: Option<FirstDifference>,
    /// A request that failed in one of two programs only, because its pool could get less memory.
    pub less_memory: Option<LessMemory>,
}

impl DeviceComparison {
    /// Returns the difference of the live (active) bytes at the compared moments: B − A. A missing
    /// device counts as 0 bytes.
    #[must_use]
    pub fn live_growth(&self) -> i128 {
        let live = |totals: Option<DeviceTotals>| totals.map_or(0, |totals| totals.at_moment.counters.active);
        i128::from(live(self.totals.b)) - i128::from(live(self.totals.a))
    }
}

/// Compares two recordings, or two moments of one, device by device and site by site.
///
/// `devices` names the device of each recording to compare; by default, devices with equal numbers
/// are compared. The cost is some passes over both recordings.
///
/// # Errors
/// If a chunk cannot be read, or a recording lacks the moment or the device.
///
/// ```
/// use vramscope_insight::comparison::{Moment, Side, compare};
/// use vramscope_insight::history::History;
/// use vramscope_trace::{
///     DeviceId, Encoder, Event, EventKind, PerRecording, PoolKey, Recording, RecordingInfo, Sink,
///     SiteId, StreamId,
/// };
///
/// fn recording_of_block(size: u64) -> Recording {
///     let (stream, pool, site) = (StreamId(0), PoolKey::default(), SiteId(0));
///     let mut encoder = Encoder::new(&RecordingInfo::default());
///     for kind in [
///         EventKind::SegmentAllocated { address: 0, size: 2 << 20, stream, pool, site },
///         EventKind::BlockAllocated { address: 0, size, requested: size, stream, pool, site },
///     ] {
///         encoder.event(&Event { device: DeviceId(0), time_ns: 0, kind });
///     }
///     encoder.flush();
///     let mut recording = Recording::new();
///     for chunk in encoder.take_output() {
///         recording.push(&chunk.bytes).expect("the encoder wrote valid chunks");
///     }
///     recording
/// }
///
/// let recordings = [512, 2048].map(recording_of_block);
/// let histories = recordings.each_ref().map(|recording| {
///     let mut history = History::new();
///     history.extend(recording, u64::MAX).expect("the chunks are valid");
///     history
/// });
/// let side = |index: usize| {
///     Side { recording: &recordings[index], history: &histories[index], moment: &Moment::Peak }
/// };
/// let comparison = compare(PerRecording { a: side(0), b: side(1) }, None)?;
/// assert_eq!(comparison.devices[0].sites[0].live_growth(), 1536);
/// # Ok::<(), vramscope_insight::comparison::ComparisonError>(())
/// ```
pub fn compare(
    sides: PerRecording<Side<'_>>,
    devices: Option<PerRecording<DeviceId>>,
) -> Result<Comparison, ComparisonError> {
    if let Some(devices) = devices {
        check_device(sides.a.recording, devices.a, RecordingLabel::A)?;
        check_device(sides.b.recording, devices.b, RecordingLabel::B)?;
    }
    let is_one_recording = std::ptr::eq(sides.a.recording, sides.b.recording);
    let matched = if is_one_recording {
        MatchedSites::of_one_recording(sides.a.recording.definitions())
    } else {
        let Side { recording: a, history: history_a, .. } = sides.a;
        let Side { recording: b, history: history_b, .. } = sides.b;
        MatchedSites::new((a.definitions(), history_a.all_lifetimes()), (b.definitions(), history_b.all_lifetimes()))
    };
    let numbers = matched.numbers();
    let categories_a = sides.a.history.all_categories(sides.a.recording);
    let categories_b = match is_one_recording {
        true => Arc::clone(&categories_a),
        false => sides.b.history.all_categories(sides.b.recording),
    };
    let mut names = PerRecording {
        a: Names::new(sides.a.recording, matched.definitions_of_a(), categories_a),
        b: Names::new(sides.b.recording, sides.b.recording.definitions(), categories_b),
    };
    let all = || {
        let (a, b) = (known_devices(sides.a.recording), known_devices(sides.b.recording));
        a.union(&b).map(|&device| PerRecording { a: device, b: device }).collect()
    };
    let mut comparison = Comparison { devices: Vec::new(), is_matching_limited: matched.is_limited() };
    for device in devices.map_or_else(all, |devices| vec![devices]) {
        names.a.set_device(device.a);
        names.b.set_device(device.b);
        let figures = PerRecording {
            a: DeviceFigures::new(sides.a, device.a, RecordingLabel::A, &mut names.a)?,
            b: DeviceFigures::new(sides.b, device.b, RecordingLabel::B, &mut names.b)?,
        };
        let is_two_programs = !is_one_recording || device.a != device.b;
        let compared = if is_two_programs { compared_devices(sides, device, numbers) } else { None };
        let requests = compared.map_or_else(Vec::new, |of| first_differences(of.a.requests, of.b.requests));
        let less_memory = compared.map(less_memory).transpose();
        let less_memory =
            less_memory.map_err(|(recording, source)| ComparisonError::Unreadable { recording, source })?.flatten();
        let of = PerRecording {
            a: sites_of(sides.a, device.a, &names.a, &numbers.a, figures.a.as_ref()),
            b: sites_of(sides.b, device.b, &names.b, &numbers.b, figures.b.as_ref()),
        };
        let sites = site_changes(device, &of);
        let (sites, first_difference) = rank(sites, &of, &requests, is_two_programs);
        let [groups_a, groups_b] = [&figures.a, &figures.b].map(|of| of.as_ref().map_or(&[][..], |of| &of.categories));
        comparison.devices.push(DeviceComparison {
            device,
            totals: PerRecording {
                a: figures.a.as_ref().map(|figures| figures.totals),
                b: figures.b.as_ref().map(|figures| figures.totals),
            },
            categories: differences(groups_a, groups_b, &MatchingNames::default()),
            sites,
            first_difference,
            less_memory,
        });
    }
    Ok(comparison)
}

/// Returns an error if a recording lacks a device.
fn check_device(recording: &Recording, device: DeviceId, label: RecordingLabel) -> Result<(), ComparisonError> {
    if known_devices(recording).contains(&device) {
        return Ok(());
    }
    Err(ComparisonError::NoDevice { recording: label, device })
}

/// Returns the devices of a recording that have events.
fn known_devices(recording: &Recording) -> BTreeSet<DeviceId> {
    recording.end_state().devices().map(|(id, _)| id).filter(|id| recording.series(*id).is_some()).collect()
}

/// The names of a recording's lines and categories.
struct Names {
    /// By site number, the line of the program that makes the site's requests, as named in B.
    lines: Vec<Arc<str>>,
    by_category: Grouping,
    categories: Arc<RecordingCategories>,
}

impl Names {
    /// Creates the names of a recording whose lines are named by `definitions`. `categories` are
    /// those of its blocks.
    fn new(recording: &Recording, definitions: &Definitions, categories: Arc<RecordingCategories>) -> Self {
        let mut by_line = Grouping::new(GroupBy::Line, recording.first_event());
        by_line.update(definitions);
        let sites = 0..=u32::try_from(definitions.site_count()).unwrap_or(u32::MAX);
        let lines = sites.map(SiteId).map(|site| {
            let origin = AllocationOrigin { site, stream: StreamId(0), pool: PoolKey::default() };
            let group = by_line.group_of_origin(&origin, 0, false);
            by_line.cached_name(definitions, group)
        });
        Self { lines: lines.collect(), by_category: Grouping::of(GroupBy::Category, recording), categories }
    }

    /// Sets the device whose blocks are named from now on.
    fn set_device(&mut self, device: DeviceId) {
        self.by_category.set_categories(&DeviceCategories::new(&self.categories, device));
    }
}

/// The figures of a device of one recording.
struct DeviceFigures {
    totals: DeviceTotals,
    sites: SitesOfDevice,
    /// Live blocks by category at the compared moment.
    categories: Vec<GroupRow>,
}

impl DeviceFigures {
    /// Computes the figures of a device; `None` if the recording lacks it.
    fn new(
        side: Side<'_>,
        device: DeviceId,
        label: RecordingLabel,
        names: &mut Names,
    ) -> Result<Option<Self>, ComparisonError> {
        let Side { recording, history, moment } = side;
        let unreadable = |source| ComparisonError::Unreadable { recording: label, source };
        let end = recording.end_state().device(device).filter(|_| recording.series(device).is_some());
        let Some(end) = end else { return Ok(None) };
        let event = moment.event(recording, history, device);
        let event = event.map_err(|source| ComparisonError::Moment { recording: label, source })?;
        let state_at = |event| -> Result<DeviceState, ComparisonError> {
            let mut replay = Replay::new();
            let state = replay.seek(recording, event).map_err(unreadable)?;
            Ok(state.device(device).cloned().unwrap_or_default())
        };
        let peak_event = recording.series(device).map_or(event, |series| series.peak_allocated().event);
        let at_peak = state_at(peak_event)?;
        let at_event = if event == peak_event { None } else { Some(state_at(event)?) };
        let states = DeviceStates { peak: &at_peak, moment: at_event.as_ref().unwrap_or(&at_peak), end };
        let churn = churn_by_site(history.lifetimes(device));
        let mut all = Churn::default();
        churn.values().for_each(|of_site| all.add_all(of_site.churn));
        Ok(Some(Self {
            totals: DeviceTotals::new(recording, device, &states, event, all).map_err(unreadable)?,
            sites: sites_of_device(states.moment, end, &churn),
            categories: live_groups(states.moment, recording.definitions(), &mut names.by_category),
        }))
    }
}

/// Returns the sites of a device of one recording; `figures` is `None` if the recording lacks it.
fn sites_of<'a>(
    side: Side<'a>,
    device: DeviceId,
    names: &'a Names,
    shared_numbers: &'a [SiteId],
    figures: Option<&'a DeviceFigures>,
) -> SitesOfRecording<'a> {
    SitesOfRecording {
        definitions: side.recording.definitions(),
        grouping: &names.by_category,
        lines: &names.lines,
        shared_numbers,
        sites: figures.map(|figures| &figures.sites),
        lifetimes: side.history.lifetimes(device),
    }
}

/// Returns the compared devices with their requests; `None` if a recording lacks its device.
fn compared_devices<'a>(
    sides: PerRecording<Side<'a>>,
    device: PerRecording<DeviceId>,
    numbers: &'a PerRecording<Vec<SiteId>>,
) -> Option<PerRecording<ComparedDevice<'a>>> {
    let of = |side: Side<'a>, device, numbers| {
        let requests = Requests::new(side.history.lifetimes(device)?, numbers);
        Some(ComparedDevice { recording: side.recording, device, requests })
    };
    Some(PerRecording { a: of(sides.a, device.a, &numbers.a)?, b: of(sides.b, device.b, &numbers.b)? })
}
