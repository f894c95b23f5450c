//! Cost of recording a training step on a GPU: a step recorded with sites, to a file and a viewer,
//! against a step that is not recorded.
//!
//! `cargo bench -p vramscope-collector --bench step -- --bench`, or the executable that it builds,
//! on a machine with a GPU, cuBLAS and NVRTC; elsewhere it prints `SKIPPED`. One process trains two
//! nets of equal shape, one in a recorded pool and one in an unrecorded pool. A turn is a step of
//! each, in alternating order. The result is the median of the turns' ratios; its 95 % interval is
//! that of the order statistics of a median.
//!
//! A framework spends processor time on each operation before it launches it. The paced measurement
//! spins for that long, so that a step makes 130,000 events per second, as PyTorch's does. The
//! unpaced measurement does not spin: the program only allocates and launches.

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

/// Events per second of the paced program, as in a PyTorch training step.
const RATE: f64 = 130_000.0;

/// Number of turns, and of unmeasured turns before them.
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
        Ok(_) => println!("SKIPPED: cuBLAS or NVRTC is not installed"),
        Err(error) => println!("SKIPPED: {error}"),
    }
}

fn measure(plan: &Plan) {
    let context = CudaContext::new(0).expect("the GPU can be opened");
    let device = || CudaDevice::from_context(&context).expect("the GPU can be opened");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let builder = Monitor::builder(device()).program("step").record(folder.path().join("step.vram"));
    let builder = builder.listen(SocketAddr::from(([127, 0, 0, 1], 0)));
    let (monitor, recorded) = builder.start().expect("the monitor starts");
    let mut viewer = Viewer::start(&monitor.url().expect("the page is served"));
    let plain = CudaPool::new(device(), Settings::default(), NullSink, || 0);
    let mut nets = [Net::new(&context, &recorded), Net::new(&context, &plain)];
    (0..plan.warm_up).for_each(|_| nets.iter_mut().for_each(|net| net.step(Duration::ZERO)));
    let events = recorded_events(&recorded, &mut nets[0]);

    // Time to spin per operation, so that the step makes `RATE` events per second.
    let bare = median((0..plan.warm_up).map(|_| timed(&mut nets[1], Duration::ZERO)).collect());
    let spare = (events / RATE - bare).max(0.0) / nets[1].operations() as f64;
    for (name, spin) in [("paced like a framework", Duration::from_secs_f64(spare)), ("unpaced", Duration::ZERO)] {
        compare(plan, name, &mut nets, spin, events);
    }
    println!("losses: recorded {:.6}, not recorded {:.6}", nets[0].loss(), nets[1].loss());
    let summary = monitor.stop();
    let received = viewer.stop();
    println!(
        "{} events in a file of {} bytes, {} lost, {} waits; the viewer received {received} bytes",
        summary.events, summary.bytes, summary.lost_events, summary.waits
    );
}

/// Runs a step and returns its number of events.
fn recorded_events(pool: &CudaPool, net: &mut Net) -> f64 {
    let allocated = |pool: &CudaPool| pool.stats().allocation.all.allocated;
    let before = allocated(pool);
    net.step(Duration::ZERO);
    // A block makes three events: allocated, free requested, free completed.
    3.0 * (allocated(pool) - before) as f64
}

fn timed(net: &mut Net, spin: Duration) -> f64 {
    let start = Instant::now();
    net.step(spin);
    start.elapsed().as_secs_f64()
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
    let at = |rank: f64| ratios[(rank.max(0.0) as usize).min(ratios.len() - 1)];
    let half_width = 0.98 * count.sqrt();
    println!(
        "{name}: recorded {:.4} ms per step, not recorded {:.4} ms; ratio {:.4} (95 %: {:.4} to {:.4}), {} turns; \
         {:.0} events/s",
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

/// A viewer in another process: this executable, started with `--viewer URL`.
struct Viewer {
    process: Child,
}

impl Viewer {
    fn start(url: &str) -> Self {
        let program = env::current_exe().expect("the executable has a path");
        let process = Command::new(program).args(["--viewer", url]).stdout(Stdio::piped()).spawn();
        Self { process: process.expect("the process starts") }
    }

    /// Waits for the end of the viewer and returns the number of bytes it received.
    fn stop(&mut self) -> u64 {
        let lines = BufReader::new(self.process.stdout.take().expect("stdout is piped")).lines();
        let last = lines.map_while(io::Result::ok).last();
        self.process.wait().expect("the process can be waited for");
        last.and_then(|line| line.parse().ok()).unwrap_or(0)
    }
}

/// The viewer process: reads until the recording ends, then prints the number of bytes.
fn view(page: &str) {
    let address = page.split("//").nth(1).and_then(|rest| rest.split('/').next()).expect("the URL has an address");
    let stream = std::net::TcpStream::connect(address).expect("the server listens");
    let (mut socket, _) =
        tungstenite::client(format!("ws://{address}/ws"), stream).expect("the server accepts the WebSocket");
    let mut bytes = 0;
    while let Ok(message) = socket.read() {
        bytes += message.len();
    }
    println!("{bytes}");
}
