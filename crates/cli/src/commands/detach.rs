//! `vramscope detach`: ends what `vramscope attach` started in a process.

use clap::Args;

use crate::attach::{PackageArguments, PythonProcess};
use crate::error::Result;
use crate::signals::Interrupts;
use crate::terminal;

/// Text after the options in `vramscope detach --help`.
pub(crate) const EXAMPLES: &str = "\
Example:
  vramscope detach 4242

Not needed after Ctrl-C in vramscope attach, which detaches by itself.";

/// Arguments of `vramscope detach`: the process.
#[derive(Args, Debug)]
pub(crate) struct DetachArguments {
    /// Process id that vramscope attach was started with
    pid: u32,
    #[command(flatten)]
    package: PackageArguments,
}

/// Makes the process stop recording and pushing.
pub(crate) fn run(arguments: &DetachArguments) -> Result {
    let interrupts = Interrupts::listen()?;
    let process = PythonProcess::find(arguments.pid)?;
    arguments.package.call(&process, "_attach.stop()", &|| interrupts.requested())?;
    terminal::message(format_args!("detached from process {}", arguments.pid));
    Ok(())
}
