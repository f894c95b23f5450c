//! The table that `torch.cuda.memory_summary()` prints.

use std::fmt::Write;

use vramscope_trace::DeviceId;

use crate::stats::{Stat, StatBySize, Stats};

/// Width of the memory summary's table between its outer bars, in characters.
const WIDTH: usize = 75;

/// The units in which the memory summary shows a quantity, smallest first. Each unit is `step`
/// times the unit before it. A number of `from` or more is shown in the next unit. Numbers are
/// padded to `digits` characters.
struct Units {
    step: u64,
    from: u64,
    digits: usize,
    names: &'static [&'static str],
}

/// The units of the memory summary's rows that show bytes: B to PiB.
const BYTES: Units =
    Units { step: 1024, from: 768 * 1024, digits: 6, names: &["B  ", "KiB", "MiB", "GiB", "TiB", "PiB"] };
/// The units of the memory summary's rows that count blocks or segments: ones, thousands and
/// millions.
const COUNTS: Units = Units { step: 1000, from: 750 * 1000, digits: 7, names: &["  ", "K ", "M "] };

impl Units {
    /// Returns `value`, rounded down, in the unit in which the number `unit_from` would be shown.
    fn format(&self, mut value: u64, mut unit_from: u64) -> String {
        let mut names = self.names.iter();
        let mut name = names.next().copied().unwrap_or_default();
        for larger in names {
            if unit_from < self.from {
                break;
            }
            (unit_from, value, name) = (unit_from / self.step, value / self.step, larger);
        }
        format!("{value:digits$} {name}", digits = self.digits)
    }

    /// Returns a row of the memory summary: its name, and the current, peak, allocated and freed
    /// values of `stat`, each in the unit in which that value of `units_from` would be shown.
    fn row(&self, name: &str, stat: &Stat, units_from: &Stat) -> String {
        let cells = [
            (stat.current, units_from.current),
            (stat.peak, units_from.peak),
            (stat.allocated, units_from.allocated),
            (stat.freed, units_from.freed),
        ];
        let [current, peak, allocated, freed] = cells.map(|(value, unit_from)| self.format(value, unit_from));
        format!(" {name:<21} | {current} | {peak} | {allocated} | {freed} ")
    }
}

/// Returns the table that `torch.cuda.memory_summary()` prints, byte for byte, for the pool of
/// `device`.
///
/// With `abbreviated`, the rows of the large and the small pool are omitted.
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
