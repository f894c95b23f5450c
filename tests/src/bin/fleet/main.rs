//! Simulates the ranks of a training run at a broker, and measures what a server shows:
//! `cargo xtask fleet ranks=1024 [KEY=NUMBER…]`. Or measures ranks that send every event
//! (`events=5000`), archives a day in an hour (`day=100`), or breaks what is between ranks and
//! server (`faults=500`).
#![forbid(unsafe_code)]

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use vramscope_collector::PUSH_VARIABLE;
use vramscope_tests::Numbers;
use vramscope_tests::fleet::{
    DayPlan, EventPlan, FaultPlan, Plan, archive_a_day, break_everything, measure, measure_events, run_rank_process,
};

const USAGE: &str = "\
Usage: fleet [KEY=NUMBER…]

  ranks=1024      simulated ranks, which send summaries
  batch=1         ranks whose summaries are sent in one message, as of one machine
  seconds=60      time of the measurement
  outliers=20     planted outliers, one after the other
  kills=5         machines that are killed after that, and whose ranks start again
  page=0          1: watch the fleet page of `vramscope serve` in headless Chromium
  seed=1          decides the shifts of ranks and the outliers

  events=5000     instead: every event of each rank, this many a second
  ranks=64        simulated ranks
  seconds=60      time of the measurement

  day=100         instead: the events of a day, this many a second, archived by `vramscope serve`
  ranks=64        simulated ranks
  seconds=3600    time in which the events are made
  moments=100     moments of the archive to open
  seed=1          decides the moments

  faults=500      instead: breaks ranks, network, brokers, disks and servers this often
  ranks=6         ranks that send all events
  seed=1          decides the order of the faults
  kinds=0         digits of the kinds of faults, 0 for all: 1 node killed, 2 all nodes killed,
                  3 node lost, 4 disk full, 5 network, 6 process killed, 7 server ended,
                  8 clock jump

  rank=0          instead: one rank's process of faults=500, which pushes all events to the address
                  in VRAMSCOPE_PUSH until standard input ends
  small=0         1: a small history, which loses events while the broker cannot be reached

VRAMSCOPE_NATS_SERVER is the path of nats-server, VRAMSCOPE_BINARY that of vramscope;
VRAMSCOPE_ARCHIVE the folder for the archive of a day, which stays.";

/// The environment variable with the folder for an archive.
const ARCHIVE_VARIABLE: &str = "VRAMSCOPE_ARCHIVE";

/// What the command does.
enum Work {
    Summaries(Plan),
    Events(EventPlan),
    Day(DayPlan),
    Faults(FaultPlan),
    /// One rank, its address, and whether its history is small.
    Rank(u32, String, bool),
}

/// Returns what the arguments ask for; `None` if they are invalid.
fn work(arguments: &[String]) -> Option<Work> {
    let has = |name: &str| arguments.iter().any(|argument| argument.starts_with(&format!("{name}=")));
    let mut numbers = Numbers::parse(arguments)?;
    let mut take = |name: &str, default: u64| numbers.take(name, default);
    let count = |number: u64, least: u32| u32::try_from(number).ok().filter(|number| *number >= least);
    let work = if has("faults") {
        let (faults, ranks) = (count(take("faults", 500), 1)?, count(take("ranks", 6), 2)?);
        let (seed, kinds, program) = (take("seed", 1), take("kinds", 0), env::current_exe().ok()?);
        Work::Faults(FaultPlan { program, faults, ranks, seed, kinds })
    } else if has("rank") {
        Work::Rank(count(take("rank", 0), 0)?, env::var(PUSH_VARIABLE).ok()?, take("small", 0) != 0)
    } else if has("events") {
        let (rate, ranks) = (take("events", 5000), count(take("ranks", 64), 1)?);
        Work::Events(EventPlan { ranks, rate, time: Duration::from_secs(take("seconds", 60)) })
    } else if has("day") {
        Work::Day(DayPlan {
            ranks: count(take("ranks", 64), 1)?,
            rate: take("day", 100),
            time: Duration::from_secs(take("seconds", 3600).max(1)),
            moments: count(take("moments", 100), 0)?,
            seed: take("seed", 1),
            folder: env::var_os(ARCHIVE_VARIABLE).map_or_else(|| env::temp_dir().join("vramscope-day"), PathBuf::from),
        })
    } else {
        Work::Summaries(Plan {
            ranks: count(take("ranks", 1024), 1)?,
            batch: count(take("batch", 1), 1)? as usize,
            time: Duration::from_secs(take("seconds", 60)),
            outliers: count(take("outliers", 20), 0)?,
            kills: count(take("kills", 5), 0)?,
            seed: take("seed", 1),
            has_page: take("page", 0) != 0,
        })
    };
    numbers.is_empty().then_some(work)
}

/// Does the work and prints what was measured. Returns true if nothing was wrong.
fn run(work: &Work) -> bool {
    match work {
        Work::Summaries(plan) => {
            let figures = measure(plan);
            println!("{figures}");
            figures.failures().is_empty()
        }
        Work::Events(plan) => {
            let figures = measure_events(plan);
            println!("{figures}");
            figures.wrong.is_empty() && figures.lost == 0
        }
        Work::Day(plan) => {
            let figures = archive_a_day(plan);
            println!("{figures}");
            figures.failures.is_empty()
        }
        Work::Faults(plan) => {
            let figures = break_everything(plan);
            println!("{figures}");
            figures.failures.is_empty()
        }
        Work::Rank(rank, url, is_small) => {
            run_rank_process(*rank, url, *is_small);
            true
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match work(&arguments) {
        Some(work) if run(&work) => ExitCode::SUCCESS,
        Some(_) => ExitCode::FAILURE,
        None => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}
