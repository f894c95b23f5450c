//! What an allocation takes while nobody watches, while one viewer does, and while a hundred are connected that never read: the median of all
//! rounds of the median, of the 99th of a hundred and of the longest, and how that compares with nobody in the same round.
//!
//! `cargo bench -p vramscope-collector --bench latency`. Without `--bench` everything is done for a moment, to show that it runs. The viewers are in
//! another process, for whatever they do is theirs; it is this program again, with `--viewers URL`.
//!
//! A paced program makes 130,000 events a second in bursts, a millisecond apart, as a busy training step does. A tight one does nothing but to
//! ask for memory and to give it back, so that it waits for the recorder, too.

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

/// Events a second of the paced program.
const RATE: u64 = 130_000;
/// Of a block's life: asked for, given back, free.
const EVENTS_A_BLOCK: u64 = 3;
const BEAT: Duration = Duration::from_millis(1);
const LIVE: usize = 512;
const SIZES: [u64; 7] = [256, 4 << 10, 64 << 10, 512 << 10, 2 << 20, 8 << 20, 20_000_000];
/// What a viewer that never reads can be sent before the program's own machine has to keep it.
const STALLED_BUFFER_BYTES: u32 = 4 << 10;
/// By how much the median may move.
const MOST: f64 = 1.05;

/// How many viewers read, and how many do not.
const CASES: [(&str, usize, usize); 4] =
    [("nobody", 0, 0), ("1 viewer", 1, 0), ("100 that never read", 0, 100), ("1 viewer, 100 that never read", 1, 100)];

#[derive(Clone, Copy)]
struct Plan {
    rounds: usize,
    paced: Duration,
    tight: Duration,
    /// For newcomers to be sent what they begin with.
    settle: Duration,
    /// So that what newcomers begin with is more than they can take.
    before: Duration,
}

fn main() {
    let arguments: Vec<String> = env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--viewers") {
        return viewers(&arguments[at + 1]);
    }
    let is_judged = arguments.iter().any(|argument| argument == "--bench");
    let ms = Duration::from_millis;
    let plan = if is_judged {
        Plan { rounds: 40, paced: ms(500), tight: ms(100), settle: ms(300), before: ms(3000) }
    } else {
        Plan { rounds: 1, paced: ms(20), tight: ms(2), settle: ms(20), before: ms(20) }
    };
    measure(plan, is_judged);
}

/// A program that is watched.
struct Program {
    pool: HostPool,
    clock: Clock,
    live: VecDeque<u64>,
    blocks: usize,
}

impl Program {
    /// One block more and one less; gives back the nanoseconds of asking.
    fn block(&mut self) -> u32 {
        let bytes = SIZES[self.blocks % SIZES.len()];
        self.blocks += 1;
        let begun = self.clock.raw();
        let address = self.pool.caching_allocator_alloc(bytes, StreamId(0));
        let ended = self.clock.raw();
        self.live.push_back(address.expect("the device is large").expect("more than 0 bytes were asked for"));
        if self.live.len() > LIVE
            && let Some(oldest) = self.live.pop_front()
        {
            // SAFETY: Nobody uses what is allocated here.
            unsafe { self.pool.caching_allocator_delete(oldest) }.expect("the block is live");
        }
        u32::try_from(self.clock.delta_as_nanos(begun, ended)).unwrap_or(u32::MAX)
    }

    fn paced(&mut self, time: Duration) -> Vec<u32> {
        let (since, mut taken) = (Instant::now(), Vec::new());
        while since.elapsed() < time {
            let due = since.elapsed().as_nanos() as u64 * RATE / EVENTS_A_BLOCK / 1_000_000_000;
            while (taken.len() as u64) < due {
                taken.push(self.block());
            }
            thread::sleep(BEAT);
        }
        taken
    }

    fn tight(&mut self, time: Duration) -> Vec<u32> {
        let (since, mut taken) = (Instant::now(), Vec::new());
        while since.elapsed() < time {
            taken.extend((0..64).map(|_| self.block()));
        }
        taken
    }
}

/// Of a round: the median, the 99th of a hundred, the longest.
type Times = [f64; 3];

fn times(mut taken: Vec<u32>) -> Times {
    taken.sort_unstable();
    let step = taken.windows(2).map(|pair| pair[1] - pair[0]).filter(|&step| step > 0).min().unwrap_or(1);
    // The processor's counter goes in steps, a tenth of what is measured. Where in a step a part of the times lies, those say that are
    // in the same one.
    let at = |part: f64| {
        let index = ((taken.len() - 1) as f64 * part) as usize;
        let time = taken[index];
        let (first, end) = (taken.partition_point(|&it| it < time), taken.partition_point(|&it| it <= time));
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
    let mut others = Viewers::start(&monitor.url().expect("it is served"));

    program.tight(plan.before);
    let resident_before = resident_mib();
    let mut resident_most = resident_before;
    let mut taken = CASES.map(|_| [Vec::new(), Vec::new()]);
    for round in 0..plan.rounds {
        // Each case comes first, and after each other, as often.
        for at in 0..CASES.len() {
            let case = (at + round) % CASES.len();
            let (_, reading, stalled) = CASES[case];
            others.set(reading, stalled);
            program.paced(plan.settle);
            taken[case][0].push(times(program.paced(plan.paced)));
            taken[case][1].push(times(program.tight(plan.tight)));
            resident_most = resident_most.max(resident_mib());
        }
    }
    others.set(0, 0);
    println!(
        "{:<8} {:<30} {:>9} {:>9} {:>11} {:>8} {:>8}",
        "program", "watched by", "p50 ns", "p99 ns", "longest ns", "of p50", "of p99"
    );
    for (kind, name) in ["paced", "tight"].into_iter().enumerate() {
        for (case, (watched_by, ..)) in CASES.iter().enumerate() {
            let (these, nobody) = (&taken[case][kind], &taken[0][kind]);
            let of = |at: usize| median(these.iter().map(|times| times[at]).collect());
            let ratio = |at: usize| median(these.iter().zip(nobody).map(|(this, none)| this[at] / none[at]).collect());
            let verdict = if !is_judged || kind > 0 || ratio(0) <= MOST { "" } else { "  MISSED" };
            println!(
                "{name:<8} {watched_by:<30} {:>9.1} {:>9.0} {:>11.0} {:>8.3} {:>8.3}{verdict}",
                of(0),
                of(1),
                of(2),
                ratio(0),
                ratio(1)
            );
        }
    }
    println!(
        "memory: {resident_before:.0} MiB before the first viewer, {resident_most:.0} MiB at most while they came and went"
    );
    let summary = monitor.stop();
    println!("{} events; the program waited {} times, {:?}", summary.events, summary.waits, summary.waited);
}

/// The other process.
struct Viewers {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Viewers {
    fn start(page: &str) -> Self {
        let mut command = Command::new(env::current_exe().expect("a running program has a path"));
        command.args(["--viewers", page]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts again");
        let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Self { child, stdin, stdout: BufReader::new(stdout) }
    }

    /// Returns once there are so many.
    fn set(&mut self, reading: usize, stalled: usize) {
        writeln!(self.stdin, "{reading} {stalled}").expect("it listens");
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).expect("it answers");
        assert_eq!(answer, "done\n", "the viewers are gone");
    }
}

impl Drop for Viewers {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In the other process: has as many viewers as it is told, until stdin ends.
fn viewers(page: &str) {
    let address = page.split("//").nth(1).and_then(|rest| rest.split('/').next()).expect("an address").to_owned();
    // All that is held comes at once, and a viewer that does not read has more than it can take from the beginning.
    let url = format!("ws://{address}/ws?history=recent");
    let connect = |buffer_bytes: Option<u32>| {
        let stream = stream(&address, buffer_bytes).expect("the server listens");
        tungstenite::client(&url, stream).unwrap_or_else(|error| panic!("{error}")).0
    };
    let (mut idle, mut readers) = (Vec::new(), Vec::new());
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let (reading, stalled) = line.split_once(' ').expect("two numbers");
        let count = |text: &str| text.parse::<usize>().expect("a number");
        idle.truncate(count(stalled));
        while idle.len() < count(stalled) {
            idle.push(connect(Some(STALLED_BUFFER_BYTES)));
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

/// A viewer that takes what comes, and makes nothing of it.
struct Reader(Arc<AtomicBool>);

impl Reader {
    fn start(mut socket: WebSocket<TcpStream>) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&is_over);
        thread::spawn(move || while !theirs.load(Ordering::Relaxed) && socket.read().is_ok() {});
        Self(is_over)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
