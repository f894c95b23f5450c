//! Servers read the events of the ranks that users open.

use async_nats::jetstream::stream::Stream;
use tokio::runtime::Builder;
use vramscope_collector::{Aggregator, Process};
use vramscope_fleet::{FleetAddress, FollowerOptions, OpenError, SimulatedHost, subjects};
use vramscope_insight::fleet::{EventsState, ProcessIdentity, RankRow};
use vramscope_tests::fleet::{FollowingServer, PushingRank};
use vramscope_tests::{Broker, Proxy};

use super::harness::{shows, start_broker, wait_until, wait_until_shown};

/// Returns what a server shows of a rank, once it shows all of them.
fn row(server: &FollowingServer, rank: u32) -> RankRow {
    let mut row = None;
    wait_until("the rank is in the view", || {
        row = server.view().ranks.iter().find(|row| row.rank == Some(rank)).cloned();
        row.is_some()
    });
    row.expect("the loop ends with a row")
}

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn rank_is_read_from_its_opening_to_its_closing_by_all_servers() {
    let broker = start_broker();
    let url = broker.address("run");
    let mut ranks: Vec<_> = (0..3).map(|rank| PushingRank::start(rank, &url)).collect();
    ranks.iter_mut().for_each(|rank| rank.program.run(1000));
    // The first process gets the only place, until a user opens another.
    let options = FollowerOptions { max_open: 1, ..FollowerOptions::default() };
    let servers = [FollowingServer::with_options(&url, options), FollowingServer::with_options(&url, options)];
    let identity = row(&servers[0], 2).identity;
    wait_until("the servers know the process", || servers[0].follower().open(&identity).is_ok());
    let is_shown = |server: &FollowingServer, rank: &PushingRank| shows(&server.recording(), rank);
    for server in &servers {
        wait_until("the opened rank is shown", || is_shown(server, &ranks[2]));
        wait_until("the view says that the rank is open", || {
            let row = row(server, 2);
            (row.events, row.device) == (EventsState::Open, Some(2))
        });
    }
    let refused = servers[0].follower().open(&row(&servers[0], 1).identity);
    assert_eq!(refused, Err(OpenError::Full(1)));
    let unknown = ProcessIdentity("0".repeat(32));
    assert_eq!(servers[0].follower().open(&unknown), Err(OpenError::Unknown));

    servers[0].follower().close(&identity);
    wait_until("no server reads the rank", || {
        servers.iter().all(|server| row(server, 2).events == EventsState::Closed)
    });
    // The last request to the process is valid for 15 seconds.
    let subject = subjects::events("run", Some(2), &ranks[2].identity());
    wait_until("the process sends no events that no server reads", || {
        ranks[2].program.run(1000);
        let before = last_message(&broker, "run", &subject);
        // It sends ten summaries a second, and would have sent its events by then.
        let summaries = row(&servers[0], 2).summaries;
        wait_until("summaries arrive", || row(&servers[0], 2).summaries > summaries + 10);
        last_message(&broker, "run", &subject) == before
    });
    assert!(!is_shown(&servers[0], &ranks[2]), "a server shows events that no process has sent");
    servers[1].follower().open(&identity).expect("a place is free");
    for server in &servers {
        wait_until("the rank is shown again", || is_shown(server, &ranks[2]));
    }
}

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn killed_process_is_shown_as_lost() {
    let broker = start_broker();
    let proxy = Proxy::start(broker.socket());
    let mut ranks = [PushingRank::start(0, &format!("nats://{}/run", proxy.address()))];
    let server = FollowingServer::start(&broker.address("run"));
    ranks[0].program.run(1000);
    wait_until_shown(&server, &ranks);
    let events = ranks[0].program.events();
    // Without its connection, a process looks as a killed one.
    drop(proxy);
    wait_until("the recording has the mark of the lost connection", || server.recording().end_event() == events + 1);
    assert!(!row(&server, 0).has_ended);
}

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn ranks_that_start_again_are_read_instead_of_the_killed_ones() {
    let broker = start_broker();
    let proxy = Proxy::start(broker.socket());
    let mut killed = [0, 1].map(|rank| PushingRank::start(rank, &format!("nats://{}/run", proxy.address())));
    let url = broker.address("run");
    let options = FollowerOptions { max_open: 2, ..FollowerOptions::default() };
    let server = FollowingServer::with_options(&url, options);
    killed.iter_mut().for_each(|rank| rank.program.run(1000));
    wait_until("the ranks are shown", || server.wrong_ranks(&killed).is_empty());
    drop(proxy);
    let mut ranks = [0, 1].map(|rank| PushingRank::start(rank, &url));
    ranks.iter_mut().for_each(|rank| rank.program.run(1000));
    wait_until("the new processes are shown", || server.wrong_ranks(&ranks).is_empty());
    // A new server reads the descriptions of the killed processes first.
    let late = FollowingServer::with_options(&url, options);
    wait_until("the new server shows them, too", || late.wrong_ranks(&ranks).is_empty());
}

/// Calls `read` with the stream of a run's events, and returns its result.
fn with_events<T>(broker: &Broker, run: &str, read: impl AsyncFnOnce(Stream) -> T) -> T {
    let runtime = Builder::new_current_thread().enable_all().build().expect("the runtime starts");
    runtime.block_on(async {
        let client = async_nats::connect(broker.socket().to_string()).await.expect("the broker runs");
        let context = async_nats::jetstream::new(client);
        read(context.get_stream(subjects::events_stream(run)).await.expect("the stream exists")).await
    })
}

/// Returns the number of consumers of a run's events.
fn consumers(broker: &Broker, run: &str) -> usize {
    with_events(broker, run, async |stream| stream.cached_info().state.consumer_count)
}

/// Returns the number of the last message on a subject of a run's events.
fn last_message(broker: &Broker, run: &str, subject: &str) -> u64 {
    with_events(broker, run, async |stream| {
        stream.get_last_raw_message_by_subject(subject).await.expect("the process has sent events").sequence
    })
}

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn processes_that_one_rank_describes_take_few_places() {
    let broker = start_broker();
    let url = broker.address("run");
    let all = format!("{url}?push=all");
    let server = FollowingServer::start(&url);
    let process = |number: u32| Process {
        identity: subjects::process_identity(&format!("{number:024x}00000000"), Some(7)),
        rank: Some(7),
        ..Process::default()
    };
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a thread starts");
    let address = FleetAddress::parse(&all).expect("a valid address");
    let described = runtime.block_on(SimulatedHost::connect(address, (0..600).map(process).collect(), ""));
    described.expect("the broker accepts them");
    let mut ranks = [PushingRank::start(0, &all), PushingRank::start(1, &url)];
    ranks.iter_mut().for_each(|rank| rank.program.run(1000));
    wait_until_shown(&server, &ranks);
    wait_until("the server reads few processes", || consumers(&broker, "run") <= 10);
}

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn rank_without_a_place_says_why_and_gets_one_later() {
    let broker = start_broker();
    let url = broker.address("run");
    let server = FollowingServer::start(&url);
    let join = |number: usize| {
        let process = Process { identity: format!("{number:032x}"), ..Process::default() };
        server.aggregator().join(process).expect("there is a place")
    };
    let others: Vec<_> = (0..Aggregator::MAX_PROCESSES).map(join).collect();
    let mut ranks = [PushingRank::start(0, &format!("{url}?push=all")), PushingRank::start(1, &url)];
    ranks.iter_mut().for_each(|rank| rank.program.run(1000));
    for rank in 0..2 {
        let identity = row(&server, rank).identity;
        wait_until("the server says why it cannot read the rank", || {
            let opened = server.follower().open(&identity);
            matches!(opened, Err(OpenError::Refused(reason)) if reason == "the limit of 256 processes is reached")
        });
    }
    drop(others);
    wait_until_shown(&server, &ranks);
}

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn rank_that_was_read_to_its_end_can_be_opened() {
    let broker = start_broker();
    let url = broker.address("run");
    let server = FollowingServer::start(&url);
    let mut ranks = [PushingRank::start(0, &url), PushingRank::start(1, &format!("{url}?push=all"))];
    ranks.iter_mut().for_each(|rank| rank.program.run(1000));
    wait_until_shown(&server, &ranks);
    ranks.iter_mut().for_each(PushingRank::end);
    for rank in 0..2 {
        wait_until("the rank has ended", || {
            let row = row(&server, rank);
            row.has_ended && row.events == EventsState::Closed
        });
        let row = row(&server, rank);
        assert_eq!(server.follower().open(&row.identity), Ok(()));
        assert!(row.device.is_some(), "the page has a device to show");
    }
}

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn broker_that_lost_its_store_is_filled_again() {
    let mut broker = start_broker();
    let url = broker.address("run");
    let all = format!("{url}?push=all");
    let mut ranks = [PushingRank::start(0, &all), PushingRank::start(1, &url)];
    let server = FollowingServer::start(&url);
    let run = |ranks: &mut [PushingRank; 2]| ranks.iter_mut().for_each(|rank| rank.program.run(1000));
    run(&mut ranks);
    wait_until_shown(&server, &ranks);
    broker.lose_store();
    run(&mut ranks);
    broker.run();
    run(&mut ranks);
    wait_until_shown(&server, &ranks);
    let summaries = |rank| row(&server, rank).summaries;
    let before = [0, 1].map(summaries);
    wait_until("summaries arrive", || (0..2).all(|rank| summaries(rank) > before[rank as usize]));
    // A new server, which has only what the broker has stored since.
    let late = FollowingServer::start(&url);
    run(&mut ranks);
    wait_until_shown(&late, &ranks);
}
