//! Every rank sends what it holds, and the one that differs is marked.

use std::fs;

use vramscope_insight::fleet::RankRow;
use vramscope_tests::Broker;
use vramscope_tests::fleet::{FollowingServer, PushingRank, print_log};

use super::harness::{start_broker, wait_until};

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn all_servers_show_the_summaries_of_all_ranks() {
    let broker = start_broker();
    let url = broker.address("run");
    let mut ranks: Vec<_> = (0..6).map(|rank| PushingRank::start(rank, &url)).collect();
    let servers = [FollowingServer::start(&url), FollowingServer::start(&url)];
    let summaries = |server: &FollowingServer| server.view().ranks.iter().map(|row| row.summaries).sum::<u64>();
    for _ in 0..10 {
        ranks.iter_mut().for_each(|rank| rank.program.run(100));
        let before = summaries(&servers[0]);
        wait_until("summaries arrive", || summaries(&servers[0]) > before);
    }
    for server in &servers {
        wait_until("every rank is shown as it is", || {
            let view = server.view();
            let is_shown = |rank: &PushingRank| {
                let row = view.ranks.iter().find(|row| row.rank == Some(rank.rank));
                row.is_some_and(|row| row.allocated == rank.program.device().counters().allocated)
            };
            // A busy machine is late, and knows less of a clock.
            let is_recent = |row: &RankRow| {
                row.lag_ns < 2_000_000_000 && row.clock.is_some_and(|clock| clock.error_ns < 500_000_000)
            };
            view.ranks.len() == ranks.len() && ranks.iter().all(is_shown) && view.ranks.iter().all(is_recent)
        });
        let view = server.view();
        for row in &view.ranks {
            assert_eq!(row.lost_summaries, 0);
            assert!(row.largest_site.as_ref().is_some_and(|(name, bytes)| name.contains(".py:") && *bytes > 0));
            let clock = row.clock.expect("acknowledgements arrive");
            assert!(clock.offset_ns.unsigned_abs() <= clock.error_ns, "{row:?}");
        }
    }
    ranks.iter_mut().for_each(PushingRank::end);
    wait_until("the ends are shown", || servers[0].view().ranks.iter().all(|row| row.has_ended));
}

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn revoked_key_of_one_rank_does_not_silence_its_machine() {
    print_log();
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let allow = |names: &[&str]| {
        let users: Vec<String> = names.iter().map(|name| format!("{{user: {name}, password: secret}}")).collect();
        let config = format!("authorization {{ users: [{}] }}", users.join(", "));
        fs::write(folder.path().join("users.conf"), config).expect("the folder is writable");
    };
    allow(&["rank0", "rank1", "viewer"]);
    // Relative to the folder of the broker's configuration, which is beside this one.
    let name = folder.path().file_name().expect("the folder has a name").display();
    let mut broker = Broker::with_config(&format!("include \"../{name}/users.conf\""));
    let server = FollowingServer::start(&broker.address_for("viewer", "secret", "run"));
    let summaries = |rank: u32| {
        let view = server.view();
        view.ranks.iter().find(|row| row.rank == Some(rank)).map_or(0, |row| row.summaries)
    };
    // The first process sends the summaries of both.
    let ranks = [0, 1].map(|rank| {
        let started = PushingRank::start(rank, &broker.address_for(&format!("rank{rank}"), "secret", "run"));
        wait_until("summaries of the rank arrive", || summaries(rank) > 2);
        started
    });
    allow(&["rank1", "viewer"]);
    broker.run();
    let before = [0, 1].map(summaries);
    wait_until("summaries of both ranks arrive", || {
        (0..2).all(|rank: u32| summaries(rank) > before[rank as usize] + 20)
    });
    drop(ranks);
}
