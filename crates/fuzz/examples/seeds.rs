//! Writes what fuzzing begins with: for each target a folder of inputs, and a dictionary where it has words.
//!
//! `cargo run -p vramscope-fuzz --example seeds -- FOLDER`
#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs, io};

use vramscope_fuzz::{TARGETS, Target};

/// A dictionary as libFuzzer reads it.
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
        let own = folder.join(target.name);
        fs::create_dir_all(&own)?;
        for (number, seed) in (target.seeds)().into_iter().enumerate() {
            fs::write(own.join(format!("seed-{number:02}")), seed)?;
        }
        // An empty dictionary is none that libFuzzer takes.
        if !target.words.is_empty() {
            fs::write(folder.join(format!("{}.dict", target.name)), dictionary(&target))?;
        }
    }
    Ok(())
}
