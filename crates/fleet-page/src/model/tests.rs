//! Messages, keys and clicks.

use vramscope_insight::fleet::ViewEncoder;

use super::*;
use crate::metric::Metric;
use crate::test_view::{outlier, rows};

const OPEN_2: &str = r#"{"open":"00000000000000000000000000000002"}"#;

/// A page and the server's side of its connection.
struct Connected {
    model: FleetModel,
    encoder: ViewEncoder,
    view: FleetView,
}

impl Connected {
    fn new(ranks: u32) -> Self {
        let view = FleetView { time_unix_ns: 1_000_000_000, ranks: rows(ranks), stages: Vec::new() };
        let mut connected = Self { model: FleetModel::default(), encoder: ViewEncoder::default(), view };
        connected.model.resize(800.0, 600.0);
        connected.model.connect();
        assert_eq!(connected.model.receive_text(r#"{"run":"r","allowed":true}"#), None);
        connected.tick();
        connected
    }

    /// Sends the view, a tenth of a second later.
    fn tick(&mut self) {
        self.view.time_unix_ns += 100_000_000;
        let message = self.encoder.encode(&self.view).expect("a new time");
        self.model.receive_view(&message).expect("a valid message");
    }

    fn ranks_of_cells(&self) -> Vec<u32> {
        self.model.scene().cells.iter().filter_map(|cell| cell.rank).collect()
    }
}

#[test]
fn state_has_the_outliers_in_order() {
    let mut page = Connected::new(16);
    page.view.ranks[3].outlier = Some(outlier(7.0));
    page.view.ranks[9].outlier = Some(outlier(-20.0));
    page.view.ranks[9].lost_summaries = 4;
    page.view.ranks[5].lag_ns = 2_000_000_000;
    page.tick();
    let state = page.model.state(16.7, 1.0);
    assert_eq!((state.run.as_str(), state.ranks, state.ticks, state.connected), ("r", 16, 2, true));
    assert_eq!(state.outliers.iter().map(|one| one.rank).collect::<Vec<_>>(), [Some(9), Some(3)]);
    assert_eq!((state.lost_summaries, state.lag_p95_ms, state.frame_ms_p95), (4, 2000.0, 16.7));
    for expected in [9, 3, 9] {
        page.model.select_next_outlier();
        assert_eq!(page.model.selected().and_then(|row| row.rank), Some(expected));
    }
}

#[test]
fn selected_rank_is_opened_once_it_has_a_device() {
    let mut page = Connected::new(4);
    assert_eq!(page.model.open_selected(), None);
    for direction in [Direction::First, Direction::Right, Direction::Right] {
        page.model.move_selection(direction);
    }
    // The device of an earlier time is no reason to leave before the events are read again.
    page.view.ranks[2].device = Some(5);
    page.tick();
    assert_eq!(page.model.open_selected().as_deref(), Some(OPEN_2));
    page.tick();
    assert_eq!((page.model.opened_device(), page.model.state(0.0, 0.0).opening), (None, Some(2)));
    page.view.ranks[2].events = EventsState::Open;
    page.tick();
    assert_eq!(page.model.opened_device(), Some(5));
    assert_eq!(page.model.switch_events(), Some(OPEN_2.replace("open", "close")));
    page.model.cancel_opening();
    assert_eq!(page.model.opened_device(), None);
}

#[test]
fn ended_rank_is_shown_without_reading_it_again() {
    let mut page = Connected::new(4);
    page.model.select("00000000000000000000000000000002");
    page.view.ranks[2].has_ended = true;
    page.tick();
    // The broker may have its events.
    assert_eq!(page.model.open_selected().as_deref(), Some(OPEN_2));
    assert_eq!(page.model.opened_device(), None);
    page.view.ranks[2].device = Some(5);
    page.tick();
    assert_eq!(page.model.opened_device(), Some(5));
    page.model.cancel_opening();
    assert_eq!((page.model.open_selected(), page.model.opened_device()), (None, Some(5)));
}

#[test]
fn rank_that_is_refused_after_its_opening_is_opened_once_more() {
    let mut page = Connected::new(4);
    page.model.select("00000000000000000000000000000002");
    assert!(page.model.open_selected().is_some());
    for (events, expected) in [
        (EventsState::Closed, None),
        (EventsState::Open, None),
        (EventsState::Open, None),
        (EventsState::Closed, Some(OPEN_2)),
        (EventsState::Closed, None),
    ] {
        page.view.ranks[2].events = events;
        page.tick();
        assert_eq!(page.model.open_again().as_deref(), expected);
    }
    assert!(page.model.receive_text(r#"{"error":"full"}"#).is_some());
    assert_eq!(page.model.open_again(), None);
}

#[test]
fn failed_command_ends_the_waiting() {
    let mut page = Connected::new(4);
    page.model.move_selection(Direction::First);
    assert!(page.model.open_selected().is_some());
    assert_eq!(page.model.receive_text(r#"{"error":"too many"}"#).as_deref(), Some("too many"));
    assert!(page.model.opening().is_none());
    for invalid in ["", "1", "{}", r#"{"run":1}"#] {
        assert_eq!(page.model.receive_text(invalid), None);
    }
    assert_eq!(page.model.receive_text(r#"{"run":"r","allowed":false}"#), None);
    assert_eq!((page.model.open_selected(), page.model.switch_events()), (None, None));
}

#[test]
fn selection_survives_new_ranks_and_a_new_connection() {
    let mut page = Connected::new(4);
    page.model.select("00000000000000000000000000000002");
    page.view.ranks.remove(0);
    page.tick();
    assert_eq!(page.model.selected().and_then(|row| row.rank), Some(2));
    page.model.disconnect();
    assert!(!page.model.is_connected() && page.model.view().ranks.len() == 3);
    page.model.connect();
    page.encoder = ViewEncoder::default();
    page.tick();
    assert_eq!((page.ranks_of_cells(), page.model.state(0.0, 0.0).selected), (vec![1, 2, 3], Some(2)));
    // A view without the rank.
    page.view.ranks.remove(1);
    page.tick();
    assert!(page.model.selected().is_none());
}

#[test]
fn cells_sorted_by_value_move_once_a_second_and_not_under_the_pointer() {
    let mut page = Connected::new(3);
    page.model.set_settings(Settings { metric: Metric::Reserved, sort_by: SortBy::Metric, ..Settings::default() });
    let ticks_until = |page: &mut Connected, expected: [u32; 3]| {
        let mut ticks = 0;
        while page.ranks_of_cells() != expected && ticks < 30 {
            page.tick();
            ticks += 1;
        }
        ticks
    };
    page.view.ranks[2].reserved = 1;
    assert_eq!(ticks_until(&mut page, [2, 0, 1]), 10);
    page.view.ranks[1].reserved = 2;
    assert!(page.model.hover(Some((5.0, 25.0))) && !page.model.hover(Some((6.0, 25.0))));
    assert_eq!(page.model.shown().and_then(|row| row.rank), Some(2));
    assert_eq!(ticks_until(&mut page, [1, 2, 0]), 30);
    assert!(page.model.hover(None));
    assert_eq!(ticks_until(&mut page, [1, 2, 0]), 1);
}

#[test]
fn damaged_views_leave_no_ranks() {
    let mut page = Connected::new(4);
    page.model.hover(Some((5.0, 25.0)));
    assert_eq!(page.model.receive_view(&[1, 255]), Err(WireError::Damaged));
    assert_eq!((page.model.view().ranks.len(), page.model.scene().cells.len()), (0, 0));
    assert!(page.model.shown().is_none() && page.model.selected_span().is_none());
    page.model.move_selection(Direction::Down);
    page.model.select_next_outlier();
    assert!(!page.model.select_at(5.0, 25.0));
}
