//! Measures live recordings at full length:
//! `cargo run --release -p vramscope-tests --bin live -- BENCHMARK [KEY=NUMBER…]`.
//!
//! The tests run each benchmark briefly.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use vramscope_tests::live::chaos::{self, chaos};
use vramscope_tests::live::demo::demo;
use vramscope_tests::live::page;
use vramscope_tests::live::push::{self, push};
use vramscope_tests::live::slow::slow;
use vramscope_tests::live::soak::{self, soak};
use vramscope_tests::live::throughput::{self, throughput};
use vramscope_tests::{Browser, Numbers};

const USAGE: &str = "\
Usage: live BENCHMARK [KEY=NUMBER…]

  throughput rate=1000000 seconds=60     events to a native viewer and a file; none may be lost
  chaos incidents=500 viewers=12 recorders=2 rate=500000 stall=25 pause_ms=300 seed=1
                                         viewers that connect, leave, stall and are cut off
  slow rate=1000000 seconds=20           a viewer that stalls until the server skips ahead
  push programs=4 rate=50000 incidents=500 seed=1
                                         programs that push to a server and are cut off
  soak seconds=3600 rate=100000 viewers=6 keep=67108864 seed=1
                                         memory, files and threads over time; writes soak.csv
  keys rate=300000 seconds=60            the page in a browser while keys are pressed
  screen rate=100000 seconds=60          latency from an event to the screen
  moments rate=100000 count=100 seed=1   page, native viewer and pool at random moments
  demo seconds=30                        start and steps of the default demo, with a page and without";

fn run(benchmark: &str, numbers: &mut Numbers) -> Option<Result<String, String>> {
    Some(match benchmark {
        "throughput" => {
            let rate = numbers.take("rate", 1_000_000);
            let time = Duration::from_secs(numbers.take("seconds", 60));
            throughput(throughput::Plan { rate, time }).map(|figures| figures.to_string())
        }
        "chaos" => {
            let (seed, incidents) = (numbers.take("seed", 1), numbers.take("incidents", 500));
            let (viewers, rate) = (numbers.take("viewers", 12) as usize, numbers.take("rate", 500_000));
            let longest_stall = Duration::from_secs(numbers.take("stall", 25));
            let recorders = numbers.take("recorders", 2) as usize;
            let longest_pause = Duration::from_millis(numbers.take("pause_ms", 300));
            chaos(chaos::Plan { seed, incidents, viewers, recorders, rate, longest_stall, longest_pause })
                .map(|figures| figures.to_string())
        }
        "slow" => {
            let rate = numbers.take("rate", 1_000_000);
            slow(rate, Duration::from_secs(numbers.take("seconds", 20)))
        }
        "push" => {
            let (seed, incidents) = (numbers.take("seed", 1), numbers.take("incidents", 500));
            let (programs, rate) = (numbers.take("programs", 4), numbers.take("rate", 50_000));
            push(push::Plan { seed, programs, rate, incidents }).map(|figures| figures.to_string())
        }
        "soak" => {
            let plan = soak::Plan {
                seed: numbers.take("seed", 1),
                time: Duration::from_secs(numbers.take("seconds", 3600)),
                rate: numbers.take("rate", 100_000),
                viewers: numbers.take("viewers", 6) as usize,
                keep_bytes: numbers.take("keep", 64 << 20),
                table: Some("soak.csv".into()),
            };
            soak(&plan).and_then(|soak| {
                let figures = soak.to_string();
                if soak.is_flat() { Ok(figures) } else { Err(figures) }
            })
        }
        "keys" | "screen" => {
            let default = if benchmark == "keys" { 300_000 } else { 100_000 };
            let rate = numbers.take("rate", default);
            let plan = page::Plan { rate, time: Duration::from_secs(numbers.take("seconds", 60)) };
            page::follow(&Browser::start(page::window()), plan, benchmark == "keys").map(|figures| figures.to_string())
        }
        "moments" => {
            let (rate, count) = (numbers.take("rate", 100_000), numbers.take("count", 100));
            page::moments(&Browser::start(page::window()), rate, count, numbers.take("seed", 1))
        }
        "demo" => {
            let time = Duration::from_secs(numbers.take("seconds", 30));
            demo(&Browser::start(page::window()), time).map(|figures| figures.to_string())
        }
        _ => return None,
    })
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let parsed = arguments.split_first().and_then(|(benchmark, rest)| Some((benchmark, Numbers::parse(rest)?)));
    let answer =
        parsed.and_then(|(benchmark, mut numbers)| run(benchmark, &mut numbers).filter(|_| numbers.is_empty()));
    match answer {
        Some(Ok(figures)) => {
            println!("{figures}");
            ExitCode::SUCCESS
        }
        Some(Err(error)) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
        None => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}
