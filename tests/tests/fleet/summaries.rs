//! Every rank sends what it holds, and the one that differs is marked.

use std::thread;
use std::time::Duration;

use vramscope_tests::fleet::{FollowingServer, PushingRank};

use crate::harness::{start_broker, wait_until};

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn all_servers_show_the_summaries_of_all_ranks() {
    let broker = start_broker();
    let url = broker.address("run");
    let mut ranks: Vec<_> = (0..6).map(|rank| PushingRank::start(rank, &url)).collect();
    let servers = [FollowingServer::start(&url), FollowingServer::start(&url)];
    for _ in 0..20 {
        ranks.iter_mut().for_each(|rank| rank.program.run(100));
        thread::sleep(Duration::from_millis(50));
    }
    for server in &servers {
        wait_until("every rank is shown as it is", || {
            let view = server.view();
            let is_shown = |rank: &PushingRank| {
                let row = view.ranks.iter().find(|row| row.rank == Some(rank.rank));
                row.is_some_and(|row| row.allocated == rank.program.device().counters().allocated)
            };
            view.ranks.len() == ranks.len() && ranks.iter().all(is_shown)
        });
        let view = server.view();
        for row in &view.ranks {
            assert_eq!(row.lost_summaries, 0);
            assert!(row.lag_ns < 2_000_000_000, "{row:?}");
            assert!(row.largest_site.as_ref().is_some_and(|(name, bytes)| name.contains(".py:") && *bytes > 0));
            let clock = row.clock.expect("acknowledgements arrive");
            assert!(clock.offset_ns.unsigned_abs() <= clock.error_ns && clock.error_ns < 500_000_000, "{row:?}");
        }
    }
    ranks.iter_mut().for_each(PushingRank::end);
    wait_until("the ends are shown", || servers[0].view().ranks.iter().all(|row| row.has_ended));
}
