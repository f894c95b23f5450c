//! Runs of simulated ranks.

use super::*;
use crate::fleet::{Acknowledged, MarkedMetric, Mesh};

const MIB: u64 = 1 << 20;
const START_NS: u64 = 1_700_000_000_000_000_000;

/// A run of ranks whose allocated bytes follow a step of training, each shifted in time.
struct Run {
    fleet: Fleet,
    ranks: u32,
    tick: u64,
}

impl Run {
    /// Creates a run of `ranks` ranks in a mesh such as `pp=2,dp=4`.
    fn new(ranks: u32, mesh: &str) -> Self {
        let mesh: Mesh = mesh.parse().expect("a valid mesh");
        let mut fleet = Fleet::new();
        for rank in 0..ranks {
            let description = ProcessDescription {
                rank: Some(rank),
                host: format!("node{}", rank / 8),
                coordinates: mesh.coordinates(rank),
                ..ProcessDescription::default()
            };
            assert!(fleet.describe(identity(rank), description));
        }
        Self { fleet, ranks, tick: 0 }
    }

    /// Returns the present time by the broker's clock.
    fn now_ns(&self) -> u64 {
        START_NS + self.tick * 100_000_000
    }

    /// Lets a tenth of a second pass; `extra` are the bytes that a rank has allocated in addition,
    /// or `None` if it sends nothing.
    fn tick(&mut self, extra: impl Fn(u32, u64) -> Option<u64>) {
        for rank in 0..self.ranks {
            let Some(extra) = extra(rank, self.tick) else { continue };
            let phase = (self.tick + u64::from(rank) * 7) % 10;
            let stage = self.fleet.processes[&identity(rank)].stage().unwrap_or(0);
            let allocated = (4000 + 300 * phase + 2000 * u64::from(stage)) * MIB + extra;
            let device = DeviceSummary { allocated, reserved: 12_000 * MIB, ..DeviceSummary::default() };
            let summary = Summary {
                number: self.tick,
                time_unix_ns: self.now_ns(),
                step: Some(self.tick / 10),
                devices: vec![device],
                ..Summary::default()
            };
            self.fleet.add(&identity(rank), identity(rank), summary, self.now_ns());
        }
        self.fleet.tick(self.now_ns());
        self.tick += 1;
    }

    /// Returns the marked ranks, each with the metric in which it differs most.
    fn outliers(&self) -> Vec<(u32, MarkedMetric)> {
        let view = self.fleet.view(self.now_ns());
        let named = |row: &&RankRow| Some((row.rank?, row.outlier?.metric));
        view.outliers().iter().filter_map(named).collect()
    }
}

/// Returns the identity of a rank's process.
fn identity(rank: u32) -> ProcessIdentity {
    ProcessIdentity(format!("{rank:032x}"))
}

#[test]
fn only_the_planted_outlier_is_marked_within_a_second() {
    for planted in 0..20 {
        let mut run = Run::new(64, "");
        for _ in 0..50 {
            run.tick(|_, _| Some(0));
        }
        assert_eq!(run.outliers(), [], "ranks at different points of a step are alike");
        let mut ticks = 0;
        while run.outliers().is_empty() {
            run.tick(|rank, _| Some(if rank == planted * 3 { 3000 * MIB } else { 0 }));
            ticks += 1;
            assert!(ticks <= 10, "rank {planted} is not marked within a second");
        }
        assert_eq!(run.outliers(), [(planted * 3, MarkedMetric::Allocated)]);
    }
}

#[test]
fn pipeline_stages_are_compared_within_themselves() {
    let mut run = Run::new(64, "pp=4,dp=2,tp=8");
    for _ in 0..50 {
        run.tick(|_, _| Some(0));
    }
    assert_eq!(run.outliers(), []);
    let stages = run.fleet.view(run.now_ns()).stages;
    assert_eq!(stages.iter().map(|stage| stage.ranks).collect::<Vec<_>>(), [16; 4]);
    let imbalance: Vec<f64> = stages.iter().map(|stage| (stage.imbalance * 100.0).round()).collect();
    assert_eq!(imbalance, [69.0, 90.0, 110.0, 131.0]);
}

#[test]
fn rank_that_has_just_started_is_not_marked_for_peaks_that_it_has_yet_to_reach() {
    for late in 0..10 {
        let mut run = Run::new(16, "");
        for _ in 0..200 {
            run.tick(|rank, tick| (rank != late || tick >= 100).then_some(0));
            assert_eq!(run.outliers(), [], "tick {}", run.tick);
        }
    }
}

#[test]
fn rank_that_grows_or_is_silent_is_marked() {
    let mut run = Run::new(16, "");
    for _ in 0..200 {
        run.tick(|rank, tick| Some(if rank == 3 { tick * 2 * MIB } else { 0 }));
    }
    assert_eq!(run.outliers(), [(3, MarkedMetric::Growth)]);
    for _ in 0..45 {
        run.tick(|rank, _| (rank != 5).then_some(0));
    }
    let outliers = run.outliers();
    assert!(outliers.iter().any(|(rank, _)| *rank == 5), "{outliers:?}");
    let view = run.fleet.view(run.now_ns());
    let row = view.ranks.iter().find(|row| row.rank == Some(5)).expect("it is shown");
    assert_eq!(row.lag_ns, 4_600_000_000);
}

#[test]
fn missing_and_repeated_summaries_are_counted() {
    let mut fleet = Fleet::new();
    let summary = |number| {
        let device = DeviceSummary { allocated: number, ..DeviceSummary::default() };
        Summary { number, devices: vec![device], ..Summary::default() }
    };
    // The description may arrive late.
    for number in [5, 6] {
        fleet.add(&identity(0), identity(0), summary(number), START_NS);
    }
    assert_eq!(fleet.view(START_NS).ranks, []);
    fleet.describe(identity(0), ProcessDescription::default());
    for number in [6, 4, 9] {
        fleet.add(&identity(0), identity(0), summary(number), START_NS);
    }
    let counts = |fleet: &Fleet| {
        let row = &fleet.view(START_NS).ranks[0];
        (row.summaries, row.lost_summaries, row.allocated, fleet.refused())
    };
    assert_eq!(counts(&fleet), (3, 2, 9, 0));
    // A summary that a newer one overtook is not missing, and does not replace newer values.
    for number in [8, 8, 4] {
        fleet.add(&identity(0), identity(0), summary(number), START_NS);
    }
    assert_eq!(counts(&fleet), (4, 1, 9, 0));
}

#[test]
fn process_can_send_summaries_of_its_machine_only() {
    let mut fleet = Fleet::new();
    for (rank, host) in [(0, "a"), (1, "a"), (2, "b")] {
        let description = ProcessDescription { host: host.to_owned(), ..ProcessDescription::default() };
        fleet.describe(identity(rank), description);
    }
    for rank in 0..3 {
        fleet.add(&identity(0), identity(rank), Summary::default(), START_NS);
    }
    assert_eq!((fleet.view(START_NS).ranks.len(), fleet.refused()), (2, 1));
    for number in 0..2 * MAX_EARLY as u64 {
        fleet.add(&identity(9), identity(9), Summary { number, ..Summary::default() }, START_NS);
    }
    assert_eq!((fleet.early.len(), fleet.refused()), (MAX_EARLY, MAX_EARLY as u64 + 1));
}

#[test]
fn memory_of_early_summaries_is_limited() {
    let mut fleet = Fleet::new();
    let mark = "m".repeat(1 << 20);
    for number in 0..100 {
        fleet.add(&identity(9), identity(9), Summary { number, mark: mark.clone(), ..Summary::default() }, START_NS);
    }
    assert!(fleet.early_bytes <= MAX_EARLY_BYTES && fleet.early.len() < 64, "{} bytes", fleet.early_bytes);
    assert_eq!(fleet.early.len() as u64 + fleet.refused(), 100);
    fleet.describe(identity(9), ProcessDescription::default());
    assert_eq!((fleet.early_bytes, fleet.view(START_NS).ranks[0].summaries), (0, 100 - fleet.refused()));
}

#[test]
fn number_of_processes_is_limited() {
    let mut fleet = Fleet::new();
    let added = (0..MAX_PROCESSES as u32 + 5).filter(|&rank| fleet.describe(identity(rank), Default::default()));
    assert_eq!(added.count(), MAX_PROCESSES);
    assert!(fleet.describe(identity(3), Default::default()), "known processes can change");
    assert_eq!((fleet.len(), fleet.is_empty()), (MAX_PROCESSES, false));
    assert_eq!(fleet.view(START_NS).ranks, [], "they have sent nothing");
}

#[test]
fn processes_of_a_machine_share_its_clock() {
    let mut fleet = Fleet::new();
    for (rank, host) in [(0, "a"), (1, "a"), (2, "b")] {
        let description =
            ProcessDescription { rank: Some(rank), host: host.to_owned(), ..ProcessDescription::default() };
        fleet.describe(identity(rank), description);
    }
    // The clock of machine a is a second behind; a message takes 10 ms each way.
    let ms = 1_000_000;
    let sent_ns = START_NS - 1000 * ms;
    for number in 0..2 {
        let acknowledged = (number == 1).then_some(Acknowledged { number: 0, time_unix_ns: sent_ns + 20 * ms });
        let summary = Summary { number, time_unix_ns: sent_ns, acknowledged, ..Summary::default() };
        fleet.add(&identity(0), identity(0), summary, START_NS + 10 * ms);
    }
    for rank in [1, 2] {
        let sender = identity(if rank == 1 { 0 } else { 2 });
        let summary = Summary { time_unix_ns: sent_ns, ..Summary::default() };
        fleet.add(&sender, identity(rank), summary, START_NS + 10 * ms);
    }
    let clocks = |now_ns| fleet.view(now_ns).ranks.iter().map(|row| row.clock).collect::<Vec<_>>();
    let of_a = Some(OffsetEstimate { offset_ns: 1000 * ms as i64, error_ns: 10 * ms });
    assert_eq!(clocks(START_NS + 20 * ms), [of_a, of_a, None]);
    assert_eq!(clocks(START_NS + 2 * MAX_CLOCK_AGE_NS), [None; 3]);
}

#[test]
fn restarted_rank_has_one_row() {
    let mut run = Run::new(16, "");
    for _ in 0..20 {
        run.tick(|_, _| Some(0));
    }
    // Rank 3 is killed, and its process starts again.
    let restarted = ProcessIdentity("f".repeat(32));
    let description = run.fleet.processes[&identity(3)].description.clone();
    assert!(run.fleet.describe(restarted.clone(), description));
    let rows = |run: &Run| -> Vec<ProcessIdentity> {
        let view = run.fleet.view(run.now_ns());
        view.ranks.iter().filter(|row| row.rank == Some(3)).map(|row| row.identity.clone()).collect()
    };
    assert_eq!(rows(&run), [identity(3)]);
    for number in 0..300 {
        let allocated = (4000 + 300 * ((run.tick + 21) % 10)) * MIB;
        let device = DeviceSummary { allocated, reserved: 12_000 * MIB, ..DeviceSummary::default() };
        let step = Some(run.tick / 10);
        let summary = Summary { number, step, devices: vec![device], ..Summary::default() };
        run.fleet.add(&restarted, restarted.clone(), summary, run.now_ns());
        run.tick(|rank, _| (rank != 3).then_some(0));
    }
    assert_eq!(rows(&run), std::slice::from_ref(&restarted));
    assert_eq!(run.fleet.view(run.now_ns()).outliers(), Vec::<&RankRow>::new(), "the killed process is not compared");
    // The earlier process was only cut off, and sends again.
    let summary = Summary { number: 900, ..Summary::default() };
    run.fleet.add(&identity(3), identity(3), summary, run.now_ns());
    assert_eq!(rows(&run), [identity(3), restarted]);
}

#[test]
fn ended_processes_make_room_for_others() {
    let mut fleet = Fleet::new();
    let ended = ProcessDescription { has_ended: true, ..ProcessDescription::default() };
    for rank in 0..MAX_PROCESSES as u32 {
        assert!(fleet.describe(identity(rank), if rank < 2 { ended.clone() } else { ProcessDescription::default() }));
    }
    assert!(fleet.describe(identity(MAX_PROCESSES as u32), ProcessDescription::default()));
    assert_eq!(fleet.len(), MAX_PROCESSES - 1);
}
