//! `vramscope autopsy`: why each request failed with out of memory, and what would have prevented
//! it.

use vramscope_insight::autopsy::{Defect, Horizon, OutOfMemory, Remedies, Remedy};
use vramscope_insight::failures::ReservedCap;
use vramscope_insight::verdict::Status;
use vramscope_trace::{ByteSize, Category, Count, Recording};

use crate::answer::Answer;
use crate::error::Result;
use crate::input::Input;
use crate::operation::Operation;
use crate::recorded::FindingsArguments;
use crate::reports::autopsy::Examination;
use crate::table;
use crate::terminal;

/// Text after the options in `vramscope autopsy --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope autopsy run.vram
  vramscope autopsy failed.pickle --limit-bytes 40GiB --json

Exit status: 0 without an out-of-memory error, 1 with one or more, 3 if the recording has no history";

/// Maximum number of source lines in the table of holders of memory.
const TABLE_ROWS: usize = 8;
/// Maximum number of rows in the list of blocks that pin a segment.
const PIN_ROWS: usize = 4;

/// Explains the out-of-memory errors of a recording. The answer is negative if it has one.
pub(crate) fn run(arguments: &FindingsArguments) -> Result<Answer> {
    let operation = Operation::until_signal()?;
    let recording = Input::open(&arguments.file)?.into_recording()?;
    let examination = Examination::new(&arguments.file, &recording, arguments.limit_bytes, &operation)?;
    if arguments.json {
        terminal::print_json(&examination.report())?;
    } else {
        terminal::print(&(text(&recording, &examination) + &defects_text(&examination.defects)))?;
    }
    Ok(examination.status().into())
}

/// Returns the defects of PyTorch's allocator as text, each with its remedy.
fn defects_text(defects: &[(Defect, Option<u64>)]) -> String {
    let text = |(defect, saved): &(Defect, Option<u64>)| {
        let saved =
            saved.map_or_else(String::new, |bytes| format!(" Simulated, it reserves {} less.", ByteSize(bytes)));
        format!(
            "\nDefect of PyTorch on {}, event {}: {}\n  {}{saved}\n  https://github.com/pytorch/pytorch/issues/{}\n",
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
    let Examination { settings, verdict, autopsy, checked, .. } = examination;
    let first = format!("{}\n", verdict.summary);
    match examination.status() {
        Status::Found => {}
        Status::Nothing => {
            let events = Count(recording.events()).of("event", "events");
            return format!("No out-of-memory error in {events}.\n{first}");
        }
        Status::CannotTell => {
            let remedy = verdict.remedy.as_ref().map_or("", |remedy| remedy.text.as_str());
            return format!("{first}{remedy}\n");
        }
    }
    let parts: Vec<String> =
        autopsy.ooms().iter().zip(checked).map(|(oom, found)| oom_text(oom, found.as_ref())).collect();
    let mut text = format!("{first}\n") + &parts.join("\n");
    if autopsy.omitted() > 0 {
        text += &format!("\n{} were not examined.\n", Count(autopsy.omitted()).of("further error", "further errors"));
    }
    if !settings.to_conf().is_empty() {
        text += &format!("\nRecorded settings: {}\n", settings.to_conf());
    }
    text
}

/// Returns one failed request as text: headline, cause, holders of memory, free memory, remedies.
fn oom_text(oom: &OutOfMemory, checked: Option<&Remedies>) -> String {
    let failure = &oom.failure;
    let mut text = format!(
        "OUT OF MEMORY on {}, event {}: {}, cause {}\n\n{}\n",
        failure.device,
        Count(failure.event),
        ByteSize(failure.requested_bytes),
        oom.cause.id(),
        oom.summary
    );
    if oom.events.len() > 1 {
        let (times, last) = (Count(oom.events.len() as u64), Count(oom.last_event()));
        text += &format!("The same request failed {times} times in all, last at event {last}.\n");
    }
    if let Some(issue) = oom.pytorch_issue {
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
    text + &table::render(table, None)
        + "\n"
        + &free_text(oom)
        + &pins_text(oom)
        + "\n"
        + &checked.map_or_else(
            || "Remedies are checked for the first errors only.\n".to_owned(),
            |found| remedies_text(found, failure.event),
        )
}

/// Returns the remedies as text, checked ones first. `failed` is the event number of the failed
/// request.
fn remedies_text(found: &Remedies, failed: u64) -> String {
    if !found.is_reproduced {
        return "The simulation does not reproduce this error, so no remedy could be checked.\n".to_owned();
    }
    let horizon = match found.follows {
        Horizon::Failure => format!("up to event {}; the recording has no complete step", Count(failed)),
        Horizon::NextStep => "to the end of one more step".to_owned(),
        Horizon::Recorded => "to the end of the recording".to_owned(),
    };
    let line = |remedy: &&Remedy| {
        let (peak, saved) = (ByteSize(remedy.peak_reserved_bytes), ByteSize(remedy.saves_bytes));
        let effect = match remedy.saves_bytes {
            0 => format!("reserves {peak} at most"),
            _ => format!("reserves {saved} less: {peak} at most"),
        };
        format!("  {}\n      {effect}\n", remedy.detail)
    };
    let list = |is_checked: bool| -> String {
        found.remedies.iter().filter(|remedy| remedy.is_checked == is_checked).map(|one| line(&one)).collect()
    };
    let (checked, unchecked) = (list(true), list(false));
    let mut text = match checked.as_str() {
        "" => "No remedy that was simulated is known to be enough.\n".to_owned(),
        list => {
            format!("Each of these prevents it, the smallest change first (simulated {horizon}):\n{list}")
        }
    };
    if !unchecked.is_empty() {
        text += &format!(
            "Each of these prevents this error; the recording does not show whether the program then needs more:\n\
             {unchecked}"
        );
    }
    text
}

/// Returns the largest live blocks within an otherwise free range of the requested size, as text.
fn pins_text(oom: &OutOfMemory) -> String {
    let Some(pinning) = oom.pinning.as_ref().filter(|_| !oom.pins.is_empty()) else { return String::new() };
    let mut table = table::new(["  Blocks that keep a range apart", "bytes", "address"], 1);
    for pin in oom.pins.iter().take(PIN_ROWS) {
        table.add_row([format!("  {}", pin.site), ByteSize(pin.bytes).to_string(), format!("{:#x}", pin.address)]);
    }
    let others = pinning.blocks.len().saturating_sub(PIN_ROWS);
    if others > 0 {
        table.add_row([format!("  ({})", Count(others as u64).of("other", "others")), String::new(), String::new()]);
    }
    format!("\n{}", table::render(table, None))
}

/// Returns the free memory as text, one line for each kind of free memory that existed.
fn free_text(oom: &OutOfMemory) -> String {
    let (failure, free) = (&oom.failure, &oom.failure.free);
    let rows = [
        ("free in its pool and stream", failure.own_free_bytes, Some(failure.largest_own_bytes)),
        ("free for other streams", free.other_streams.total, Some(free.other_streams.largest)),
        ("free in private pools", free.private_pools.total, Some(free.private_pools.largest)),
        ("free for the other size class", free.other_size_class.total, Some(free.other_size_class.largest)),
        ("pending free", free.pending.total, Some(free.pending.largest)),
        ("free on the device", failure.device_free_bytes, None),
    ];
    let mut table = table::new(["  What was free", "bytes", "largest block"], 1);
    for (name, bytes, largest) in rows.into_iter().filter(|&(_, bytes, _)| bytes > 0) {
        let largest = largest.map_or_else(String::new, |bytes| ByteSize(bytes).to_string());
        table.add_row([format!("  {name}"), ByteSize(bytes).to_string(), largest]);
    }
    let mut text = table::render(table, None);
    let reserved = ByteSize(failure.usage.reserved_bytes);
    match oom.cap {
        ReservedCap::None => text += &format!("  {reserved} reserved; no cap is known\n"),
        cap => text += &format!("  {reserved} reserved, under {cap}\n"),
    }
    let outside = ByteSize(oom.device.outside_at_least_bytes);
    match oom.device.total_bytes {
        Some(total) => text += &format!("  {outside} of the device's {} held outside of the pool\n", ByteSize(total)),
        None if oom.device.outside_at_least_bytes > 0 && !oom.is_capped() => {
            text += &format!("  at least {outside} held outside of the pool\n");
        }
        None => text += "  bytes held outside of the pool: unknown\n",
    }
    text
}
