//! `vramscope completions`: prints a completion script for a shell.

use clap::{Args, Command};
use clap_complete::Shell;

use crate::error::Result;
use crate::terminal;

/// Text after the options in `vramscope completions --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope completions bash > ~/.local/share/bash-completion/completions/vramscope
  vramscope completions fish > ~/.config/fish/completions/vramscope.fish";

/// Arguments of `vramscope completions`: the shell.
#[derive(Args, Debug)]
pub(crate) struct CompletionsArguments {
    /// Shell to write the script for
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

/// Prints the completion script of `command`, the whole command line, for the chosen shell.
pub(crate) fn run(arguments: &CompletionsArguments, mut command: Command) -> Result {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "vramscope", &mut script);
    terminal::print(&String::from_utf8_lossy(&script))
}
