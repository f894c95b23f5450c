//! Runs the real binary as a user or a script does.
#![forbid(unsafe_code)]

mod access;
mod diff;
mod errors;
mod export;
mod help;
mod import_info;
mod live;
mod output;
mod process;
mod proxy;
mod reconnect;
mod report_html;
mod serve;
mod verify_simulate;
