//! `vramscope view`: the page on complete recordings.

use std::fs::File;
use std::path::{Path, PathBuf};

use clap::Args;
use vramscope_collector::{Content, Recorded, RecordedBytes, page_address};

use crate::failure::{Failure, Outcome};
use crate::input::Input;
use crate::interrupt::Interrupts;
use crate::screen;
use crate::serving::ServeOptions;

/// Arguments of `view`.
#[derive(Args, Debug)]
pub(crate) struct ViewOptions {
    /// Recordings to show: .vram, or PyTorch snapshots (.pickle, .json); each also with .gz or .zst
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    serve: ServeOptions,
}

/// Serves the files until it is interrupted.
pub(crate) fn run(options: &ViewOptions) -> Outcome {
    let files: Vec<Recorded> = options.files.iter().map(|path| recorded(path)).collect::<Outcome<_>>()?;
    let names: Vec<_> = files.iter().map(|file| file.name.clone()).collect();
    let interrupts = Interrupts::listen()?;
    let server = options.serve.start(Content::files(files))?;
    options.serve.announce(&server)?;
    if let [_, _, ..] = names.as_slice() {
        // The token is said once: the browser has it from the first address.
        let url = server.url();
        let root = url.split('?').next().unwrap_or_default();
        for (number, name) in names.iter().enumerate() {
            screen::print(&format!("{}: {root}{}\n", screen::one_line(name), page_address(number, name)))?;
        }
    }
    interrupts.wait();
    Ok(())
}

/// The recording that a file is, left where it is, or that it becomes when it is imported. Either has an index, so that a page opens it by
/// ranges.
fn recorded(path: &Path) -> Outcome<Recorded> {
    let input = Input::open(path)?;
    let name = format!("{}.vram", input.name());
    let bytes = match input.stored()? {
        Some((len, index)) => {
            let file = File::open(path).map_err(|error| Failure::file(path, error))?;
            RecordedBytes::of_file(file, len, index)
        }
        None => {
            let mut bytes = Vec::new();
            input.convert(|piece| {
                bytes.extend_from_slice(piece);
                Ok(())
            })?;
            RecordedBytes::of_memory(bytes)
        }
    };
    Ok(Recorded { name, bytes })
}
