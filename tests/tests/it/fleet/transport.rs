//! Every event arrives, whatever breaks on the way.

use std::thread;
use std::time::Duration;

use vramscope_collector::HubLimits;
use vramscope_fleet::FollowerOptions;
use vramscope_tests::Broker;
use vramscope_tests::fleet::{FollowingServer, PushingRank};

use super::harness::{start_broker, wait_until, wait_until_shown};

/// Starts ranks that push all events to the broker.
fn start_ranks(broker: &Broker, count: u32) -> Vec<PushingRank> {
    let url = format!("{}?push=all", broker.address("run"));
    (0..count).map(|rank| PushingRank::start(rank, &url)).collect()
}

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn every_event_of_all_ranks_arrives() {
    let broker = start_broker();
    let mut ranks = start_ranks(&broker, 4);
    let server = FollowingServer::start(&broker.address("run"));
    for _ in 0..20 {
        ranks.iter_mut().for_each(|rank| rank.program.run(500));
        let shown = server.recording().end_event();
        wait_until("the server shows more", || server.recording().end_event() > shown);
    }
    let recording = wait_until_shown(&server, &ranks);
    assert_eq!(recording.lost_events(), 0);
    ranks.iter_mut().for_each(PushingRank::end);
    let marks = ranks.len() as u64;
    let total: u64 = ranks.iter().map(|rank| rank.program.events()).sum();
    wait_until("the ends of all ranks are shown", || server.recording().end_event() == total + marks);
}

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn nothing_is_lost_when_the_broker_is_killed() {
    let mut broker = start_broker();
    let mut ranks = start_ranks(&broker, 2);
    let server = FollowingServer::start(&broker.address("run"));
    for round in 0..12 {
        ranks.iter_mut().for_each(|rank| rank.program.run(1000));
        // The broker is killed, and started, in the middle of something.
        thread::sleep(Duration::from_millis(100));
        if round % 4 == 1 {
            broker.kill();
        }
        if round % 4 == 3 {
            broker.run();
        }
    }
    let recording = wait_until_shown(&server, &ranks);
    assert_eq!(recording.lost_events(), 0, "{}", broker.log());
}

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn servers_that_come_later_show_the_same() {
    let broker = start_broker();
    let mut ranks = start_ranks(&broker, 2);
    let mut first = FollowingServer::start(&broker.address("run"));
    ranks.iter_mut().for_each(|rank| rank.program.run(50_000));
    wait_until_shown(&first, &ranks);
    first.stop();
    ranks.iter_mut().for_each(|rank| rank.program.run(50_000));
    let url = broker.address("run");
    let servers = [FollowingServer::start(&url), FollowingServer::start(&url)];
    ranks.iter_mut().for_each(|rank| rank.program.run(1000));
    for server in &servers {
        let recording = wait_until_shown(server, &ranks);
        assert_eq!((recording.first_event(), recording.lost_events()), (0, 0));
    }
    ranks.iter_mut().for_each(PushingRank::end);
    // Also after the end of the run.
    wait_until_shown(&FollowingServer::start(&url), &ranks);
}

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn newest_start_is_enough_for_a_server() {
    let broker = start_broker();
    let mut ranks = start_ranks(&broker, 1);
    ranks[0].program.run(100_000);
    let url = broker.address("run");
    wait_until_shown(&FollowingServer::start(&url), &ranks);
    let options = FollowerOptions { history: Duration::ZERO, ..FollowerOptions::default() };
    let recording = wait_until_shown(&FollowingServer::with_options(&url, options), &ranks);
    // It has less than the whole history, or the push has repeated no start yet.
    assert_eq!(recording.lost_events(), 0);
}

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn events_are_sent_when_a_server_asks_for_them() {
    let broker = start_broker();
    let url = broker.address("run");
    let mut ranks: Vec<_> = (0..3).map(|rank| PushingRank::start(rank, &url)).collect();
    ranks.iter_mut().for_each(|rank| rank.program.run(1000));
    let options = FollowerOptions { max_open: 0, ..FollowerOptions::default() };
    let watching = FollowingServer::with_options(&url, options);
    // Each process sends ten summaries a second, and would have sent its events by then.
    wait_until("summaries of all ranks arrive", || {
        let view = watching.view();
        view.ranks.len() == ranks.len() && view.ranks.iter().all(|row| row.summaries > 10)
    });
    assert_eq!(watching.recording().end_event(), 0, "no server has asked for events");
    let asking = FollowingServer::start(&url);
    ranks.iter_mut().for_each(|rank| rank.program.run(1000));
    for server in [&asking, &watching] {
        assert_eq!(wait_until_shown(server, &ranks).lost_events(), 0);
    }
}

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn events_that_no_broker_takes_are_a_gap() {
    let mut broker = start_broker();
    let limits = HubLimits { history_bytes: 200_000, lag_bytes: 100_000 };
    let url = format!("{}?push=all", broker.address("run"));
    let mut ranks = [PushingRank::with_limits(0, &url, limits)];
    ranks[0].program.run(1000);
    let server = FollowingServer::start(&broker.address("run"));
    wait_until_shown(&server, &ranks);
    broker.kill();
    // The program never waits: it loses what its history cannot hold.
    for _ in 0..300 {
        ranks[0].program.run(1000);
    }
    broker.run();
    let recording = wait_until_shown(&server, &ranks);
    assert!(recording.lost_events() > 100_000, "{} lost", recording.lost_events());
    // The gap is an event itself.
    assert_eq!(recording.end_event() + recording.lost_events(), ranks[0].program.events() + 1);
}
