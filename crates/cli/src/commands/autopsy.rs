//! `vramscope autopsy`: why each request failed with out of memory, and what would have prevented
//! it.

use std::path::PathBuf;

use clap::Args;
use vramscope_insight::autopsy::{Defect, OutOfMemory};
use vramscope_trace::{ByteSize, Category, Count, Recording};

use crate::error::Result;
use crate::input::Input;
use crate::operation::Operation;
use crate::reports::autopsy::{Checked, Examination};
use crate::signals;
use crate::table;
use crate::terminal;

/// Text after the options in `vramscope autopsy --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope autopsy run.vram
  vramscope autopsy failed.pickle --limit-bytes 40GiB --json

Exit status: 0 without an out-of-memory error, 1 with one or more";

/// Number of lines of the program in the table of what held memory.
const TABLE_ROWS: usize = 8;

/// Arguments of `vramscope autopsy`: the recording and its memory limit.
#[derive(Args, Debug)]
pub(crate) struct AutopsyArguments {
    /// Recording (.vram, or an .html export), PyTorch snapshot (.pickle, .json) or RMM log (.csv);
    /// each also with .gz or .zst
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Memory limit that the recorded process ran under, such as 40GiB [default: inferred from the
    /// out-of-memory errors]
    #[arg(long, value_name = "SIZE")]
    limit_bytes: Option<ByteSize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Explains the out-of-memory errors of a recording. Returns false if there is one.
pub(crate) fn run(arguments: &AutopsyArguments) -> Result<bool> {
    let operation = Operation::on_terminal();
    let shown = operation.clone();
    signals::exit_on_signal(move || shown.clear())?;
    let recording = Input::open(&arguments.file)?.into_recording()?;
    let examination = Examination::new(&arguments.file, &recording, arguments.limit_bytes, &operation)?;
    if arguments.json {
        terminal::print_json(&examination.report())?;
    } else {
        terminal::print(&(text(&recording, &examination) + &defects_text(&examination.defects)))?;
    }
    Ok(examination.autopsy.ooms.is_empty())
}

/// Returns the defects of PyTorch's allocator as text, each with its remedy.
fn defects_text(defects: &[Defect]) -> String {
    let text = |defect: &Defect| {
        format!(
            "\nDefect of PyTorch on {}, event {}: {}\n  {}\n  https://github.com/pytorch/pytorch/issues/{}\n",
            defect.device,
            Count(defect.event),
            defect.summary,
            defect.remedy,
            defect.pytorch_issue
        )
    };
    defects.iter().map(text).collect()
}

/// Returns all failures as text for the terminal.
fn text(recording: &Recording, examination: &Examination) -> String {
    let Examination { settings, autopsy, checked, .. } = examination;
    if autopsy.ooms.is_empty() {
        return format!("No out-of-memory error in {}.\n", Count(recording.events()).of("event", "events"));
    }
    let parts: Vec<String> = autopsy.ooms.iter().zip(checked).map(|(oom, found)| oom_text(oom, found)).collect();
    let mut text = parts.join("\n");
    if autopsy.omitted > 0 {
        text += &format!("\n{} were not examined.\n", Count(autopsy.omitted).of("further error", "further errors"));
    }
    if !settings.to_conf().is_empty() {
        text += &format!("\nRecorded settings: {}\n", settings.to_conf());
    }
    text
}

/// Returns one failure as text: the headline, the cause, what held memory, what was free, remedies.
fn oom_text(oom: &OutOfMemory, checked: &Checked) -> String {
    let failure = &oom.failure;
    let mut text = format!(
        "OUT OF MEMORY on {}, event {}: {}, cause {}\n\n{}\n",
        failure.device,
        Count(failure.event),
        ByteSize(failure.requested_bytes),
        oom.cause.id(),
        oom.summary
    );
    if let Some(issue) = oom.cause.pytorch_issue() {
        text += &format!("This is a known defect of PyTorch: https://github.com/pytorch/pytorch/issues/{issue}\n");
    }
    text += "\n";
    let mut table = table::new(["  What held memory", "category", "bytes"], 2);
    for holder in oom.holders.iter().take(TABLE_ROWS) {
        let category = if holder.category == Category::Unknown { "" } else { holder.category.name() };
        table.add_row([format!("  {}", holder.name), category.to_owned(), ByteSize(holder.bytes).to_string()]);
    }
    let others: u64 = oom.holders.iter().skip(TABLE_ROWS).map(|holder| holder.bytes).sum();
    if others > 0 {
        table.add_row(["  (all other lines)".to_owned(), String::new(), ByteSize(others).to_string()]);
    }
    text += &table::render(table, None);
    text += "\n";
    text += &free_text(oom);
    text += "\n";
    text += &match checked {
        None => "Remedies are checked for the first errors only.\n".to_owned(),
        Some((false, _)) => "The simulation does not reproduce this error, so no remedy could be checked.\n".to_owned(),
        Some((true, remedies)) if remedies.is_empty() => "No remedy that was simulated prevents it.\n".to_owned(),
        Some((true, remedies)) => {
            let lines = remedies.iter().map(|remedy| {
                let peak = ByteSize(remedy.peak_reserved_bytes);
                format!("  {}\n      reserves {} less: {peak} at most\n", remedy.detail, ByteSize(remedy.saves_bytes))
            });
            format!("Each of these prevents it (simulated), the smallest change first:\n{}", lines.collect::<String>())
        }
    };
    text
}

/// Returns what was free and for whom, one line for each kind of free memory that existed.
fn free_text(oom: &OutOfMemory) -> String {
    let (failure, free) = (&oom.failure, &oom.free);
    let rows = [
        ("free in its pool and stream", free.own_bytes, Some(free.own_largest_bytes)),
        ("free for other streams", free.other_stream_bytes, Some(free.other_stream_largest_bytes)),
        ("free in private pools", free.private_bytes, Some(free.private_largest_bytes)),
        ("pending free", free.pending_bytes, None),
        ("free on the device", failure.device_free_bytes, None),
        ("held outside of the pool", oom.outside_bytes.filter(|_| !oom.is_capped()).unwrap_or(0), None),
    ];
    let mut table = table::new(["  What was free", "bytes", "largest block"], 1);
    for (name, bytes, largest) in rows.into_iter().filter(|&(_, bytes, _)| bytes > 0) {
        let largest = largest.map_or_else(String::new, |bytes| ByteSize(bytes).to_string());
        table.add_row([format!("  {name}"), ByteSize(bytes).to_string(), largest]);
    }
    let mut text = table::render(table, None);
    if let Some(bytes) = oom.cap.about_bytes() {
        text += &format!("  {} reserved, of a cap of {}\n", ByteSize(failure.usage.reserved_bytes), ByteSize(bytes));
    }
    text
}
