//! The tools of a demo: tables, lines of memory and scalars for TensorBoard.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use clap::{Args, ValueEnum};
use serde::Serialize;
use vramscope_demo::Device;
use vramscope_demo::tools::{
    LineReport, LineTable, MemoryLog, MemoryLogEntry, PhaseReport, PhaseTable, ProfileReport, Profiler, SortBy,
    TensorboardLog, Timing,
};
use vramscope_demo::training::{Callback, ThreadCallback};

use super::step_lines::StepLines;
use crate::error::{CommandError, Result};
use crate::number::parse_whole;
use crate::terminal;

/// Depth of the layers that have rows in the table by phase: the model and its blocks.
const LAYER_DEPTH: usize = 2;

/// Options of `vramscope demo` for its tools.
#[derive(Args, Debug)]
pub(crate) struct ToolArguments {
    /// Print tables of the memory at the end of the run, by phase (of the training step), line or
    /// op (operation) [default: all three]
    #[arg(long, value_name = "KEY,…", value_enum, value_delimiter = ',', num_args = 0..=1)]
    #[arg(default_missing_value = "phase,line,op", hide_possible_values = true, conflicts_with = "list")]
    tables: Vec<TableKind>,
    /// Print the memory at the end of each phase, in the first step and in every STEPS-th [default:
    /// every step]
    #[arg(long, value_name = "STEPS", num_args = 0..=1, default_missing_value = "1", conflicts_with = "list")]
    #[arg(value_parser = parse_steps)]
    print_memory: Option<NonZeroU64>,
    /// Write memory, loss and time of each step to a folder for TensorBoard; with --compare, to a
    /// subfolder for each technique
    #[arg(long, value_name = "DIR", conflicts_with = "list")]
    pub(super) tensorboard: Option<PathBuf>,
}

impl ToolArguments {
    /// Creates the folder for TensorBoard, if the user named one. To be called before a recording's
    /// file is created: a wrong folder must not cost an earlier recording.
    pub(super) fn create_folder(&self) -> Result {
        let Some(folder) = &self.tensorboard else { return Ok(()) };
        fs::create_dir_all(folder).map_err(|error| folder_error(folder, &error))
    }
}

/// Returns the error of a folder for TensorBoard that cannot be written.
fn folder_error(folder: &Path, error: &io::Error) -> CommandError {
    CommandError::new(format_args!("--tensorboard: {}: {error}", folder.display()))
}

/// Values of `demo --tables`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum TableKind {
    /// By phase of the training step, and layer
    Phase,
    /// By source line
    Line,
    /// By operation
    Op,
}

/// Parses a number of steps, which is not 0.
fn parse_steps(text: &str) -> std::result::Result<NonZeroU64, String> {
    let steps: u64 = parse_whole(text)?;
    NonZeroU64::new(steps).ok_or_else(|| "expected at least 1".to_owned())
}

/// The results of the tools, in the output of `demo --json`.
#[derive(Debug, Default, Serialize)]
pub(super) struct ToolReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    tables: Option<Tables>,
    /// The lines of `--print-memory`.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<Vec<MemoryLogEntry>>,
    /// The file that `--tensorboard` wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    tensorboard: Option<PathBuf>,
}

/// The tables of `--tables`.
#[derive(Debug, Default, Serialize)]
struct Tables {
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<PhaseReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<LineReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    op: Option<ProfileReport>,
}

/// The tools that watch a run, on the thread that runs it.
pub(super) struct Tools {
    phases: Option<Rc<PhaseTable>>,
    lines: Option<LineTable>,
    profiler: Option<Profiler>,
    log: Option<Rc<TensorboardLog>>,
    memory: Option<Rc<RefCell<MemoryOutput>>>,
    _callbacks: Vec<ThreadCallback>,
}

/// The measurements of `--print-memory`.
#[derive(Debug)]
struct MemoryOutput {
    /// The entries, if they are not printed.
    entries: Vec<MemoryLogEntry>,
    printed: Result,
}

impl Tools {
    /// Starts the tools that `arguments` name, for the memory of `device`. `folder` is where
    /// scalars for TensorBoard go. Entries of memory are printed as `lines` says, or
    /// collected for the JSON report if it is `Hidden`.
    pub(super) fn start(
        arguments: &ToolArguments,
        device: &Device,
        folder: Option<&Path>,
        lines: StepLines,
    ) -> Result<Self> {
        let kinds: BTreeSet<TableKind> = arguments.tables.iter().copied().collect();
        let log = folder.map(|folder| {
            // The demo adds the loss, which it has read already.
            TensorboardLog::create(folder, device, Timing::Synchronized, 0)
                .map(Rc::new)
                .map_err(|error| folder_error(folder, &error))
        });
        let log = log.transpose()?;
        let memory = arguments
            .print_memory
            .map(|every| (every, Rc::new(RefCell::new(MemoryOutput { entries: Vec::new(), printed: Ok(()) }))));
        let of_kind = |kind| kinds.contains(&kind).then_some(());
        let phases = of_kind(TableKind::Phase).map(|()| Rc::new(PhaseTable::new(device, Timing::Host, LAYER_DEPTH)));
        let mut callbacks: Vec<Rc<dyn Callback>> = Vec::new();
        callbacks.extend(phases.clone().map(|phases| phases as Rc<dyn Callback>));
        callbacks.extend(log.clone().map(|log| log as Rc<dyn Callback>));
        callbacks.extend(memory.clone().map(|(every, output)| {
            let receive = move |line| output.borrow_mut().add(line, lines);
            Rc::new(MemoryLog::new(device, every, receive)) as Rc<dyn Callback>
        }));
        Ok(Self {
            phases,
            lines: of_kind(TableKind::Line).map(|()| LineTable::new(device)),
            profiler: of_kind(TableKind::Op).map(|()| Profiler::new(device, Timing::Host)),
            log,
            memory: memory.map(|(_, output)| output),
            _callbacks: callbacks.into_iter().map(ThreadCallback::add).collect(),
        })
    }

    /// Adds the loss of the step that has ended last to the scalars for TensorBoard.
    pub(super) fn loss(&self, loss: f32) {
        if let Some(log) = &self.log {
            log.add_loss(loss);
        }
    }

    /// Ends the tools and returns their measurements.
    ///
    /// # Errors
    /// If the lines of memory or the file for TensorBoard could not be written.
    pub(super) fn finish(self) -> Result<ToolReport> {
        let tables = Tables {
            phase: self.phases.as_ref().map(|phases| phases.report()),
            line: self.lines.as_ref().map(|lines| lines.report(Path::new("."))),
            op: self.profiler.as_ref().map(|profiler| profiler.report(SortBy::OwnBytes)),
        };
        let has_tables = tables.phase.is_some() || tables.line.is_some() || tables.op.is_some();
        let mut report = ToolReport { tables: has_tables.then_some(tables), ..ToolReport::default() };
        if let Some(memory) = &self.memory {
            let MemoryOutput { entries, printed } =
                memory.replace(MemoryOutput { entries: Vec::new(), printed: Ok(()) });
            printed?;
            report.memory = Some(entries);
        }
        if let Some(log) = &self.log {
            let path = log.path().to_owned();
            if let Some(error) = log.take_error() {
                let message = format_args!("{}: the scalars are incomplete: {error}", path.display());
                return Err(CommandError::new(message));
            }
            report.tensorboard = Some(path);
        }
        Ok(report)
    }
}

impl MemoryOutput {
    /// Prints an entry as `lines` says, or keeps it if it is not printed.
    fn add(&mut self, entry: MemoryLogEntry, lines: StepLines) {
        if lines == StepLines::Hidden {
            self.entries.push(entry);
        } else if self.printed.is_ok() {
            self.printed = lines.print(&entry.to_string());
        }
    }
}

impl ToolReport {
    /// Prints the measurements below the name of the run, if the user asked for tables.
    pub(super) fn print_titled(&self, name: &str) -> Result {
        if self.tables.is_some() {
            terminal::print(&format!("\n{name}\n"))?;
        }
        self.print()
    }

    /// Prints the tables, and says where the scalars are.
    pub(super) fn print(&self) -> Result {
        if let Some(path) = &self.tensorboard {
            let folder = path.parent().unwrap_or(path).display();
            terminal::message(format_args!("{}: for tensorboard --logdir {folder}", path.display()));
        }
        let Some(Tables { phase, line, op }) = &self.tables else { return Ok(()) };
        let texts = [
            phase.as_ref().map(ToString::to_string),
            line.as_ref().map(ToString::to_string),
            op.as_ref().map(ToString::to_string),
        ];
        texts.iter().flatten().try_for_each(|text| terminal::print(&format!("\n{text}")))
    }
}
