//! Writes the seed inputs of each fuzz target to a folder, and its words as a dictionary for
//! libFuzzer.
//!
//! `cargo run -p vramscope-fuzz --example seeds -- FOLDER`
#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs, io};

use vramscope_fuzz::{TARGETS, Target};

/// Returns the words of a target in libFuzzer's dictionary format.
fn dictionary(target: &Target) -> String {
    let mut lines = String::new();
    for word in target.words {
        let bytes = word.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "\\x{byte:02x}");
            text
        });
        let _ = writeln!(lines, "\"{bytes}\"");
    }
    lines
}

fn main() -> io::Result<()> {
    let folder = PathBuf::from(env::args().nth(1).ok_or(io::Error::other("usage: seeds FOLDER"))?);
    for target in TARGETS {
        let target_folder = folder.join(target.name);
        fs::create_dir_all(&target_folder)?;
        for (number, seed) in (target.seeds)().into_iter().enumerate() {
            fs::write(target_folder.join(format!("seed-{number:02}")), seed)?;
        }
        // A target without words gets no dictionary, because libFuzzer refuses an empty one.
        if !target.words.is_empty() {
            fs::write(folder.join(format!("{}.dict", target.name)), dictionary(&target))?;
        }
    }
    Ok(())
}
