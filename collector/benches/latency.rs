//! Time of an allocation without viewers, with one viewer, and with a hundred viewers that never
//! read. Each round measures the median, the 99th percentile and the maximum; the table shows the
//! median over the rounds, and the ratio to the case without viewers in the same round.
//!
//! `cargo bench -p vramscope-collector --bench latency`. Without `--bench` every case runs briefly,
//! as a test. The viewers are in another process, so that their work is not measured: this
//! executable, started with `--viewers URL`.
//!
//! The paced program makes 130,000 events per second in bursts, a millisecond apart, like a busy
//! training step. The tight program only allocates and frees, so it also waits for the recorder.

#![allow(missing_docs)]

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, io, thread};

use quanta::Clock;
use tokio::net::TcpSocket;
use tungstenite::WebSocket;
use vramscope_collector::{HostDevice, HostPool, Monitor, Overflow, StreamId};

/// Events per second of the paced program.
const RATE: u64 = 130_000;
/// Events of a block's lifetime: allocated, free requested, free completed.
const EVENTS_PER_BLOCK: u64 = 3;
/// Interval between bursts of the paced program.
const BURST_INTERVAL: Duration = Duration::from_millis(1);
/// Blocks that are live at a time.
const LIVE: usize = 512;
const SIZES: [u64; 7] = [256, 4 << 10, 64 << 10, 512 << 10, 2 << 20, 8 << 20, 20_000_000];
/// Receive buffer of a viewer that never reads; small, so that data soon waits on the sender's
/// side.
const STALLED_BUFFER_BYTES: u32 = 4 << 10;
/// Maximum accepted ratio of the median time with viewers to the median time without.
const MAX_RATIO: f64 = 1.05;

/// For each case: name, number of viewers that read, and number of viewers that never read.
const CASES: [(&str, usize, usize); 4] =
    [("none", 0, 0), ("1 viewer", 1, 0), ("100 that never read", 0, 100), ("1 viewer, 100 that never read", 1, 100)];

/// Number of rounds, and durations of each round's parts.
#[derive(Clone, Copy)]
struct Plan {
    rounds: usize,
    paced: Duration,
    tight: Duration,
    /// Pause in which new viewers receive their first data.
    settle: Duration,
    /// Time that the program runs before the first viewer, so that the initial data exceeds the
    /// buffers of viewers that never read.
    warm_up: Duration,
}

fn main() {
    let arguments: Vec<String> = env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--viewers") {
        return run_viewers(&arguments[at + 1]);
    }
    let is_judged = arguments.iter().any(|argument| argument == "--bench");
    let ms = Duration::from_millis;
    let plan = if is_judged {
        Plan { rounds: 40, paced: ms(500), tight: ms(100), settle: ms(300), warm_up: ms(3000) }
    } else {
        Plan { rounds: 1, paced: ms(20), tight: ms(2), settle: ms(20), warm_up: ms(20) }
    };
    measure(plan, is_judged);
}

/// The program that is measured.
struct Program {
    pool: HostPool,
    clock: Clock,
    live: VecDeque<u64>,
    blocks: usize,
}

impl Program {
    /// Allocates one block and frees the oldest. Returns the nanoseconds of the allocation.
    fn replace_block(&mut self) -> u32 {
        let bytes = SIZES[self.blocks % SIZES.len()];
        self.blocks += 1;
        let start = self.clock.raw();
        let address = self.pool.caching_allocator_alloc(bytes, StreamId(0));
        let end = self.clock.raw();
        self.live.push_back(address.expect("the device is large").expect("the request is for more than 0 bytes"));
        if self.live.len() > LIVE
            && let Some(oldest) = self.live.pop_front()
        {
            // SAFETY: The program never accesses the memory.
            unsafe { self.pool.caching_allocator_delete(oldest) }.expect("the block is live");
        }
        u32::try_from(self.clock.delta_as_nanos(start, end)).unwrap_or(u32::MAX)
    }

    fn paced(&mut self, time: Duration) -> Vec<u32> {
        let (start, mut times) = (Instant::now(), Vec::new());
        while start.elapsed() < time {
            let due = start.elapsed().as_nanos() as u64 * RATE / EVENTS_PER_BLOCK / 1_000_000_000;
            while (times.len() as u64) < due {
                times.push(self.replace_block());
            }
            thread::sleep(BURST_INTERVAL);
        }
        times
    }

    fn tight(&mut self, time: Duration) -> Vec<u32> {
        let (start, mut times) = (Instant::now(), Vec::new());
        while start.elapsed() < time {
            times.extend((0..64).map(|_| self.replace_block()));
        }
        times
    }
}

/// A round's median, 99th percentile and maximum, in nanoseconds.
type Percentiles = [f64; 3];

fn percentiles(mut times: Vec<u32>) -> Percentiles {
    times.sort_unstable();
    let step = times.windows(2).map(|pair| pair[1] - pair[0]).filter(|&step| step > 0).min().unwrap_or(1);
    // The processor's counter has a resolution of a tenth of the times measured, so many are equal.
    // A percentile is interpolated among the equal times by their number before and after it.
    let at = |part: f64| {
        let index = ((times.len() - 1) as f64 * part) as usize;
        let time = times[index];
        let (first, end) =
            (times.partition_point(|&other| other < time), times.partition_point(|&other| other <= time));
        f64::from(time) + f64::from(step) * ((index - first) as f64 / (end - first) as f64 - 0.5)
    };
    [at(0.5), at(0.99), at(1.0)]
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn resident_mib() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) / 1024.0
}

fn measure(plan: Plan, is_judged: bool) {
    let builder = Monitor::builder(HostDevice::new(u64::MAX)).program("latency").overflow(Overflow::Wait);
    let builder = builder.listen(SocketAddr::from(([127, 0, 0, 1], 0)));
    let (monitor, pool) = builder.start().expect("the server starts");
    let mut program = Program { pool, clock: Clock::new(), live: VecDeque::new(), blocks: 0 };
    let mut viewers = Viewers::start(&monitor.url().expect("the page is served"));

    program.tight(plan.warm_up);
    let resident_before = resident_mib();
    let mut resident_max = resident_before;
    let mut rounds = CASES.map(|_| [Vec::new(), Vec::new()]);
    for round in 0..plan.rounds {
        // The order rotates, so that each case is first, and follows each other case, equally
        // often.
        for at in 0..CASES.len() {
            let case = (at + round) % CASES.len();
            let (_, reading, stalled) = CASES[case];
            viewers.set(reading, stalled);
            program.paced(plan.settle);
            rounds[case][0].push(percentiles(program.paced(plan.paced)));
            rounds[case][1].push(percentiles(program.tight(plan.tight)));
            resident_max = resident_max.max(resident_mib());
        }
    }
    viewers.set(0, 0);
    println!(
        "{:<8} {:<30} {:>9} {:>9} {:>11} {:>8} {:>8}",
        "program", "viewers", "p50 ns", "p99 ns", "max ns", "p50/none", "p99/none"
    );
    for (kind, name) in ["paced", "tight"].into_iter().enumerate() {
        for (case, (viewers, ..)) in CASES.iter().enumerate() {
            let (these, without) = (&rounds[case][kind], &rounds[0][kind]);
            let figure = |at: usize| median(these.iter().map(|round| round[at]).collect());
            let ratio = |at: usize| median(these.iter().zip(without).map(|(this, none)| this[at] / none[at]).collect());
            let verdict = if !is_judged || kind > 0 || ratio(0) <= MAX_RATIO { "" } else { "  MISSED" };
            println!(
                "{name:<8} {viewers:<30} {:>9.1} {:>9.0} {:>11.0} {:>8.3} {:>8.3}{verdict}",
                figure(0),
                figure(1),
                figure(2),
                ratio(0),
                ratio(1)
            );
        }
    }
    println!("memory: {resident_before:.0} MiB before the first viewer, at most {resident_max:.0} MiB with viewers");
    let summary = monitor.stop();
    println!("{} events; the program waited {} times, {:?}", summary.events, summary.waits, summary.waited);
}

/// The process that runs the viewers.
struct Viewers {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Viewers {
    fn start(page: &str) -> Self {
        let mut command = Command::new(env::current_exe().expect("the executable has a path"));
        command.args(["--viewers", page]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the process starts");
        let (stdin, stdout) =
            (child.stdin.take().expect("stdin is piped"), child.stdout.take().expect("stdout is piped"));
        Self { child, stdin, stdout: BufReader::new(stdout) }
    }

    /// Sets the number of viewers, and returns when they are connected.
    fn set(&mut self, reading: usize, stalled: usize) {
        writeln!(self.stdin, "{reading} {stalled}").expect("the process reads stdin");
        let mut reply = String::new();
        self.stdout.read_line(&mut reply).expect("the process replies");
        assert_eq!(reply, "done\n", "the viewer process has ended");
    }
}

impl Drop for Viewers {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The viewer process: keeps as many viewers connected as each line of stdin says.
fn run_viewers(page: &str) {
    let address =
        page.split("//").nth(1).and_then(|rest| rest.split('/').next()).expect("the URL has an address").to_owned();
    // The server sends the whole history at once, which exceeds the buffers of a viewer that never
    // reads.
    let url = format!("ws://{address}/ws?history=recent");
    let connect = |buffer_bytes: Option<u32>| {
        let stream = stream(&address, buffer_bytes).expect("the server listens");
        tungstenite::client(&url, stream).unwrap_or_else(|error| panic!("{error}")).0
    };
    let (mut stalled_viewers, mut readers) = (Vec::new(), Vec::new());
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let (reading, stalled) = line.split_once(' ').expect("a line has two numbers");
        let count = |text: &str| text.parse::<usize>().expect("a line has two numbers");
        stalled_viewers.truncate(count(stalled));
        while stalled_viewers.len() < count(stalled) {
            stalled_viewers.push(connect(Some(STALLED_BUFFER_BYTES)));
        }
        readers.truncate(count(reading));
        while readers.len() < count(reading) {
            readers.push(Reader::start(connect(None)));
        }
        println!("done");
    }
}

fn stream(address: &str, buffer_bytes: Option<u32>) -> io::Result<TcpStream> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let address = address.parse().map_err(io::Error::other)?;
    let stream = runtime.block_on(async {
        let socket = TcpSocket::new_v4()?;
        if let Some(bytes) = buffer_bytes {
            socket.set_recv_buffer_size(bytes)?;
        }
        socket.connect(address).await?.into_std()
    })?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// A viewer that reads and discards the stream.
struct Reader(Arc<AtomicBool>);

impl Reader {
    fn start(mut socket: WebSocket<TcpStream>) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let is_closed = Arc::clone(&is_over);
        thread::spawn(move || while !is_closed.load(Ordering::Relaxed) && socket.read().is_ok() {});
        Self(is_over)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
