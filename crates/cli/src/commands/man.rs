//! `vramscope man`: writes the manual pages.

use std::fs;
use std::path::PathBuf;

use clap::{Args, Command};
use clap_mangen::Man;

use crate::error::{CommandError, Result};
use crate::output::Output;
use crate::terminal;

/// Text after the options in `vramscope man --help`.
pub(crate) const EXAMPLES: &str = "\
Example:
  vramscope man -o ~/.local/share/man/man1";

/// Arguments of `vramscope man`: the folder for the manual pages.
#[derive(Args, Debug)]
pub(crate) struct ManArguments {
    /// Folder for the pages: vramscope.1 and one page for each command
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
}

/// Writes one manual page for `command`, the whole command line, and one for each of its
/// subcommands.
pub(crate) fn run(arguments: &ManArguments, mut command: Command) -> Result {
    let folder = &arguments.output;
    fs::create_dir_all(folder)
        .map_err(|error| CommandError::file(folder, format_args!("cannot create this folder: {error}")))?;
    command.build();
    let subcommands = command.get_subcommands().filter(|command| command.get_name() != "help").map(|subcommand| {
        let name = format!("vramscope-{}", subcommand.get_name());
        subcommand.clone().display_name(name)
    });
    let mut pages = 0;
    for page in subcommands.chain([command.clone()]) {
        let name = format!("{}.1", page.get_display_name().unwrap_or_else(|| page.get_name()));
        let mut text = Vec::new();
        Man::new(page).render(&mut text).expect("writing to memory does not fail");
        Output::write_file(&folder.join(name), &text)?;
        pages += 1;
    }
    terminal::message(format_args!("{}: {pages} pages", folder.display()));
    Ok(())
}
