//! Runs the real binary as a user or a script does.
#![forbid(unsafe_code)]

mod access;
mod advise;
#[cfg(feature = "fleet")]
mod archive;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod attach;
mod autopsy;
mod demo;
mod diagnose;
mod diff;
mod errors;
mod export;
#[cfg(feature = "fleet")]
mod fleet;
mod help;
mod import_info;
mod live;
mod mcp;
#[cfg(feature = "otlp")]
mod otlp;
mod output;
mod pack;
mod process;
mod proxy;
mod reconnect;
mod report_html;
mod reports;
mod serve;
mod table;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../../src/attach/test_pythons.rs"]
mod test_pythons;
mod verify_simulate;
