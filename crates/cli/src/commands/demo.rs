//! `vramscope demo`: trains a model and shows its memory live, a memory technique, or the gallery.

use serde::Serialize;
use vramscope_demo::techniques::Technique;

use crate::demo;
use crate::error::Result;
use crate::table;
use crate::terminal;

pub(crate) use crate::demo::{DemoArguments, EXAMPLES};

/// Lists the techniques, runs one, compares two, serves the gallery, or trains the default model.
pub(crate) fn run(arguments: &DemoArguments) -> Result {
    if arguments.list {
        return print_techniques(arguments.json);
    }
    arguments.check()?;
    if arguments.gallery {
        return demo::gallery(arguments);
    }
    match (&arguments.technique[..], &arguments.compare[..]) {
        ([], []) => demo::train(arguments),
        (names, []) => demo::run_techniques(arguments, names),
        (_, pair) => demo::compare(arguments, pair),
    }
}

/// The output of `demo --list --json`.
#[derive(Serialize)]
struct TechniqueList {
    techniques: Vec<TechniqueEntry>,
}

/// A technique in the output of `demo --list --json`.
#[derive(Serialize)]
struct TechniqueEntry {
    name: &'static str,
    summary: &'static str,
    program: &'static str,
    /// The technique to compare it with; its own name for a program without a change.
    baseline: &'static str,
}

/// Prints the names and effects of all techniques.
fn print_techniques(json: bool) -> Result {
    let techniques = Technique::all();
    if json {
        let entry = |&Technique { name, summary, program, baseline, .. }: &Technique| TechniqueEntry {
            name,
            summary,
            program: program.name(),
            baseline,
        };
        return terminal::print_json(&TechniqueList { techniques: techniques.iter().map(entry).collect() });
    }
    let mut rows = table::new(["technique", "compare with", "what it does"], 3);
    for Technique { name, summary, baseline, .. } in techniques {
        rows.add_row([*name, if name == baseline { "" } else { baseline }, summary]);
    }
    terminal::print(&table::render(rows, terminal::columns()))
}
