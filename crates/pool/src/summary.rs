//! The counters as a table for people: what `torch.cuda.memory_summary()` prints.

use std::fmt::Write;

use vramscope_trace::DeviceId;

use crate::stats::{Stat, StatBySize, Stats};

/// Columns between the outer bars.
const WIDTH: usize = 75;

/// How a column of numbers is written: each unit is so many of the one before it, and holds for values of `from` of the one before
/// it and more.
struct Units {
    step: u64,
    from: u64,
    digits: usize,
    names: &'static [&'static str],
}

const BYTES: Units =
    Units { step: 1024, from: 768 * 1024, digits: 6, names: &["B  ", "KiB", "MiB", "GiB", "TiB", "PiB"] };
const COUNTS: Units = Units { step: 1000, from: 750 * 1000, digits: 7, names: &["  ", "K ", "M "] };

impl Units {
    /// The value in the unit that `like` is best read in, rounded down.
    fn write(&self, mut value: u64, mut like: u64) -> String {
        let mut names = self.names.iter();
        let mut name = names.next().copied().unwrap_or_default();
        for larger in names {
            if like < self.from {
                break;
            }
            (like, value, name) = (like / self.step, value / self.step, larger);
        }
        format!("{value:digits$} {name}", digits = self.digits)
    }

    /// The four cells of a row, each in the unit of the same cell of the row `like`.
    fn row(&self, name: &str, stat: &Stat, like: &Stat) -> String {
        let cells = [
            (stat.current, like.current),
            (stat.peak, like.peak),
            (stat.allocated, like.allocated),
            (stat.freed, like.freed),
        ];
        let [current, peak, allocated, freed] = cells.map(|(value, like)| self.write(value, like));
        format!(" {name:<21} | {current} | {peak} | {allocated} | {freed} ")
    }
}

/// The table that `torch.cuda.memory_summary()` returns, byte for byte, for the pool of `device`. `abbreviated` leaves the rows of the
/// large and the small pool out.
#[must_use]
pub fn memory_summary(stats: &Stats, device: DeviceId, abbreviated: bool) -> String {
    let by_size = [
        ("Allocated memory", &BYTES, &stats.allocated_bytes),
        ("Active memory", &BYTES, &stats.active_bytes),
        ("Requested memory", &BYTES, &stats.requested_bytes),
        ("GPU reserved memory", &BYTES, &stats.reserved_bytes),
        ("Non-releasable memory", &BYTES, &stats.inactive_split_bytes),
        ("Allocations", &COUNTS, &stats.allocation),
        ("Active allocs", &COUNTS, &stats.active),
        ("GPU reserved segments", &COUNTS, &stats.segment),
        ("Non-releasable allocs", &COUNTS, &stats.inactive_split),
    ];
    let oversize =
        [("Oversize allocations", &stats.oversize_allocations), ("Oversize GPU segments", &stats.oversize_segments)];
    let (double_line, line) = ("=".repeat(WIDTH), "-".repeat(WIDTH));
    let (ooms, retries) = (stats.num_ooms, stats.num_alloc_retries);

    let mut rows = vec![
        double_line.clone(),
        format!("{:18}PyTorch CUDA memory summary, device ID {:<18}", "", device.0),
        line.clone(),
        format!("{:12}CUDA OOMs: {ooms:<12} | {:7}cudaMalloc retries: {retries:<10}", "", ""),
        double_line.clone(),
        "        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  ".to_owned(),
    ];
    for (name, units, StatBySize { all, small_pool, large_pool }) in by_size {
        rows.push(line.clone());
        rows.push(units.row(name, all, all));
        if !abbreviated {
            rows.push(units.row("      from large pool", large_pool, all));
            rows.push(units.row("      from small pool", small_pool, all));
        }
    }
    for (name, stat) in oversize {
        rows.push(line.clone());
        rows.push(COUNTS.row(name, stat, stat));
    }
    rows.push(double_line);
    rows.iter().fold(String::new(), |mut table, row| {
        // Writing to a string does not fail.
        let _ = writeln!(table, "|{row}|");
        table
    })
}
