//! Simulates the ranks of a training run at a broker, and measures what a server shows:
//! `cargo xtask fleet ranks=1024 [KEY=NUMBER…]`; or breaks what is between them:
//! `cargo xtask fleet faults=500 [KEY=NUMBER…]`.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use vramscope_tests::Numbers;
use vramscope_tests::fleet::{FaultPlan, Figures, Plan, break_everything, measure};

const USAGE: &str = "\
Usage: fleet [KEY=NUMBER…]

  ranks=1024      simulated ranks
  batch=1         ranks whose summaries are sent in one message, as of one machine
  seconds=60      time of the measurement
  outliers=20     planted outliers, one after the other
  seed=1          decides the shifts of ranks and the outliers

  faults=500      instead: breaks ranks, network, brokers, disks and servers this often
  ranks=6         ranks that send all events";

/// What the command does.
enum Work {
    Measure(Plan),
    Break(FaultPlan),
}

fn work(arguments: &[String]) -> Option<Work> {
    if !arguments.iter().any(|argument| argument.starts_with("faults=")) {
        return plan(arguments).map(Work::Measure);
    }
    let mut numbers = Numbers::parse(arguments)?;
    let mut take = |name: &str, default: u64| u32::try_from(numbers.take(name, default)).ok();
    let (faults, ranks) = (take("faults", 500)?, take("ranks", 6).filter(|ranks| *ranks >= 2)?);
    let plan = FaultPlan { faults, ranks, seed: numbers.take("seed", 1) };
    numbers.is_empty().then_some(Work::Break(plan))
}

fn plan(arguments: &[String]) -> Option<Plan> {
    let mut numbers = Numbers::parse(arguments)?;
    let mut take = |name: &str, default: u64| numbers.take(name, default);
    let plan = Plan {
        ranks: u32::try_from(take("ranks", 1024)).ok().filter(|ranks| *ranks > 0)?,
        batch: usize::try_from(take("batch", 1)).ok().filter(|batch| *batch > 0)?,
        time: Duration::from_secs(take("seconds", 60)),
        outliers: u32::try_from(take("outliers", 20)).ok()?,
        seed: take("seed", 1),
    };
    numbers.is_empty().then_some(plan)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match work(&arguments) {
        Some(Work::Measure(plan)) => {
            let figures: Figures = measure(&plan);
            println!("{figures}");
            ExitCode::SUCCESS
        }
        Some(Work::Break(plan)) => {
            let figures = break_everything(&plan);
            println!("{figures}");
            if figures.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        None => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}
