//! Reads the processes of a run from a broker.
//!
//! The follower watches the descriptions of all processes, compares their summaries, and reads the
//! events of the open ones. It has no state that the broker does not have, so any number of
//! followers show equal data, and a restarted follower continues with the stored messages.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::DeliverPolicy;
use futures_util::StreamExt as _;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::MissedTickBehavior;
use vramscope_collector::{Aggregator, Process};
use vramscope_insight::fleet::{EventsState, FleetView, ProcessIdentity};

use crate::address::FleetAddress;
use crate::connection::{Connection, FleetError, describe};
use crate::control::EventRequest;
use crate::fleet_reader::{SharedFleet, compare_ranks, read_summaries};
use crate::process_follower::{ProcessFollower, ProcessObserver};
use crate::process_record::ProcessRecord;
use crate::process_registry::{OpenError, ProcessRegistry, Stop};
use crate::runtime::BackgroundRuntime;
use crate::subject_reader::SubjectReader;
use crate::{streams, subjects, unix_time};

/// Interval at which an open process's request for events is renewed.
const RENEW_INTERVAL: Duration = Duration::from_secs(5);
/// Duration of a request for events: three renewal intervals, so that a lost request does no harm.
const LEASE: Duration = Duration::from_secs(15);
/// Interval at which further processes are opened if fewer than allowed are open, and at which
/// expired requests of other servers are removed.
const FILL_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum interval between two updates of the processes that are read, because an update's
/// duration grows with the number of processes.
const MIN_CHANGE_INTERVAL: Duration = Duration::from_millis(20);

/// Options of a [`Follower`]: how much history it reads, and of how many processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowerOptions {
    /// Maximum age of the events that are read at the start, if the broker has them.
    pub history: Duration,
    /// The most processes whose events are requested at once. The first processes are opened
    /// automatically, without [`Follower::open`]. Processes that send all events are read without a
    /// request. In total, at most [`Aggregator::MAX_PROCESSES`] are read; a process that sends
    /// nothing for long is replaced by another.
    pub max_open: usize,
}

impl Default for FollowerOptions {
    fn default() -> Self {
        Self { history: Duration::from_secs(600), max_open: 16 }
    }
}

/// A reader of a run's processes, which passes their recordings to an [`Aggregator`] until it is
/// dropped.
pub struct Follower {
    runtime: BackgroundRuntime,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Follower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follower").field("run", &self.shared.run).finish_non_exhaustive()
    }
}

impl Follower {
    /// Connects to the broker of the run at `address`, and checks that the run can be read. Reads
    /// nothing before [`follow`](Self::follow).
    ///
    /// # Errors
    /// If the broker cannot be reached or refuses the connection, or the operating system cannot
    /// start a thread. A connection that is lost later is restored.
    pub fn connect(
        address: &FleetAddress,
        aggregator: Aggregator,
        options: FollowerOptions,
    ) -> Result<Self, FleetError> {
        let runtime = BackgroundRuntime::new("vramscope-fleet").map_err(|error| FleetError::new(address, error))?;
        let connection = runtime.block_on(Connection::open(address, "vramscope serve"))?;
        let run = address.run().to_owned();
        let ensured = runtime.block_on(ensure_readable(&connection, &run));
        ensured.map_err(|reason| FleetError::new(address, reason))?;
        let shared = Arc::new(Shared {
            handle: runtime.handle(),
            connection,
            run,
            fleet: SharedFleet::default(),
            aggregator,
            options,
            server: EventRequest::new_server(),
            registry: Mutex::new(ProcessRegistry::new(options.max_open)),
            followed: Mutex::default(),
            has_new: Notify::new(),
        });
        Ok(Self { runtime, shared })
    }

    /// Starts to pass the recordings of the run's processes to the aggregator, which must have
    /// begun.
    pub fn follow(&self) {
        let shared = || Arc::clone(&self.shared);
        self.runtime.spawn(follow_run(shared()));
        self.runtime.spawn(apply_changes(shared()));
        self.runtime.spawn(renew_requests(shared()));
        self.runtime.spawn(hear_requests(shared()));
        let Shared { connection, run, fleet, .. } = &*self.shared;
        self.runtime.spawn(read_summaries(connection.clone(), run.clone(), fleet.clone()));
        self.runtime.spawn(compare_ranks(fleet.clone()));
    }

    /// Returns the name of the run.
    #[must_use]
    pub fn run(&self) -> &str {
        &self.shared.run
    }

    /// Returns all ranks of the run as of the last tick; there are ten ticks a second.
    #[must_use]
    pub fn view(&self) -> Arc<FleetView> {
        self.shared.fleet.view()
    }

    /// Starts to read the events of a process, and requests them until [`close`](Self::close). If
    /// as many processes as allowed are open, first closes one that no user has opened. Does
    /// nothing if the process has ended and the aggregator has its events.
    ///
    /// # Errors
    /// If the process is unknown, has ended without its events being at the broker, its events were
    /// refused, or as many processes are open as allowed.
    pub fn open(&self, identity: &ProcessIdentity) -> Result<(), OpenError> {
        let is_silent = |name: &str| self.shared.fleet.is_silent(name);
        self.shared.registry(|registry| registry.open(&identity.0, Instant::now(), is_silent))?;
        self.shared.update();
        let shared = Arc::clone(&self.shared);
        self.runtime.spawn(async move { shared.send_requests().await });
        Ok(())
    }

    /// Stops reading the events of a process, on all servers of the run, unless a user has opened
    /// it on another server or the process sends all.
    pub fn close(&self, identity: &ProcessIdentity) {
        let subject = self.shared.registry(|registry| {
            registry.close(&identity.0);
            registry.process(&identity.0).map(|process| self.shared.control_subject(process))
        });
        self.shared.update();
        let Some(subject) = subject else { return };
        let shared = Arc::clone(&self.shared);
        self.runtime.spawn(async move { shared.send(subject, EventRequest::end(shared.server)).await });
    }
}

/// State that the tasks of a follower share.
struct Shared {
    handle: Handle,
    connection: Connection,
    run: String,
    fleet: SharedFleet,
    aggregator: Aggregator,
    options: FollowerOptions,
    /// Number that identifies this server in its requests.
    server: u64,
    registry: Mutex<ProcessRegistry>,
    /// For each process that has been read and has not reached its end, by identity, the sender
    /// that tells its task whether the process is open now.
    followed: Mutex<BTreeMap<String, watch::Sender<bool>>>,
    /// Wakes [`apply_changes`] when a new process is to be read.
    has_new: Notify,
}

impl Shared {
    /// Calls `act` with the locked registry and returns its result.
    fn registry<T>(&self, act: impl FnOnce(&mut ProcessRegistry) -> T) -> T {
        act(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Locks the map of processes that have been read.
    fn followed(&self) -> MutexGuard<'_, BTreeMap<String, watch::Sender<bool>>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts and stops reading processes as the registry says, and updates their states in the
    /// view.
    fn update(self: &Arc<Self>) {
        let mut followed = self.followed();
        self.registry(|registry| {
            // Stops reading processes that the registry has forgotten.
            followed.retain(|identity, _| registry.process(identity).is_some());
            for (record, events, device) in registry.states(Instant::now()) {
                let identity = &record.process.identity;
                self.fleet.set_events(identity, events, device);
                let is_open = events != EventsState::Closed;
                if let Some(sender) = followed.get(identity) {
                    sender.send_if_modified(|was_open| std::mem::replace(was_open, is_open) != is_open);
                } else if is_open {
                    followed.insert(identity.clone(), self.start_following(record));
                }
            }
        });
    }

    /// Starts to read the events of a process.
    fn start_following(self: &Arc<Self>, record: &ProcessRecord) -> watch::Sender<bool> {
        let (sender, is_open) = watch::channel(true);
        let control_subject = self.control_subject(&record.process);
        let identity = record.process.identity.clone();
        let observer = Observer { shared: Arc::clone(self), identity, control_subject };
        let (connection, aggregator) = (self.connection.clone(), self.aggregator.clone());
        let history = self.options.history;
        let follower = ProcessFollower::new(connection, &self.run, record, history, aggregator, observer);
        let (shared, identity) = (Arc::clone(self), record.process.identity.clone());
        self.handle.spawn(async move {
            if let Some(stop) = follower.run(is_open).await {
                shared.stop_following(&identity, stop);
            }
        });
        sender
    }

    /// Stops reading a process, and records the reason in the registry.
    fn stop_following(self: &Arc<Self>, identity: &str, stop: Stop) {
        let record = self.registry(|registry| registry.stop(identity, stop, Instant::now()).cloned());
        // Removed after the registry was updated, because the registry would otherwise start the
        // process again.
        self.followed().remove(identity);
        if let Some(record) = record {
            self.fleet.describe(&record);
        }
        self.update();
    }

    /// Opens further processes if fewer than allowed are open. Returns true if any was opened.
    fn fill_places(&self) -> bool {
        self.registry(|registry| registry.fill_places(Instant::now(), |name| self.fleet.is_silent(name)))
    }

    /// Sends a request for events to each process that this server has opened.
    async fn send_requests(&self) {
        let request = EventRequest { lease: LEASE, server: self.server, wants_start: false };
        let subjects: Vec<String> =
            self.registry(|registry| registry.opened().map(|record| self.control_subject(&record.process)).collect());
        for subject in subjects {
            self.send(subject, request).await;
        }
    }

    /// Returns the subject of the requests for a process's events.
    fn control_subject(&self, process: &Process) -> String {
        subjects::control(&self.run, process.rank, &process.identity)
    }

    /// Sends a request. Failures are ignored: requests are repeated, or expire.
    async fn send(&self, subject: String, request: EventRequest) {
        let _ = self.connection.client.publish(subject, request.to_string().into()).await;
    }

    /// Handles another server's request for a process's events.
    fn hear(self: &Arc<Self>, identity: &str, request: EventRequest) {
        let now = Instant::now();
        let is_changed = self.registry(|registry| {
            if request.is_end() {
                return registry.close_automatic(identity);
            }
            !request.lease.is_zero() && registry.requested(identity, now + request.lease, now)
        });
        if is_changed {
            self.update();
        }
    }
}

/// The connection of a [`ProcessFollower`] to the other tasks of the follower.
struct Observer {
    shared: Arc<Shared>,
    identity: String,
    control_subject: String,
}

impl ProcessObserver for Observer {
    fn is_silent(&self) -> bool {
        self.shared.fleet.is_silent(&self.identity)
    }

    async fn request_start(&self) {
        // The request has no lease. Otherwise two servers that hear each other's requests would
        // keep reading forever.
        let (lease, server) = (Duration::ZERO, self.shared.server);
        self.shared.send(self.control_subject.clone(), EventRequest { lease, server, wants_start: true }).await;
    }

    fn set_device(&self, device: u16) {
        if self.shared.registry(|registry| registry.set_device(&self.identity, device)) {
            self.shared.update();
        }
    }

    fn set_lost(&self) {
        if self.shared.registry(|registry| registry.yield_place(&self.identity)) {
            self.shared.update();
        }
    }
}

/// Checks that the run's streams can be read; creates them if they do not exist and the broker
/// allows it, so that a server can start before the first process.
async fn ensure_readable(connection: &Connection, run: &str) -> Result<(), String> {
    for name in subjects::streams(run) {
        if let Err(error) = connection.jetstream.get_stream(&name).await {
            return streams::ensure(connection, run)
                .await
                .map_err(|why| format!("cannot read the stream {name}: {}; {why}", describe(&error)));
        }
    }
    Ok(())
}

/// Starts to read new processes, and opens further ones if fewer than allowed are open, for as long
/// as the follower runs.
async fn apply_changes(shared: Arc<Shared>) {
    let mut fill = tokio::time::interval(FILL_INTERVAL);
    fill.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let has_new = tokio::select! {
            _ = fill.tick() => shared.fill_places(),
            () = shared.has_new.notified() => true,
        };
        shared.update();
        if has_new {
            shared.send_requests().await;
        }
        tokio::time::sleep(MIN_CHANGE_INTERVAL).await;
    }
}

/// Renews the requests for events for as long as the follower runs.
async fn renew_requests(shared: Arc<Shared>) {
    loop {
        shared.send_requests().await;
        tokio::time::sleep(RENEW_INTERVAL).await;
    }
}

/// Listens to the requests of other servers for as long as the follower runs, so that all servers
/// read the same processes.
async fn hear_requests(shared: Arc<Shared>) {
    let mut has_logged_failure = false;
    loop {
        let mut requests = match shared.connection.client.subscribe(subjects::all_controls(&shared.run)).await {
            Ok(requests) => requests,
            Err(error) => {
                if !std::mem::replace(&mut has_logged_failure, true) {
                    tracing::warn!("cannot listen to other servers: {}; trying again", describe(&error));
                }
                tokio::time::sleep(FILL_INTERVAL).await;
                continue;
            }
        };
        while let Some(request) = requests.next().await {
            let parsed = EventRequest::parse(&request.payload);
            let parsed = parsed.filter(|request| request.server != shared.server);
            if let (Some(parsed), Some((_, identity))) = (parsed, subjects::parse_process(&request.subject)) {
                shared.hear(identity, parsed);
            }
        }
    }
}

/// Watches the descriptions of all processes, and reads the events of the open ones.
async fn follow_run(shared: Arc<Shared>) {
    let mut reader = SubjectReader::new(
        shared.connection.clone(),
        subjects::processes_stream(&shared.run),
        subjects::all_processes(&shared.run),
        DeliverPolicy::LastPerSubject,
    );
    loop {
        let message = reader.next().await;
        let mut record = match ProcessRecord::parse(&message.subject, &message.payload) {
            Ok(record) => record,
            Err(reason) => {
                tracing::warn!("ignored the description on {}: {reason}", message.subject);
                continue;
            }
        };
        if let Ok(info) = message.info() {
            record.use_broker_clock(unix_time::since_1970_ns(info.published.into()) / 1_000_000);
        }
        shared.fleet.describe(&record);
        let is_current = is_current(&record, shared.options.history);
        if shared.registry(|registry| registry.describe(&record, is_current, Instant::now())) {
            shared.has_new.notify_one();
        }
    }
}

/// Returns true if a process may have events in the history that is read; false if it ended before.
fn is_current(record: &ProcessRecord, history: Duration) -> bool {
    let age_ms = unix_time::now_ms().saturating_sub(record.details.start_unix_ms);
    !record.details.has_ended || u128::from(age_ms) <= history.as_millis()
}
