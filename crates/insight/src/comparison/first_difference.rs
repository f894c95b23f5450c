//! Where the requests of two programs first differ.
//!
//! Two runs of one program make equal requests in equal order, and free them between equal
//! requests. After a change of the program, everything before its first effect is equal. Segments
//! and addresses are not compared: they depend on the allocator's settings.

use std::cmp::Reverse;

use vramscope_trace::{Allocation, DeviceLifetimes, PerRecording, SiteId};

/// Maximum number of requests after which the programs must agree again, if only one of them makes
/// a request.
const RESYNC_REQUESTS: usize = 256;
/// Number of equal requests in a row that count as agreement.
const AGREEMENT: usize = 3;

/// How the requests of two programs differ at the first difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstDifferenceKind {
    /// One site requests another number of bytes.
    Size,
    /// Only A makes the request.
    OnlyInA,
    /// Only B makes the request.
    OnlyInB,
    /// Two sites make a request each, and the programs do not agree again soon.
    Replaced,
    /// An allocation that both make is freed earlier in A.
    FreedEarlierInA,
    /// An allocation that both make is freed earlier in B.
    FreedEarlierInB,
}

/// A request of one of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestAt {
    /// Number of the event that made the allocation.
    pub event: u64,
    /// Bytes that the program requested.
    pub requested_bytes: u64,
    /// Where, as a site of the request's recording.
    pub site: SiteId,
}

/// The first difference between the requests of two programs on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstDifference {
    /// Number of equal requests before it.
    pub equal_requests: u64,
    /// How they differ.
    pub kind: FirstDifferenceKind,
    /// The request in each recording; `None` in the recording that lacks it.
    pub requests: PerRecording<Option<RequestAt>>,
    /// For an allocation that is freed earlier in one recording: its lifetime in each recording, as
    /// the number of equal requests from its own to its free. `None` for other differences.
    pub kept_for: Option<PerRecording<u64>>,
}

/// The requests on one device, with a numbering of sites that both recordings share.
#[derive(Clone, Copy)]
pub(super) struct Requests<'a> {
    pub(super) lifetimes: &'a DeviceLifetimes,
    /// By site number of the recording, the number that stands for the matched site in both
    /// recordings.
    pub(super) shared_numbers: &'a [SiteId],
    /// Whether requests of other sizes are different requests.
    compares_sizes: bool,
}

impl<'a> Requests<'a> {
    /// Creates the requests of a device; `shared_numbers` has, by site number of the recording, the
    /// number that stands for the matched site in both recordings.
    pub(super) fn new(lifetimes: &'a DeviceLifetimes, shared_numbers: &'a [SiteId]) -> Self {
        Self { lifetimes, shared_numbers, compares_sizes: true }
    }

    /// Returns these requests without their sizes: requests of one site are then equal.
    fn without_sizes(self) -> Self {
        Self { compares_sizes: false, ..self }
    }

    /// Iterates over the recorded requests in their order. Blocks older than the recording are left
    /// out.
    pub(super) fn iter(self) -> impl Iterator<Item = Allocation> + 'a {
        self.lifetimes.iter().filter(|one| one.start_observed)
    }

    /// Returns the shared site number and the size of a request. Equal requests of both recordings
    /// have equal keys.
    pub(super) fn key(self, one: &Allocation) -> (SiteId, u64) {
        let number = self.shared_numbers.get(one.site.0 as usize).copied().unwrap_or_default();
        (number, if self.compares_sizes { one.requested } else { 0 })
    }
}

impl RequestAt {
    /// Creates the request that made an allocation.
    fn new(one: &Allocation) -> Self {
        Self { event: one.first_moment, requested_bytes: one.requested, site: one.site }
    }
}

/// A request that both programs make: the moments from which and until which the allocation is
/// allocated. Two whole [`Allocation`]s would take more memory, and there may be millions.
struct EqualRequest {
    from: PerRecording<u64>,
    until: PerRecording<Option<u64>>,
    size: u64,
}

/// Returns the differences that may be the first effect of a change of the program: the first free
/// and the first request that differ, then the first that differ without regard to sizes, because
/// sizes may depend on random data. Returns none if the requests and frees of one program are the
/// first ones of the other.
///
/// The cost is linear in the number of equal requests, with a look-up for each.
pub(super) fn first_differences(a: Requests<'_>, b: Requests<'_>) -> Vec<FirstDifference> {
    let mut differences = differences(a, b);
    if differences.last().is_some_and(|last| last.kind == FirstDifferenceKind::Size) {
        differences.extend(self::differences(a.without_sizes(), b.without_sizes()));
    }
    differences
}

/// Returns the first free and the first request that differ.
fn differences(a: Requests<'_>, b: Requests<'_>) -> Vec<FirstDifference> {
    let mut equal: Vec<EqualRequest> = Vec::new();
    let (mut rest_a, mut rest_b) = (a.iter().peekable(), b.iter().peekable());
    while let (Some(one), Some(other)) = (rest_a.peek(), rest_b.peek())
        && a.key(one) == b.key(other)
    {
        equal.push(EqualRequest {
            from: PerRecording { a: one.first_moment, b: other.first_moment },
            until: PerRecording { a: one.allocated_until, b: other.allocated_until },
            size: one.size,
        });
        rest_a.next();
        rest_b.next();
    }
    let ahead_a: Vec<Allocation> = rest_a.take(RESYNC_REQUESTS + AGREEMENT).collect();
    let ahead_b: Vec<Allocation> = rest_b.take(RESYNC_REQUESTS + AGREEMENT).collect();
    let request = different_request((a, &ahead_a), (b, &ahead_b), equal.len() as u64);
    different_free(a, b, &equal).into_iter().chain(request).collect()
}

/// Returns the difference between the next requests of both programs, `ahead_a` and `ahead_b`,
/// which follow `equal_requests` equal requests.
fn different_request(
    (a, ahead_a): (Requests<'_>, &[Allocation]),
    (b, ahead_b): (Requests<'_>, &[Allocation]),
    equal_requests: u64,
) -> Option<FirstDifference> {
    let (first_a, first_b) = (ahead_a.first()?, ahead_b.first()?);
    let keys = |of: Requests<'_>, ahead: &[Allocation]| ahead.iter().map(|one| of.key(one)).collect::<Vec<_>>();
    let (keys_a, keys_b) = (keys(a, ahead_a), keys(b, ahead_b));
    let (one, other) = (Some(RequestAt::new(first_a)), Some(RequestAt::new(first_b)));
    let (kind, a, b) = match () {
        () if keys_a[0].0 == keys_b[0].0 => (FirstDifferenceKind::Size, one, other),
        // Of two explanations, the one with fewer additional requests is the better one.
        () => match (skipped(&keys_b, &keys_a), skipped(&keys_a, &keys_b)) {
            (Some(in_b), in_a) if in_a.is_none_or(|in_a| in_b <= in_a) => (FirstDifferenceKind::OnlyInB, None, other),
            (_, Some(_)) => (FirstDifferenceKind::OnlyInA, one, None),
            _ => (FirstDifferenceKind::Replaced, one, other),
        },
    };
    Some(FirstDifference { equal_requests, kind, requests: PerRecording { a, b }, kept_for: None })
}

/// Returns how many requests must be left out at the beginning of `longer` for the next
/// [`AGREEMENT`] requests of both to be of equal sites; `None` if that never happens.
fn skipped(longer: &[(SiteId, u64)], shorter: &[(SiteId, u64)]) -> Option<usize> {
    let wanted = shorter.get(..AGREEMENT)?;
    longer.windows(AGREEMENT).position(|window| window.iter().zip(wanted).all(|(one, other)| one.0 == other.0))
}

/// Returns the first free that differs among the allocations that both programs make: in one
/// program, the allocation is freed before an earlier request than in the other.
fn different_free(a: Requests<'_>, b: Requests<'_>, equal: &[EqualRequest]) -> Option<FirstDifference> {
    let requests_until = |moment: Option<u64>, from: fn(&EqualRequest) -> u64| {
        moment.map_or(equal.len(), |moment| equal.partition_point(|request| from(request) < moment))
    };
    let frees = equal.iter().enumerate().map(|(number, request)| {
        let in_a = requests_until(request.until.a, |request| request.from.a);
        let in_b = requests_until(request.until.b, |request| request.from.b);
        (in_a, in_b, number, request.size)
    });
    let different = frees.filter(|(in_a, in_b, ..)| in_a != in_b);
    // Of several frees before one request, take that of the largest allocation.
    let first = different.min_by_key(|&(in_a, in_b, _, size)| (in_a.min(in_b), Reverse(size)));
    first.map(|(in_a, in_b, number, _)| FirstDifference {
        equal_requests: in_a.min(in_b) as u64,
        kind: if in_a < in_b { FirstDifferenceKind::FreedEarlierInA } else { FirstDifferenceKind::FreedEarlierInB },
        requests: PerRecording {
            a: a.iter().nth(number).as_ref().map(RequestAt::new),
            b: b.iter().nth(number).as_ref().map(RequestAt::new),
        },
        kept_for: Some(PerRecording { a: in_a.saturating_sub(number) as u64, b: in_b.saturating_sub(number) as u64 }),
    })
}
