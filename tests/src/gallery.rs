//! The gallery of the page: recordings with a question and an answer each.

use std::fs;
use std::path::PathBuf;

use serde::Deserialize;

use crate::fixtures::{tour_recording, workspace_root};

/// An entry of the gallery; `www/examples/gallery.json` has all of them.
#[derive(Clone, Debug, Deserialize)]
pub struct Entry {
    /// Name in kebab case.
    pub name: String,
    /// The heading above the entry.
    pub group: String,
    /// Title.
    pub title: String,
    /// What the program does, in one sentence.
    pub summary: String,
    /// The question.
    pub question: String,
    /// Where the answer is to be seen.
    pub look: String,
    /// The fragment of the page's address for that view.
    pub fragment: String,
    /// The answer.
    pub answer: String,
    /// Names of the recordings without their extension; two are compared.
    pub files: Vec<String>,
}

impl Entry {
    /// Returns the paths of the entry's recordings in the repository.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        let recordings = workspace_root().join("examples").join("pytorch").join("recordings");
        let path = |name: &String| {
            let of_script = recordings.join(format!("{name}.vram"));
            if of_script.is_file() { of_script } else { tour_recording(name) }
        };
        self.files.iter().map(path).collect()
    }
}

/// Reads the gallery's entries.
///
/// # Panics
/// Panics if the file is missing, or an entry lacks a field.
#[must_use]
pub fn entries() -> Vec<Entry> {
    #[derive(Deserialize)]
    struct Gallery {
        recordings: Vec<Entry>,
    }
    let path = workspace_root().join("www").join("examples").join("gallery.json");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let gallery: Gallery = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    gallery.recordings
}
