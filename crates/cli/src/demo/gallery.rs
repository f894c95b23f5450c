//! `demo --gallery`: serves the recordings that come with the page, each with a question.

use serde::{Deserialize, Serialize};
use vramscope_collector::ServedContent;

use super::arguments::DemoArguments;
use crate::error::{CommandError, Result};
use crate::server::AnnounceOn;
use crate::signals::Interrupts;
use crate::table;
use crate::terminal;

/// Path of the gallery's data among the page's files.
const DATA_FILE: &str = "examples/gallery.json";

/// The gallery: the content of its data file, and the output of `demo --gallery --json`.
#[derive(Serialize, Deserialize)]
struct Gallery {
    recordings: Vec<GalleryEntry>,
}

/// An entry of the gallery.
#[derive(Serialize, Deserialize)]
struct GalleryEntry {
    name: String,
    /// The heading above the entry.
    group: String,
    title: String,
    /// One sentence that describes the program.
    summary: String,
    question: String,
    /// Sentence that says where the page shows the answer.
    look: String,
    /// Fragment of the page's address (after `#`) that opens this view.
    fragment: String,
    answer: String,
    /// Names of the recordings without their extension: one to show, or two to compare.
    files: Vec<String>,
}

/// Serves the gallery until the command is interrupted, or prints its entries as JSON.
pub(crate) fn run(arguments: &DemoArguments) -> Result {
    let gallery = read()?;
    if arguments.json {
        return terminal::print_json(&gallery);
    }
    let interrupts = Interrupts::listen()?;
    let server = arguments.server.start(ServedContent::files(Vec::new()))?;
    arguments.server.announce_at(&server, AnnounceOn::Stdout, "?gallery")?;
    let mut rows = table::new(["recording", "question"], 2);
    for GalleryEntry { title, question, .. } in &gallery.recordings {
        rows.add_row([title, question]);
    }
    terminal::print(&table::render(rows, terminal::columns()))?;
    interrupts.wait();
    Ok(())
}

/// Reads the gallery's data from the embedded page.
fn read() -> Result<Gallery> {
    let file = vramscope_page::files().iter().find(|file| file.path == DATA_FILE);
    let file = file.ok_or_else(|| {
        CommandError::new("this program was built without the page: run `cargo xtask build`, then build it again")
    })?;
    let bytes = file.decompressed().map_err(CommandError::new)?;
    serde_json::from_slice(&bytes).map_err(|error| CommandError::new(format_args!("{DATA_FILE}: {error}")))
}
