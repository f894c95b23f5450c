//! The options of `vramscope demo`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use vramscope_demo::techniques::{Scale, Sizes};

use super::tools::ToolArguments;
use crate::error::{CommandError, Result};
use crate::number::parse_whole;
use crate::retention::RetentionArguments;
use crate::server::ServerArguments;

/// Text after the options in `vramscope demo --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope demo
  vramscope demo --steps 200 --record run.vram --no-open
  vramscope demo --list
  vramscope demo --technique checkpoint-blocks,mixed-bf16
  vramscope demo --technique keep-outputs --tables phase,line --tensorboard runs/demo
  vramscope demo --compare train,checkpoint-blocks
  vramscope demo --compare train,checkpoint-blocks --json
  vramscope demo --gallery";

/// Arguments of `vramscope demo`: the device, the techniques, the number of steps, the file to
/// record to, and the server.
#[derive(Args, Debug)]
pub(crate) struct DemoArguments {
    /// List the memory techniques
    #[arg(long, conflicts_with_all = ["technique", "compare"])]
    pub(crate) list: bool,
    /// Run the program of these techniques; techniques of one program can be combined
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', conflicts_with = "compare")]
    pub(crate) technique: Vec<String>,
    /// Run two techniques with equal sizes and compare them; NAME+NAME combines techniques
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(crate) compare: Vec<String>,
    /// Serve the page with its gallery, a dozen recordings with a question each; nothing is trained
    #[arg(long, conflicts_with_all = ["list", "technique", "compare", "device", "steps", "record", "overflow"])]
    #[arg(conflicts_with_all = ["tables", "print_memory", "tensorboard"])]
    pub(crate) gallery: bool,
    /// Print JSON instead of serving the page, and exit; with --list, --technique, --compare or
    /// --gallery
    #[arg(long)]
    pub(crate) json: bool,
    /// Device to train on
    #[arg(long, value_enum, default_value_t = DeviceArgument::Auto)]
    pub(super) device: DeviceArgument,
    /// Train this many steps, then only serve the page [default: until Ctrl-C; the technique's own
    /// number with --technique and --compare]
    #[arg(long, value_name = "N", value_parser = parse_whole::<u64>)]
    pub(super) steps: Option<u64>,
    /// Blocks of the GPT; with --technique or --compare, as the next five
    #[arg(long, value_name = "N", value_parser = parse_whole::<usize>)]
    pub(super) layers: Option<usize>,
    /// Width of the GPT
    #[arg(long, value_name = "N", value_parser = parse_whole::<usize>)]
    pub(super) width: Option<usize>,
    /// Sequences or images in a batch
    #[arg(long, value_name = "N", value_parser = parse_whole::<usize>)]
    pub(super) batch: Option<usize>,
    /// Tokens of a sequence
    #[arg(long, value_name = "N", value_parser = parse_whole::<usize>)]
    pub(super) length: Option<usize>,
    /// Default sizes to begin with [default: small on the host, large on a GPU]
    #[arg(long, value_enum)]
    pub(super) scale: Option<ScaleArgument>,
    /// Seed of parameters and data
    #[arg(long, value_name = "N", value_parser = parse_whole::<u64>)]
    pub(super) seed: Option<u64>,
    /// Also write the recording to this file; with --compare, to two files with the techniques'
    /// names added
    #[arg(long, value_name = "FILE")]
    pub(super) record: Option<PathBuf>,
    /// What to do when the training outpaces the recorder [default: wait with --record, --json or
    /// --compare, else drop]
    #[arg(long, value_enum, value_name = "ACTION")]
    pub(super) overflow: Option<OverflowArgument>,
    #[command(flatten)]
    pub(super) tools: ToolArguments,
    #[command(flatten)]
    pub(super) retention: RetentionArguments,
    #[command(flatten)]
    pub(super) server: ServerArguments,
}

/// Values of `demo --device`: where the training takes its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum DeviceArgument {
    /// The first GPU, or else the host
    Auto,
    /// The first GPU
    Cuda,
    /// This machine's processor and memory
    Host,
}

/// Values of `demo --scale`: how large the models and batches of techniques are by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ScaleArgument {
    /// Some MiB, for a processor
    Small,
    /// Hundreds of MiB, for a GPU
    Large,
}

/// Values of `demo --overflow`: whether the training waits or events are dropped when the recorder
/// falls behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OverflowArgument {
    /// Slow down the training
    Wait,
    /// Drop events; the recording counts them
    Drop,
}

impl DemoArguments {
    /// Returns an error if options cannot be combined.
    pub(crate) fn check(&self) -> Result {
        let is_technique = !self.technique.is_empty() || !self.compare.is_empty();
        if self.json && !is_technique && !self.gallery {
            return Err(CommandError::new("--json needs --list, --technique, --compare or --gallery"));
        }
        if !is_technique && self.sizes() != (Sizes { steps: self.steps, ..Sizes::default() }) {
            let message = "--layers, --width, --batch, --length, --scale and --seed need --technique or --compare";
            return Err(CommandError::new(message));
        }
        if !self.compare.is_empty() && self.compare.len() != 2 {
            return Err(CommandError::new("--compare needs two techniques: --compare train,checkpoint-blocks"));
        }
        if self.json && self.server.asks_for_page() {
            return Err(CommandError::new("--json does not serve the page: leave out the server's options"));
        }
        self.retention.require_file(self.record.as_deref())?;
        self.tools.create_folder()
    }

    /// Returns the sizes that the user chose.
    pub(super) fn sizes(&self) -> Sizes {
        let &Self { steps, layers, width, batch, length, seed, .. } = self;
        let scale = self.scale.map(|scale| match scale {
            ScaleArgument::Small => Scale::Small,
            ScaleArgument::Large => Scale::Large,
        });
        Sizes { steps, layers, width, batch, length, seed, scale }
    }
}
