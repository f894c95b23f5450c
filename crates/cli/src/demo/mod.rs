//! The parts of the demo: the recorded device, the page, and the programs that run on the device.
//! The command is [`commands::demo`](crate::commands::demo).

mod arguments;
mod compare;
mod default;
mod gallery;
mod output;
mod page;
mod recording;
mod step_lines;
mod technique;
mod tools;

pub(crate) use arguments::{DemoArguments, EXAMPLES};
pub(crate) use compare::run as compare;
pub(crate) use default::run as train;
pub(crate) use gallery::run as gallery;
pub(crate) use technique::run as run_techniques;
