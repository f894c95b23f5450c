//! Times the statements of `docs/query.md` on the archive of a large run.
//!
//! Writes the archive as a server does: one row for each rank and second, and four of its sites.
//! An archive that exists is used again.
//!
//! ```console
//! $ cargo run --release -p vramscope-query --features datafusion --example fleet_queries -- FOLDER
//! ```
//!
//! Optional arguments after the folder: the number of ranks (4096) and of seconds (3600).
#![forbid(unsafe_code)]

mod statements;

use std::error::Error;
use std::fs;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use vramscope_fleet::archive::{ArchiveAddress, ArchiveOptions, ArchiveReader, ArchiveWriter, Table};
use vramscope_insight::fleet::{DeviceSummary, Mesh, ProcessDescription, Summary};
use vramscope_query::{OutputFormat, QuerySession};

/// The first second: 2027-01-15 08:15:00 UTC, so that the documented times are in the run.
const START_UNIX_S: u64 = 1_800_000_900;
/// Number of ranks of each host.
const RANKS_OF_A_HOST: u32 = 8;
/// Duration of a training step, in seconds.
const STEP_SECONDS: u64 = 7;
const MIB: u64 = 1 << 20;

/// A generator of numbers that look random (xorshift).
struct Random(u64);

impl Random {
    /// Returns a number below `limit`.
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Returns the description of a rank's process.
fn description(rank: u32, mesh: Option<Mesh>) -> ProcessDescription {
    ProcessDescription {
        rank: Some(rank),
        host: format!("machine-{:04}", rank / RANKS_OF_A_HOST),
        program: "train.py".to_owned(),
        coordinates: mesh.and_then(|mesh| mesh.coordinates(rank)),
        ..ProcessDescription::default()
    }
}

/// Returns what a rank holds in a second: about 60 GiB that vary with the step, and every 500th
/// rank grows.
fn device(rank: u32, second: u64, random: &mut Random) -> DeviceSummary {
    let growth = if rank.is_multiple_of(500) { second * MIB } else { 0 };
    let allocated = (50_000 + 1500 * (second % STEP_SECONDS)) * MIB + 512 * random.below(200_000) + growth;
    let free = 512 * random.below(4_000_000);
    let site = |site| (site, allocated / (4 + u64::from(site)) + 512 * random.below(10_000));
    let sites = (0..4).map(site).collect();
    DeviceSummary {
        allocated,
        active: allocated + 512 * random.below(1000),
        requested: allocated - 256 * random.below(10_000),
        reserved: allocated + free,
        free,
        largest_free: free / (2 + random.below(4)),
        segments: 300 + random.below(20) as u32,
        blocks: 20_000 + random.below(3000) as u32,
        ooms: u32::from(rank == 77 && second > 1800),
        sites,
        ..DeviceSummary::default()
    }
}

/// Writes the archive of a run.
fn write_archive(address: &ArchiveAddress, ranks: u32, seconds: u64) -> Result<(), Box<dyn Error>> {
    let writer = ArchiveWriter::open(address, "run", ArchiveOptions::default())?;
    let mesh = "pp=8,dp=64,tp=8".parse::<Mesh>().ok();
    let processes: Vec<_> = (0..ranks).map(|rank| (format!("{rank:032x}"), description(rank, mesh.clone()))).collect();
    let mut random = Random(1);
    for second in 0..seconds {
        for (rank, (identity, description)) in (0..ranks).zip(&processes) {
            let stored_ns = (START_UNIX_S + second) * 1_000_000_000 + 500_000_000;
            let names = (0..4).map(|site| (site, format!("model/layers.{site}/attention/qkv")));
            let summary = Summary {
                number: second,
                time_unix_ns: stored_ns - 1_000_000 * (1 + random.below(40)),
                events: second * 20_000 + random.below(10_000),
                step: Some(second / STEP_SECONDS),
                mark: ["forward", "backward", "optimizer"][(second % 3) as usize].to_owned(),
                devices: vec![device(rank, second, &mut random)],
                names: if second == 0 { names.collect() } else { Vec::new() },
                ..Summary::default()
            };
            // A summary that does not fit is passed again. A server would lose it.
            while !writer.summary(identity, description, &summary, stored_ns) {
                thread::sleep(Duration::from_millis(5));
            }
        }
    }
    writer.finish()?;
    Ok(())
}

/// Returns the most memory of this process so far in MiB, where the operating system has it.
fn peak_memory_mib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) / 1024
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("usage: fleet_queries FOLDER [RANKS] [SECONDS]")?;
    let ranks = arguments.next().map_or(Ok(4096), |text| text.parse())?;
    let seconds = arguments.next().map_or(Ok(3600), |text| text.parse())?;
    let folder = std::path::absolute(Path::new(&folder))?;
    let address = ArchiveAddress::parse(&format!("file://{}", folder.display()))?;
    if !folder.join("manifest.json").exists() {
        let begin = Instant::now();
        write_archive(&address, ranks, seconds)?;
        println!("wrote the archive in {:.0} s", begin.elapsed().as_secs_f64());
    }
    let archive = ArchiveReader::open(&address)?;
    for table in Table::ALL {
        let parts = archive.table_parts(table);
        let rows: u64 = parts.iter().map(|part| part.rows).sum();
        let bytes: u64 = parts.iter().map(|part| part.object.bytes).sum();
        println!("{}: {rows} rows in {} parts, {} MiB", table.name(), parts.len(), bytes / MIB);
    }
    let session = QuerySession::new(archive)?;
    println!("seconds     rows  parts  MiB read  statement");
    for (heading, statement) in statements::documented_statements() {
        let begin = Instant::now();
        let summary = session.run(&statement, 10_000, OutputFormat::Json, &mut io::sink())?;
        let seconds = begin.elapsed().as_secs_f64();
        let read = summary.bytes / MIB;
        println!("{seconds:7.2} {:8} {:6} {read:9}  {heading}", summary.rows, summary.objects);
    }
    println!("at most {} MiB of memory", peak_memory_mib());
    Ok(())
}
