//! The output of `diff --json`.

use serde::Serialize;
use vramscope_insight::comparison::{
    DeviceComparison, DeviceTotals, FirstDifference, FirstDifferenceKind, LessMemory, RecordingLabel, RequestAt,
    SiteChange, UNUSABLE_REQUEST_BYTES,
};
use vramscope_insight::conditions::{Evaluation, Value};
use vramscope_insight::difference::DifferenceRow;
use vramscope_trace::{DeviceId, PerRecording};

use super::checks::Check;
use super::compared::Compared;

/// The whole output.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub(crate) struct DiffReport<'a> {
    files: Pair<String>,
    moments: Pair<String>,
    /// Size in bytes of the request that the unusable shares refer to.
    unusable_request_bytes: u64,
    /// True if the programs differ in too much code to search for everything that moved or was
    /// renamed.
    matching_limited: bool,
    devices: Vec<DeviceReport>,
    categories: Vec<CategoryReport<'a>>,
    sites: Vec<SiteReport<'a>>,
    conditions: Vec<ConditionReport>,
    /// True if a condition of `--fail-if` holds.
    failed: bool,
}

/// Two values, one for each recording: paths and moments as given on the command line, or requests.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
struct Pair<T> {
    a: T,
    b: T,
}

/// A device's totals in both recordings; `a` or `b` is `None` if that recording lacks the device.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
struct DeviceReport {
    device: u16,
    b_device: u16,
    a: Option<TotalsReport>,
    b: Option<TotalsReport>,
    /// Sum of the sites' changes of live bytes.
    delta_live_bytes: i128,
    first_difference: Option<FirstDifferenceReport>,
    /// Null unless the requests are equal until one failed in one recording only.
    less_memory: Option<LessMemoryReport>,
}

/// A request that failed in one recording, while the pool of the other could get more memory for
/// the same requests.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
struct LessMemoryReport {
    /// `a` or `b`.
    failed_in: &'static str,
    /// Number of the failed request's event in that recording.
    event: u64,
    requested_bytes: u64,
    /// Number of equal requests before it.
    equal_requests: u64,
    /// Bytes that the pool of A could get; a lower bound if the request succeeded there.
    a_obtainable_bytes: u64,
    /// Bytes that the pool of B could get; a lower bound if the request succeeded there.
    b_obtainable_bytes: u64,
    /// Whether a cap refused the request, not the driver.
    is_capped: bool,
}

impl From<LessMemory> for LessMemoryReport {
    fn from(less: LessMemory) -> Self {
        Self {
            failed_in: if less.failed_in == RecordingLabel::A { "a" } else { "b" },
            event: less.event,
            requested_bytes: less.requested_bytes,
            equal_requests: less.equal_requests,
            a_obtainable_bytes: less.obtainable_bytes.a,
            b_obtainable_bytes: less.obtainable_bytes.b,
            is_capped: less.is_capped,
        }
    }
}

/// A device's totals in one recording. Bytes and fragmentation are values at the end unless named
/// otherwise.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
struct TotalsReport {
    events: u64,
    allocated_bytes: u64,
    reserved_bytes: u64,
    peak_allocated_bytes: u64,
    peak_reserved_bytes: u64,
    ooms: u64,
    peak_fragmentation: f64,
    fragmentation: f64,
    highest_fragmentation: f64,
    highest_fragmentation_event: u64,
    mean_fragmentation: f64,
    highest_unusable_share: f64,
    highest_unusable_share_event: u64,
    mean_unusable_share: f64,
    allocations: u64,
    allocated_bytes_total: u64,
    moment_event: u64,
    moment_allocated_bytes: u64,
    moment_live_bytes: u64,
    moment_reserved_bytes: u64,
    moment_requested_bytes: u64,
    moment_blocks: u64,
    moment_segments: u64,
    moment_fragmentation: f64,
}

/// Where the requests of two programs first differ.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
struct FirstDifferenceReport {
    kind: &'static str,
    equal_requests: u64,
    a: Option<RequestReport>,
    b: Option<RequestReport>,
}

/// A request of one of the programs.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
struct RequestReport {
    event: u64,
    requested_bytes: u64,
}

/// The live bytes of a category, recorded or inferred, at both moments.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
struct CategoryReport<'a> {
    device: u16,
    b_device: u16,
    category: &'a str,
    a_live_bytes: u64,
    b_live_bytes: u64,
    delta_live_bytes: i128,
    a_live_blocks: u64,
    b_live_blocks: u64,
}

/// A site (call stack, scope path and category of allocations): the memory that its blocks hold in
/// both recordings, at the compared moments and at the end; and its allocations over the whole
/// recordings, freed ones included.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
struct SiteReport<'a> {
    device: u16,
    b_device: u16,
    site: &'a str,
    scope: &'a str,
    category: &'static str,
    inferred_category: &'static str,
    stack: &'a [String],
    is_first_difference: bool,
    a_bytes: u64,
    b_bytes: u64,
    delta_bytes: i128,
    a_blocks: u64,
    b_blocks: u64,
    a_live_bytes: u64,
    b_live_bytes: u64,
    delta_live_bytes: i128,
    a_end_bytes: u64,
    b_end_bytes: u64,
    delta_end_bytes: i128,
    a_end_blocks: u64,
    b_end_blocks: u64,
    a_allocations: u64,
    b_allocations: u64,
    delta_allocations: i128,
    a_allocated_bytes_total: u64,
    b_allocated_bytes_total: u64,
    delta_allocated_bytes_total: i128,
}

/// A condition of `--fail-if`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
struct ConditionReport {
    condition: String,
    metric: &'static str,
    comparator: &'static str,
    /// True if the condition holds for a device.
    holds: bool,
    devices: Vec<EvaluationReport>,
}

/// A condition's values for a device.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
struct EvaluationReport {
    device: u16,
    b_device: u16,
    a: ValueReport,
    b: ValueReport,
    holds: bool,
}

/// The value of a metric: a whole number, or a share.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
#[serde(untagged)]
enum ValueReport {
    Whole(u64),
    Share(f64),
}

impl<'a> DiffReport<'a> {
    /// Creates the output for a comparison.
    pub(crate) fn new(compared: &'a Compared) -> Self {
        let PerRecording { a, b } = &compared.operands;
        let devices = &compared.comparison.devices;
        let categories = devices.iter().flat_map(|device| {
            device.categories.iter().map(|row| CategoryReport::new(device.device, row)).collect::<Vec<_>>()
        });
        Self {
            files: Pair { a: a.file(), b: b.file() },
            moments: Pair { a: a.moment.to_string(), b: b.moment.to_string() },
            unusable_request_bytes: UNUSABLE_REQUEST_BYTES,
            matching_limited: compared.comparison.is_matching_limited,
            devices: devices.iter().map(DeviceReport::new).collect(),
            categories: categories.collect(),
            sites: devices.iter().flat_map(|device| device.sites.iter().map(SiteReport::new)).collect(),
            conditions: compared.checks.iter().map(ConditionReport::new).collect(),
            failed: compared.checks.iter().any(Check::fails),
        }
    }
}

impl DeviceReport {
    fn new(device: &DeviceComparison) -> Self {
        Self {
            device: device.device.a.0,
            b_device: device.device.b.0,
            a: device.totals.a.map(TotalsReport::from),
            b: device.totals.b.map(TotalsReport::from),
            delta_live_bytes: device.live_growth(),
            first_difference: device.first_difference.map(FirstDifferenceReport::from),
            less_memory: device.less_memory.map(LessMemoryReport::from),
        }
    }
}

impl From<DeviceTotals> for TotalsReport {
    fn from(totals: DeviceTotals) -> Self {
        let (fragmentation, unusable_share) = (totals.fragmentation_over_time, totals.unusable_share_over_time);
        let at_moment = totals.at_moment;
        Self {
            events: totals.events,
            allocated_bytes: totals.allocated_bytes,
            reserved_bytes: totals.reserved_bytes,
            peak_allocated_bytes: totals.peak_allocated_bytes,
            peak_reserved_bytes: totals.peak_reserved_bytes,
            ooms: totals.ooms,
            peak_fragmentation: totals.peak_fragmentation,
            fragmentation: totals.fragmentation,
            highest_fragmentation: fragmentation.highest,
            highest_fragmentation_event: fragmentation.highest_event,
            mean_fragmentation: fragmentation.mean,
            highest_unusable_share: unusable_share.highest,
            highest_unusable_share_event: unusable_share.highest_event,
            mean_unusable_share: unusable_share.mean,
            allocations: totals.churn.allocations,
            allocated_bytes_total: totals.churn.bytes,
            moment_event: totals.moment,
            moment_allocated_bytes: at_moment.counters.allocated,
            moment_live_bytes: at_moment.counters.active,
            moment_reserved_bytes: at_moment.counters.reserved,
            moment_requested_bytes: at_moment.counters.requested,
            moment_blocks: at_moment.blocks,
            moment_segments: at_moment.segments,
            moment_fragmentation: at_moment.free.fragmentation(),
        }
    }
}

impl From<FirstDifference> for FirstDifferenceReport {
    fn from(difference: FirstDifference) -> Self {
        let request =
            |request: RequestAt| RequestReport { event: request.event, requested_bytes: request.requested_bytes };
        Self {
            kind: match difference.kind {
                FirstDifferenceKind::Size => "size",
                FirstDifferenceKind::OnlyInA => "only_in_a",
                FirstDifferenceKind::OnlyInB => "only_in_b",
                FirstDifferenceKind::Replaced => "replaced",
                FirstDifferenceKind::FreedEarlierInA => "freed_earlier_in_a",
                FirstDifferenceKind::FreedEarlierInB => "freed_earlier_in_b",
            },
            equal_requests: difference.equal_requests,
            a: difference.requests.a.map(request),
            b: difference.requests.b.map(request),
        }
    }
}

impl<'a> CategoryReport<'a> {
    fn new(device: PerRecording<DeviceId>, row: &'a DifferenceRow) -> Self {
        Self {
            device: device.a.0,
            b_device: device.b.0,
            category: &row.name,
            a_live_bytes: row.a_bytes,
            b_live_bytes: row.b_bytes,
            delta_live_bytes: row.change_bytes,
            a_live_blocks: row.a_blocks,
            b_live_blocks: row.b_blocks,
        }
    }
}

impl<'a> SiteReport<'a> {
    fn new(change: &'a SiteChange) -> Self {
        let (delta_bytes, delta_end_bytes) = change.growth();
        let PerRecording { a: at_a, b: at_b } = change.at_moment;
        let PerRecording { a: a_churn, b: b_churn } = change.churn;
        Self {
            device: change.device.a.0,
            b_device: change.device.b.0,
            site: &change.name,
            scope: &change.scope,
            category: change.category.name(),
            inferred_category: change.inferred_category.category.name(),
            stack: &change.stack,
            is_first_difference: change.is_first_difference,
            a_bytes: at_a.bytes,
            b_bytes: at_b.bytes,
            delta_bytes,
            a_blocks: at_a.blocks,
            b_blocks: at_b.blocks,
            a_live_bytes: at_a.live_bytes(),
            b_live_bytes: at_b.live_bytes(),
            delta_live_bytes: change.live_growth(),
            a_end_bytes: change.end.a.bytes,
            b_end_bytes: change.end.b.bytes,
            delta_end_bytes,
            a_end_blocks: change.end.a.blocks,
            b_end_blocks: change.end.b.blocks,
            a_allocations: a_churn.allocations,
            b_allocations: b_churn.allocations,
            delta_allocations: i128::from(b_churn.allocations) - i128::from(a_churn.allocations),
            a_allocated_bytes_total: a_churn.bytes,
            b_allocated_bytes_total: b_churn.bytes,
            delta_allocated_bytes_total: change.churn_growth(),
        }
    }
}

impl ConditionReport {
    fn new(check: &Check) -> Self {
        let devices = check.devices.iter().map(|(device, Evaluation { values, holds })| EvaluationReport {
            device: device.a.0,
            b_device: device.b.0,
            a: values.a.into(),
            b: values.b.into(),
            holds: *holds,
        });
        Self {
            condition: check.condition.to_string(),
            metric: check.condition.metric().name(),
            comparator: check.condition.comparator().sign(),
            holds: check.fails(),
            devices: devices.collect(),
        }
    }
}

impl From<Value> for ValueReport {
    fn from(value: Value) -> Self {
        match value {
            Value::Bytes(number) | Value::Count(number) => Self::Whole(number),
            Value::Share(share) => Self::Share(share),
        }
    }
}
