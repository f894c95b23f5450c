//! `vramscope view`: the page on complete recordings.

use std::path::PathBuf;

use clap::Args;
use vramscope_collector::{Assets, Content, Recorded, page_address};

use crate::failure::Outcome;
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
    let mut files = Vec::new();
    for path in &options.files {
        let input = Input::open(path)?;
        let name = format!("{}.vram", input.name());
        let mut bytes = Vec::new();
        input.convert(|piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        files.push(Recorded { name, bytes: bytes.into() });
    }
    let names: Vec<_> = files.iter().map(|file| file.name.clone()).collect();
    let interrupts = Interrupts::listen()?;
    let server = options.serve.start(Content { assets: Assets::page(), live: None, files })?;
    options.serve.announce(&server)?;
    if let [_, _, ..] = names.as_slice() {
        for (number, name) in names.iter().enumerate() {
            screen::print(&format!("{name}: {}{}\n", server.url(), page_address(number, name)))?;
        }
    }
    interrupts.wait();
    Ok(())
}
