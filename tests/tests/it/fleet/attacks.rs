//! Attacks on a broker that is configured as `vramscope fleet keys` writes it, and on a server that
//! reads from it. Each test is a row of the table in `docs/fleet.md`.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use async_nats::jetstream::{
    self,
    consumer::{AckPolicy, pull, push},
};
use async_nats::{Client, ConnectOptions, HeaderMap};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use futures_util::StreamExt as _;
use nkeys::KeyPair;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use vramscope_collector::Aggregator;
use vramscope_fleet::archive::{ArchiveAddress, ArchiveOptions, ArchiveReader, ArchiveWriter, RunArchiver};
use vramscope_fleet::{
    ChunkMessage, FleetAddress, Follower, FollowerOptions, Role, StreamLimits, UserKey, broker_authorization,
    create_streams, delete_streams, subjects,
};
use vramscope_insight::fleet::{RankRow, Summary};
use vramscope_tests::Broker;
use vramscope_tests::fleet::{FollowingServer, PushingRank, logged, print_log};

use super::harness::{wait_until, wait_until_shown};

/// The run.
const RUN: &str = "run";
/// An identity of a process of rank 1 that belongs to no process of a test.
const FORGED: &str = "000000000000000000000bad00000001";
/// Another identity of that kind.
const FORGED_TOO: &str = "00000000000000000000bad200000001";

/// The last mark in forged summaries.
const FORGED_MARK: &str = "forged";

/// A broker that knows the users of a run with two ranks, and the run's streams.
struct SecuredRun {
    broker: Broker,
    keys: TempDir,
    runtime: Runtime,
}

impl SecuredRun {
    fn start() -> Self {
        let keys = tempfile::tempdir().expect("a temporary folder can be created");
        let roles = [Role::Program(Some(0)), Role::Program(Some(1)), Role::Viewer, Role::Admin];
        let users = roles.map(UserKey::random);
        for user in &users {
            fs::write(keys.path().join(user.role().to_string()), user.seed()).expect("the folder is writable");
        }
        print_log();
        let broker = Broker::with_config(&broker_authorization(RUN, &users));
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a thread starts");
        let run = Self { broker, keys, runtime };
        create_streams(&run.parsed(Role::Admin), &StreamLimits::default()).expect("an admin creates streams");
        run
    }

    fn key_path(&self, role: Role) -> PathBuf {
        self.keys.path().join(role.to_string())
    }

    /// Returns the address of the run with the credentials of a role.
    fn address(&self, role: Role) -> String {
        format!("{}?nkey={}", self.broker.address(RUN), self.key_path(role).display())
    }

    fn parsed(&self, role: Role) -> FleetAddress {
        FleetAddress::parse(&self.address(role)).expect("a valid address")
    }

    /// Starts a rank that pushes all its events with its own key.
    fn start_rank(&self, rank: u32) -> PushingRank {
        PushingRank::start(rank, &format!("{}&push=all", self.address(Role::Program(Some(rank)))))
    }

    fn start_server(&self) -> FollowingServer {
        FollowingServer::start(&self.address(Role::Viewer))
    }

    /// Connects a client that has the key of a role.
    fn client(&self, role: Role) -> Client {
        let seed = fs::read_to_string(self.key_path(role)).expect("the key exists");
        let user = KeyPair::from_seed(&seed).expect("a valid seed").public_key();
        let options = ConnectOptions::with_nkey(seed).custom_inbox_prefix(format!("_INBOX.{user}"));
        let url = format!("nats://{}", self.broker.socket());
        self.runtime.block_on(options.connect(url)).expect("the key is valid")
    }

    /// Connects an attacker that has the key of a role.
    fn attacker(&self, role: Role) -> Attacker<'_> {
        Attacker { run: self, client: self.client(role) }
    }

    /// Returns how many messages the streams of events and of descriptions have.
    fn messages(&self) -> [u64; 2] {
        let client = self.client(Role::Admin);
        let _entered = self.runtime.enter();
        let jetstream = jetstream::new(client);
        [subjects::events_stream(RUN), subjects::processes_stream(RUN)].map(|name| {
            let stream = self.runtime.block_on(jetstream.get_stream(name)).expect("an admin sees all streams");
            stream.cached_info().state.messages
        })
    }

    /// Returns how many messages the broker has on a subject of the stream of summaries.
    fn summaries_on(&self, subject: &str) -> u64 {
        let client = self.client(Role::Admin);
        let _entered = self.runtime.enter();
        self.runtime.block_on(async {
            let stream = jetstream::new(client).get_stream(subjects::summaries_stream(RUN)).await;
            let stream = stream.expect("an admin sees all streams");
            let consumer = stream.create_consumer(pull::Config {
                name: Some(format!("count-{:016x}", fastrand::u64(..))),
                filter_subject: subject.to_owned(),
                ..pull::Config::default()
            });
            consumer.await.expect("an admin reads the stream").cached_info().num_pending
        })
    }

    /// Checks that the broker has logged that it refused to publish on these subjects.
    #[track_caller]
    fn check_refused(&self, subjects: &[String]) {
        for subject in subjects {
            let is_refusal =
                |line: &str| line.contains("Publish Violation") && line.contains(&format!("\"{subject}\""));
            wait_until(&format!("the broker refuses {subject}"), || self.broker.log().lines().any(is_refusal));
        }
    }

    /// Sends a message of `bytes` bytes over a socket, which no client library limits, and returns
    /// the broker's answer.
    fn publish_raw(&self, role: Role, subject: &str, bytes: usize) -> String {
        let seed = fs::read_to_string(self.key_path(role)).expect("the key exists");
        let user = KeyPair::from_seed(&seed).expect("a valid seed");
        let mut socket = TcpStream::connect(self.broker.socket()).expect("the broker runs");
        socket.set_read_timeout(Some(Duration::from_secs(120))).expect("a valid timeout");
        let mut reader = BufReader::new(socket.try_clone().expect("the socket can be shared"));
        let mut line = String::new();
        reader.read_line(&mut line).expect("the broker greets");
        let info: Value = serde_json::from_str(line.trim_start_matches("INFO ")).expect("the greeting is JSON");
        let nonce = info["nonce"].as_str().expect("the broker wants a signature");
        let signature = BASE64_URL_SAFE_NO_PAD.encode(user.sign(nonce.as_bytes()).expect("the pair has a seed"));
        let connect = json!({ "verbose": false, "pedantic": false, "nkey": user.public_key(), "sig": signature });
        write!(socket, "CONNECT {connect}\r\nPING\r\n").expect("the broker reads");
        line.clear();
        reader.read_line(&mut line).expect("the broker answers");
        assert_eq!(line, "PONG\r\n");
        write!(socket, "PUB {subject} {bytes}\r\n").expect("the broker reads");
        // The broker may close the connection before it has read all.
        let _ = socket.write_all(&vec![0; bytes]).and_then(|()| socket.write_all(b"\r\n"));
        let mut answer = String::new();
        // A reset ends the answer.
        let _ = reader.read_line(&mut answer);
        answer
    }

    /// Returns headers and payload of the first messages of a process.
    fn stored(&self, subject: &str, count: usize) -> Vec<(HeaderMap, Vec<u8>)> {
        let client = self.client(Role::Viewer);
        self.runtime.block_on(async {
            let jetstream = jetstream::new(client);
            let stream = jetstream.get_stream(subjects::events_stream(RUN)).await.expect("a viewer sees the stream");
            let name = Some("attacker".to_owned());
            let config = pull::Config { name, filter_subject: subject.to_owned(), ..pull::Config::default() };
            let consumer = stream.create_consumer(config).await.expect("a viewer reads the stream");
            let messages = consumer.fetch().max_messages(count).messages().await.expect("a viewer reads the stream");
            let parts = messages.map(|message| {
                let message = message.expect("the broker sends a message");
                (message.headers.clone().expect("each message has headers"), message.payload.to_vec())
            });
            parts.collect().await
        })
    }
}

/// Returns a valid message with one summary of the process `identity`.
fn batch(identity: &str) -> Vec<u8> {
    let summary = Summary { number: 1_000_000, mark: FORGED_MARK.to_owned(), ..Summary::default() };
    postcard::to_extend(&vec![(identity, summary)], vec![1]).expect("a summary can be encoded")
}

/// A client with a valid key that does what its role does not allow.
struct Attacker<'a> {
    run: &'a SecuredRun,
    client: Client,
}

impl Attacker<'_> {
    /// Publishes a message and waits until the broker has it, or has refused it.
    fn publish(&self, subject: String, headers: HeaderMap, payload: Vec<u8>) {
        self.run.runtime.block_on(async {
            let published = self.client.publish_with_headers(subject, headers, payload.into()).await;
            if published.is_ok() {
                self.client.flush().await.expect("the connection stays");
            }
        });
        // The broker reads this message, which no role allows, after the other.
        let probe = format!("probe.{:016x}", fastrand::u64(..));
        self.run.runtime.block_on(async {
            self.client.publish(probe.clone(), Vec::new().into()).await.expect("the client accepts it");
            self.client.flush().await.expect("the connection stays");
        });
        self.run.check_refused(&[probe]);
    }

    /// Creates consumers that are to deliver the messages of a stream on another subject, with
    /// acknowledgements and without.
    fn deliver(&self, stream: &str, subject: &str) {
        let _entered = self.run.runtime.enter();
        let jetstream = jetstream::new(self.client.clone());
        for ack_policy in [AckPolicy::Explicit, AckPolicy::None] {
            let created = self.run.runtime.block_on(async {
                let name = Some(format!("push-{:016x}", fastrand::u64(..)));
                let config =
                    push::Config { name, deliver_subject: subject.to_owned(), ack_policy, ..push::Config::default() };
                jetstream.get_stream(stream).await.expect("a viewer sees the stream").create_consumer(config).await
            });
            created.expect("the broker cannot forbid a viewer's consumers to deliver elsewhere");
            // A delivery would follow.
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Starts a run with a rank that a server shows.
fn start_with_rank() -> (SecuredRun, FollowingServer, [PushingRank; 1]) {
    let run = SecuredRun::start();
    let (mut ranks, server) = ([run.start_rank(0)], run.start_server());
    check_unharmed(&run, &server, &mut ranks);
    wait_until("the view has the rank", || !server.view().ranks.is_empty());
    (run, server, ranks)
}

/// Checks that a running rank and a server still work, and that nothing of the attack is shown.
#[track_caller]
fn check_unharmed(run: &SecuredRun, server: &FollowingServer, ranks: &mut [PushingRank]) {
    ranks.iter_mut().for_each(|rank| rank.program.run(500));
    let recording = wait_until_shown(server, ranks);
    assert_eq!(recording.lost_events(), 0);
    let is_forged = |row: &RankRow| row.identity.0 == FORGED || row.mark == FORGED_MARK;
    assert!(!server.view().ranks.iter().any(is_forged), "{}", run.broker.log());
    wait_until_shown(&run.start_server(), ranks);
}

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn wrong_credentials_are_refused_and_appear_nowhere() {
    let run = SecuredRun::start();
    let seed_of_stranger = UserKey::random(Role::Viewer).seed();
    let path = run.keys.path().join("stranger");
    fs::write(&path, &seed_of_stranger).expect("the folder is writable");
    let broker = run.broker.socket();
    let secret = "hunter2-secret";
    for url in [
        run.broker.address(RUN),
        format!("nats://{secret}@{broker}/{RUN}"),
        format!("nats://viewer:{secret}@{broker}/{RUN}"),
        format!("{}?nkey={}", run.broker.address(RUN), path.display()),
        format!("{}?nkey={}", run.broker.address(RUN), run.keys.path().join("missing").display()),
    ] {
        let address = FleetAddress::parse(&url).expect("a valid address");
        let aggregator = Aggregator::new();
        let error = Follower::connect(&address, aggregator, FollowerOptions::default()).expect_err(&url).to_string();
        assert!(!error.contains(secret) && !error.contains(&seed_of_stranger), "{error}");
        assert!(create_streams(&address, &StreamLimits::default()).is_err(), "{url}");
        // A process logs why it cannot push, and runs on.
        let mut rank = PushingRank::start(0, &url);
        rank.program.run(100);
    }
    wait_until("a process logs why it cannot push", || logged().contains("push to nats://"));
    let log = logged();
    assert!(!log.contains(secret) && !log.contains(&seed_of_stranger), "{log}");
    assert_eq!(run.messages(), [0, 0]);
}

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn programs_publish_on_their_own_subjects_only() {
    let (run, server, mut ranks) = start_with_rank();
    let attacker = run.attacker(Role::Program(Some(1)));
    let before = run.messages();
    let identity = &server.view().ranks[0].identity.0;
    let refused = [
        subjects::events(RUN, Some(0), identity),
        subjects::summaries(RUN, Some(0), identity),
        subjects::process(RUN, Some(0), identity),
        subjects::process(RUN, None, FORGED),
        subjects::events("other", Some(1), FORGED),
        subjects::control(RUN, Some(0), identity),
        format!("$JS.API.STREAM.DELETE.{}", subjects::events_stream(RUN)),
        format!("$JS.API.STREAM.PURGE.{}", subjects::events_stream(RUN)),
        format!("$JS.API.STREAM.INFO.{}", subjects::events_stream(RUN)),
        format!("$JS.API.CONSUMER.CREATE.{}", subjects::events_stream(RUN)),
        "vramscope.run.events.1".to_owned(),
    ];
    for subject in &refused {
        attacker.publish(subject.clone(), HeaderMap::new(), batch(""));
    }
    run.check_refused(&refused);
    assert_eq!(run.messages(), before);
    check_unharmed(&run, &server, &mut ranks);
}

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn programs_read_nothing_of_others() {
    let run = SecuredRun::start();
    let mut ranks = [run.start_rank(0)];
    let server = run.start_server();
    let attacker = run.attacker(Role::Program(Some(1)));
    let mut heard = run.runtime.block_on(async {
        let mut heard = Vec::new();
        for subject in [">", "vramscope.>", "_INBOX.>", "vramscope.run.control.0.*", "$JS.API.>"] {
            heard.push(attacker.client.subscribe(subject).await.expect("the client accepts it"));
        }
        heard
    });
    check_unharmed(&run, &server, &mut ranks);
    for subscription in &mut heard {
        let next =
            run.runtime.block_on(async { tokio::time::timeout(Duration::from_millis(200), subscription.next()).await });
        assert!(!matches!(next, Ok(Some(_))), "an attacker has received a message");
    }
}

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn viewers_publish_and_delete_nothing() {
    let (run, server, mut ranks) = start_with_rank();
    let attacker = run.attacker(Role::Viewer);
    let before = run.messages();
    let identity = &server.view().ranks[0].identity.0;
    let refused = [
        subjects::events(RUN, Some(0), identity),
        subjects::summaries(RUN, Some(0), identity),
        subjects::process(RUN, Some(0), identity),
        subjects::process(RUN, Some(0), FORGED),
        format!("$JS.API.STREAM.DELETE.{}", subjects::events_stream(RUN)),
        format!("$JS.API.STREAM.PURGE.{}", subjects::summaries_stream(RUN)),
        format!("$JS.API.STREAM.UPDATE.{}", subjects::summaries_stream(RUN)),
        "$JS.API.STREAM.CREATE.mine".to_owned(),
    ];
    for subject in &refused {
        attacker.publish(subject.clone(), HeaderMap::new(), batch(""));
    }
    run.check_refused(&refused);
    assert!(delete_streams(&run.parsed(Role::Viewer)).is_err());
    attacker.deliver(&subjects::summaries_stream(RUN), &subjects::events(RUN, Some(0), identity));
    let copies = subjects::summaries(RUN, Some(0), FORGED);
    attacker.deliver(&subjects::events_stream(RUN), &copies);
    attacker.deliver(&subjects::events_stream(RUN), &subjects::process(RUN, Some(0), identity));
    for request in ["DELETE", "PURGE"] {
        attacker.deliver(&subjects::summaries_stream(RUN), &format!("$JS.API.STREAM.{request}.vramscope-run-events"));
    }
    assert_eq!(run.messages(), before);
    assert_eq!(run.summaries_on(&copies), 0);
    check_unharmed(&run, &server, &mut ranks);
}

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn forged_ranks_are_ignored() {
    let (run, server, mut ranks) = start_with_rank();
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let archive = ArchiveAddress::parse(&format!("file://{}/run", folder.path().display())).expect("a valid address");
    let writer = ArchiveWriter::open(&archive, RUN, ArchiveOptions::default()).expect("the folder can be created");
    let archiver = RunArchiver::start(&run.parsed(Role::Viewer), writer).expect("a viewer may archive");
    let attacker = run.attacker(Role::Program(Some(1)));
    // On its own subject, but as rank 0.
    for json in [
        format!("{{\"process\":\"{FORGED}\",\"rank\":0,\"program\":\"x\",\"host\":\"h\"}}"),
        format!(
            "{{\"process\":\"{}\",\"rank\":1,\"program\":\"x\",\"host\":\"h\"}}",
            server.view().ranks[0].identity.0
        ),
        "{".to_owned(),
        "[1]".to_owned(),
    ] {
        attacker.publish(subjects::process(RUN, Some(1), FORGED), HeaderMap::new(), json.into_bytes());
    }
    // The key of rank 1 publishes on subjects of rank 1, with the identity of rank 0's process.
    let identity = &server.view().ranks[0].identity.0;
    let description = format!("{{\"process\":\"{identity}\",\"rank\":1,\"program\":\"x\",\"host\":\"h\"}}");
    attacker.publish(subjects::process(RUN, Some(1), identity), HeaderMap::new(), description.into_bytes());
    attacker.publish(subjects::summaries(RUN, Some(1), identity), HeaderMap::new(), batch(""));
    let message = ChunkMessage { is_end: true, ..ChunkMessage::default() };
    for headers in [HeaderMap::new(), message.headers(identity)] {
        attacker.publish(subjects::events(RUN, Some(1), identity), headers, b"forged".to_vec());
    }
    // Summaries from a process without a valid description: of itself, and of rank 0's process.
    for named in ["", identity] {
        attacker.publish(subjects::summaries(RUN, Some(1), FORGED), HeaderMap::new(), batch(named));
    }
    // For the process of rank 0, which is on another machine than the sender's description says.
    let description = format!("{{\"process\":\"{FORGED_TOO}\",\"rank\":1,\"program\":\"x\",\"host\":\"h\"}}");
    attacker.publish(subjects::process(RUN, Some(1), FORGED_TOO), HeaderMap::new(), description.into_bytes());
    attacker.publish(subjects::summaries(RUN, Some(1), FORGED_TOO), HeaderMap::new(), batch(identity));
    assert_eq!(server.view().ranks.len(), 1);
    check_unharmed(&run, &server, &mut ranks);
    archiver.finish().expect("everything read is stored");
    let reader = ArchiveReader::open(&archive).expect("the archive is valid");
    let archived: Vec<_> = reader.ranks().iter().map(|entry| entry.rank).collect();
    assert_eq!(archived, [Some(0)], "the archive has nothing of the attack");
}

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn replayed_messages_change_nothing() {
    let (run, server, mut ranks) = start_with_rank();
    // The attacker has stolen the key of rank 0.
    let subject = subjects::events(RUN, Some(0), &server.view().ranks[0].identity.0);
    let stored = run.stored(&subject, 5);
    assert!(!stored.is_empty());
    let attacker = run.attacker(Role::Program(Some(0)));
    let before = run.messages();
    for (headers, payload) in &stored {
        attacker.publish(subject.clone(), headers.clone(), payload.clone());
    }
    assert_eq!(run.messages(), before, "the broker stores a repeated message once");
    for (headers, payload) in &stored {
        // As after the two minutes for which the broker recognizes repetitions.
        let mut headers = headers.clone();
        headers.insert("Nats-Msg-Id", format!("replayed-{}", fastrand::u64(..)));
        attacker.publish(subject.clone(), headers, payload.clone());
    }
    wait_until("the broker has stored them", || run.messages()[0] == before[0] + stored.len() as u64);
    check_unharmed(&run, &server, &mut ranks);
}

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn oversized_and_damaged_messages_end_their_own_process_only() {
    let (run, server, mut ranks) = start_with_rank();
    let attacker = run.attacker(Role::Program(Some(1)));
    let limit = attacker.client.server_info().max_payload;
    for identity in [FORGED, FORGED_TOO] {
        let description =
            format!("{{\"process\":\"{identity}\",\"rank\":1,\"program\":\"x\",\"host\":\"h\",\"sends_all\":true}}");
        attacker.publish(subjects::process(RUN, Some(1), identity), HeaderMap::new(), description.into_bytes());
    }
    let subject = subjects::events(RUN, Some(1), FORGED);
    let before = run.messages();
    let answer = run.publish_raw(Role::Program(Some(1)), &subject, limit + 1);
    assert!(answer.contains("Maximum Payload Violation"), "{answer:?}");
    assert_eq!(run.messages(), before, "larger than the broker allows");
    attacker.publish(subject.clone(), HeaderMap::new(), b"no chunks".to_vec());
    // A number that stands for two messages of different sizes. Of a process of its own, because it
    // ends there.
    for (number, id, bytes) in [(1, "a", 0), (1, "b", 100), (0, "c", 1)] {
        let mut headers = ChunkMessage { number, ..ChunkMessage::default() }.headers(FORGED_TOO);
        headers.insert("Nats-Msg-Id", id);
        attacker.publish(subjects::events(RUN, Some(1), FORGED_TOO), headers, vec![0; bytes]);
    }
    // A chunk that never ends: more than any full state has.
    for number in 0..72 {
        let message = ChunkMessage { number, is_start: number == 0, continues: true, ..ChunkMessage::default() };
        attacker.publish(subject.clone(), message.headers(FORGED), vec![0; limit - 8192]);
    }
    // An identity that fills the message.
    let long = batch(&"0".repeat(limit - 8192));
    attacker.publish(subjects::summaries(RUN, Some(1), FORGED), HeaderMap::new(), long);
    wait_until("the server refuses a long identity", || logged().contains("the summaries name an invalid identity"));
    for payload in [Vec::new(), vec![9; 100], vec![1; limit - 8192]] {
        attacker.publish(subjects::summaries(RUN, Some(1), FORGED), HeaderMap::new(), payload);
    }
    check_unharmed(&run, &server, &mut ranks);
}
