//! What recording costs a training step on a GPU: recorded with sites, to a file and to a viewer, beside not recorded, step by step in turns.
//!
//! `cargo bench -p vramscope-collector --bench step -- --bench`, or the program that it builds, on a machine with a GPU, cuBLAS and NVRTC; elsewhere it
//! says that it did not run. Two nets of the same shape are trained in one process, one in a pool that is recorded and one in a pool that is
//! not; a turn is a step of each, in one order and then in the other. What counts is the median of the turns' ratios; its 95 % interval is that
//! of the order statistics of a median.
//!
//! A framework spends time on each operation before the GPU is given it. Here the processor spins for that long, so that a step makes the
//! events a second that PyTorch's makes, 130,000; a second measurement is without, where the program does nothing but to allocate and to launch.

#![allow(missing_docs)]

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, io};

use cudarc::driver::CudaContext;
use vramscope_collector::{CudaDevice, CudaPool, Monitor, Settings};
use vramscope_trace::NullSink;

mod net;

use net::Net;

/// Events a second of the paced program, as PyTorch's step makes them.
const RATE: f64 = 130_000.0;

struct Plan {
    turns: usize,
    warm_up: usize,
}

fn main() {
    let arguments: Vec<String> = env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--viewer") {
        return view(&arguments[at + 1]);
    }
    let plan = if arguments.iter().any(|argument| argument == "--bench") {
        Plan { turns: 2001, warm_up: 200 }
    } else {
        Plan { turns: 3, warm_up: 1 }
    };
    match CudaDevice::new(0) {
        Ok(_) if net::has_libraries() => measure(&plan),
        Ok(_) => println!("SKIPPED: no cuBLAS or NVRTC here"),
        Err(error) => println!("SKIPPED: {error}"),
    }
}

fn measure(plan: &Plan) {
    let context = CudaContext::new(0).expect("there is a GPU");
    let device = || CudaDevice::from_context(&context).expect("there is a GPU");
    let folder = tempfile::tempdir().expect("a folder");
    let builder = Monitor::builder(device()).program("step").record(folder.path().join("step.vram"));
    let builder = builder.listen(SocketAddr::from(([127, 0, 0, 1], 0)));
    let (monitor, recorded) = builder.start().expect("the monitor starts");
    let mut viewer = Viewer::start(&monitor.url().expect("the page is served"));
    let plain = CudaPool::new(device(), Settings::default(), NullSink, || 0);
    let mut nets = [Net::new(&context, &recorded), Net::new(&context, &plain)];
    (0..plan.warm_up).for_each(|_| nets.iter_mut().for_each(|net| net.step(Duration::ZERO)));
    let events = recorded_events(&recorded, &mut nets[0]);

    // How long an operation of the framework takes, so that a step takes as long as its events should.
    let bare = median((0..plan.warm_up).map(|_| timed(&mut nets[1], Duration::ZERO)).collect());
    let spare = (events / RATE - bare).max(0.0) / nets[1].operations() as f64;
    for (name, spin) in [("as a framework paces it", Duration::from_secs_f64(spare)), ("unpaced", Duration::ZERO)] {
        compare(plan, name, &mut nets, spin, events);
    }
    println!("losses: recorded {:.6}, not recorded {:.6}", nets[0].loss(), nets[1].loss());
    let summary = monitor.stop();
    let seen = viewer.stop();
    println!(
        "{} events in a file of {} bytes, {} lost, {} waits; the viewer took {seen} bytes",
        summary.events, summary.bytes, summary.lost_events, summary.waits
    );
}

/// How many events a step makes.
fn recorded_events(pool: &CudaPool, net: &mut Net) -> f64 {
    let allocated = |pool: &CudaPool| pool.stats().allocation.all.allocated;
    let before = allocated(pool);
    net.step(Duration::ZERO);
    // A block is asked for, given back and free.
    3.0 * (allocated(pool) - before) as f64
}

fn timed(net: &mut Net, spin: Duration) -> f64 {
    let begin = Instant::now();
    net.step(spin);
    begin.elapsed().as_secs_f64()
}

fn compare(plan: &Plan, name: &str, [recorded, plain]: &mut [Net; 2], spin: Duration, events: f64) {
    let (mut ratios, mut times) = (Vec::new(), [Vec::new(), Vec::new()]);
    for turn in 0..plan.turns {
        let (first, second) = if turn % 2 == 0 {
            let first = timed(recorded, spin);
            (first, timed(plain, spin))
        } else {
            let second = timed(plain, spin);
            (timed(recorded, spin), second)
        };
        ratios.push(first / second);
        times[0].push(first);
        times[1].push(second);
    }
    ratios.sort_by(f64::total_cmp);
    let [of_recorded, of_plain] = times.map(median);
    let count = ratios.len() as f64;
    let at = |place: f64| ratios[(place.max(0.0) as usize).min(ratios.len() - 1)];
    let half_width = 0.98 * count.sqrt();
    println!(
        "{name}: recorded {:.4} ms a step, not recorded {:.4} ms; ratio {:.4} (95 %: {:.4} to {:.4}) in {} turns; {:.0} events a second",
        of_recorded * 1e3,
        of_plain * 1e3,
        at(count / 2.0),
        at(count / 2.0 - half_width),
        at(count / 2.0 + half_width),
        ratios.len(),
        events / of_recorded,
    );
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A viewer in a process of its own, which is this program again.
struct Viewer {
    process: Child,
}

impl Viewer {
    fn start(url: &str) -> Self {
        let program = env::current_exe().expect("it runs");
        let process = Command::new(program).args(["--viewer", url]).stdout(Stdio::piped()).spawn();
        Self { process: process.expect("it can be started") }
    }

    /// How many bytes it was given.
    fn stop(&mut self) -> u64 {
        let lines = BufReader::new(self.process.stdout.take().expect("it is piped")).lines();
        let last = lines.map_while(io::Result::ok).last();
        self.process.wait().expect("it ends");
        last.and_then(|line| line.parse().ok()).unwrap_or(0)
    }
}

/// Takes what comes until the recording ends.
fn view(page: &str) {
    let address = page.split("//").nth(1).and_then(|rest| rest.split('/').next()).expect("an address");
    let stream = std::net::TcpStream::connect(address).expect("the server listens");
    let (mut socket, _) = tungstenite::client(format!("ws://{address}/ws"), stream).expect("it is served");
    let mut bytes = 0;
    while let Ok(message) = socket.read() {
        bytes += message.len();
    }
    println!("{bytes}");
}
