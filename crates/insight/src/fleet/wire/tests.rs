//! Views that go through the encoding and back.

use proptest::prelude::*;

use super::*;

/// Returns the row as the other side shows it: with rounded numbers.
fn rounded(row: &RankRow) -> RankRow {
    let mut rounded = row.clone();
    rounded.fragmentation = (row.fragmentation * 1e4).round() / 1e4;
    rounded.growth = row.growth.round();
    rounded.lag_ns = row.lag_ns / 1_000_000 * 1_000_000;
    rounded.clock = row.clock.map(|clock| OffsetEstimate {
        offset_ns: clock.offset_ns / 1000 * 1000,
        error_ns: clock.error_ns.div_ceil(1000) * 1000,
    });
    let single = |number: f64| f64::from(number as f32);
    rounded.outlier = row.outlier.map(|outlier| Outlier {
        metric: outlier.metric,
        value: single(outlier.value),
        median: single(outlier.median),
        distance: single(outlier.distance),
    });
    rounded
}

/// Passes views through one connection, and checks what arrives.
fn check(views: &[FleetView]) -> Result<(), TestCaseError> {
    let (mut encoder, mut decoder) = (ViewEncoder::default(), ViewDecoder::default());
    for view in views {
        let Some(message) = encoder.encode(view) else { continue };
        decoder.decode(&message).expect("an encoder wrote it");
        let expected = FleetView { ranks: view.ranks.iter().map(rounded).collect(), ..view.clone() };
        prop_assert_eq!(decoder.view(), &expected);
    }
    Ok(())
}

fn outliers() -> impl Strategy<Value = Option<Outlier>> {
    let one = (0..MarkedMetric::ALL.len(), -1e12..1e12, -1e12..1e12, -1e6..1e6);
    let outlier = one.prop_map(|(metric, value, median, distance)| Outlier {
        metric: MarkedMetric::ALL[metric],
        value,
        median,
        distance,
    });
    prop::option::of(outlier)
}

prop_compose! {
    fn rows()(
        (rank, pipeline, tensor) in any::<(Option<u32>, Option<u32>, Option<u32>)>(),
        (allocated, reserved, peak_allocated, summaries) in any::<(u64, u64, u64, u64)>(),
        (fragmentation, growth) in (0.0..=1.0, -1e12..1e12),
        step in prop::option::of(0_u64..u64::MAX),
        (mark, host) in ("[a-c]{0,2}", "[a-b]{1,2}"),
        largest_site in prop::option::of(("[x-z]{0,2}", any::<u64>())),
        (ooms, lag_ns, lost_summaries) in any::<(u32, u64, u64)>(),
        clock in prop::option::of((-(1_i64 << 60)..1 << 60, 0_u64..1 << 60)),
        (has_ended, device) in (any::<bool>(), prop::option::of(any::<u16>())),
        events in prop::sample::select(vec![EventsState::Closed, EventsState::Open, EventsState::Always]),
        outlier in outliers(),
    ) -> RankRow {
        let identity = ProcessIdentity(format!("{allocated:032x}"));
        let clock = clock.map(|(offset_ns, error_ns)| OffsetEstimate { offset_ns, error_ns });
        RankRow {
            identity, rank, host, pipeline, tensor, allocated, reserved, peak_allocated, fragmentation, growth, step,
            mark, largest_site, ooms, lag_ns, summaries, lost_summaries, clock, has_ended, outlier, events, device,
        }
    }
}

prop_compose! {
    fn views()(
        time_unix_ns in any::<u64>(),
        ranks in prop::collection::vec(rows(), 0..6),
        stages in prop::collection::vec((any::<(u32, u32, u64)>(), 0.0..4.0), 0..3),
    ) -> FleetView {
        let stage = |((pipeline, ranks, median_allocated), imbalance)| {
            StageRow { pipeline, ranks, median_allocated, imbalance }
        };
        FleetView { time_unix_ns, ranks, stages: stages.into_iter().map(stage).collect() }
    }
}

proptest! {
    #[test]
    fn decoded_views_equal_the_encoded_ones(views in prop::collection::vec(views(), 1..4)) {
        check(&views)?;
        // The same ranks with other numbers.
        let mut changed = views[0].clone();
        changed.time_unix_ns = changed.time_unix_ns.wrapping_add(1);
        for row in &mut changed.ranks {
            row.allocated ^= 0xff;
            row.mark.push('n');
        }
        check(&[views[0].clone(), changed])?;
    }

    #[test]
    fn damaged_messages_are_errors(
        view in views(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        length in any::<prop::sample::Index>(),
    ) {
        let mut message = ViewEncoder::default().encode(&view).expect("the first message");
        prop_assert!(ViewDecoder::default().decode(&message[..length.index(message.len())]).is_err());
        for (index, byte) in damage {
            let index = index.index(message.len());
            message[index] ^= byte;
        }
        let mut decoder = ViewDecoder::default();
        let _ = decoder.decode(&message);
        prop_assert!(decoder.view().ranks.len() <= MAX_RANKS);
    }
}

/// Returns a view of ranks with different numbers.
fn large_view(ranks: u32, time_unix_ns: u64) -> FleetView {
    let description = |rank| RankDescription {
        identity: format!("{rank:032x}"),
        rank: Some(rank),
        host: format!("node{:04}", rank / 8),
        pipeline: Some(rank * 4 / ranks),
        tensor: Some(rank % 8),
    };
    let row = |rank| {
        let mut row = empty_row(description(rank));
        row.allocated = (60 << 30) + time_unix_ns * 12_345 + u64::from(rank) * 678_901;
        row.reserved = 70 << 30;
        row.lag_ns = (u64::from(rank) * 7919 + time_unix_ns * 13) % 300 * 1_000_000;
        (row.summaries, row.step) = (time_unix_ns, Some(time_unix_ns / 10));
        row.mark = format!("step {}", time_unix_ns / 10);
        row
    };
    FleetView { time_unix_ns, ranks: (0..ranks).map(row).collect(), stages: Vec::new() }
}

#[test]
fn messages_of_4096_ranks_are_small() {
    let mut encoder = ViewEncoder::default();
    let full = encoder.encode(&large_view(4096, 10)).expect("a message");
    let next = encoder.encode(&large_view(4096, 11)).expect("a message");
    println!("{} bytes, then {}", full.len(), next.len());
    assert!(full.len() < 400_000 && next.len() < 60_000);
    assert_eq!(encoder.encode(&large_view(4096, 11)), None);
}

#[test]
fn texts_of_a_connection_are_bounded() {
    let (mut encoder, mut decoder) = (ViewEncoder::default(), ViewDecoder::default());
    let mut full_messages = 0;
    for tick in 0..10 {
        let mut view = large_view(8192, tick);
        for (index, row) in view.ranks.iter_mut().enumerate() {
            row.mark = format!("{tick} {index}");
        }
        full_messages += u32::from(decoder.decode(&encoder.encode(&view).expect("a message")).expect("valid"));
        assert_eq!(decoder.view(), &view);
        assert!(encoder.texts.len() <= MAX_TEXTS);
    }
    assert!((3..8).contains(&full_messages), "{full_messages}");
}

#[test]
fn other_versions_are_refused() {
    let mut message = ViewEncoder::default().encode(&FleetView::default()).expect("a message");
    message[0] = VERSION + 1;
    assert_eq!(ViewDecoder::default().decode(&message), Err(WireError::Version));
    assert_eq!(ViewDecoder::default().decode(&[]), Err(WireError::Version));
    message[0] = VERSION;
    message.push(0);
    assert_eq!(ViewDecoder::default().decode(&message), Err(WireError::Damaged));
}
