//! A process whose names are redacted sends none of them to the broker.

use std::fs;

use vramscope_collector::{HostDevice, Listen, Monitor, PushAddress, Rank};
use vramscope_tests::fleet::FollowingServer;

use super::harness::{start_broker, wait_until};

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn redacted_process_sends_no_names() {
    let broker = start_broker();
    let address = PushAddress::parse(&format!("{}?push=all", broker.address("run"))).expect("a valid address");
    let rank = Rank { global: Some(0), local: Some(0) };
    let builder = Monitor::builder(HostDevice::new(1 << 30)).program("secret_program").redact(true);
    let (monitor, pool) = builder.listen(Listen::Off).rank(rank).push(address).start().expect("threads start");
    let server = FollowingServer::start(&broker.address("run"));
    let scope = pool.scope("secret_scope");
    let buffer = pool.alloc_zeros::<f32>(1 << 20).expect("the host has memory");
    pool.mark("secret_mark");
    wait_until("summaries and events are shown", || {
        let has_names = server
            .view()
            .ranks
            .iter()
            .any(|row| row.allocated > 0 && row.largest_site.is_some() && !row.mark.is_empty());
        has_names && server.recording().end_state().devices().next().is_some()
    });
    drop((buffer, scope));
    monitor.stop();
    wait_until("the end is shown", || server.view().ranks.iter().all(|row| row.has_ended));
    let recording = server.recording();
    let shown = format!("{:?} {:?}", server.view(), recording.definitions().iter().collect::<Vec<_>>());
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "secret".to_owned());
    for name in ["secret", host.trim()] {
        assert!(!shown.contains(name), "{name} was sent: {shown}");
    }
    assert!(shown.contains("host_"), "{shown}");
}
