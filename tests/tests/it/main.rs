//! Tests of the commands, of the page in a browser, and of recordings through a real broker.

mod browser;
mod fleet;
mod messages;
mod programs;
