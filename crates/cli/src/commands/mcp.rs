//! `vramscope mcp`: answers the questions of coding assistants.

use std::path::PathBuf;

use clap::Args;

use crate::error::Result;
use crate::mcp;

/// Text after the options in `vramscope mcp --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope mcp
  vramscope mcp --allow ~/recordings --allow /scratch/runs
  claude mcp add vramscope -- vramscope mcp --allow ~/recordings

A client starts this command and talks to it on standard input and output. It writes no file.";

/// Arguments of `vramscope mcp`: which files and addresses can be read.
#[derive(Args, Debug)]
pub(crate) struct McpArguments {
    /// Directory whose files can be read, with those below it; repeatable [default: the current
    /// directory]
    #[arg(long, value_name = "DIR")]
    allow: Vec<PathBuf>,
    /// Address (http or https) of live programs that can be read beside those of this machine;
    /// repeatable
    #[arg(long, value_name = "URL")]
    allow_url: Vec<String>,
}

/// Serves the tools until standard input ends.
pub(crate) fn run(arguments: &McpArguments) -> Result {
    mcp::serve(mcp::Sources::new(&arguments.allow, &arguments.allow_url)?)
}
