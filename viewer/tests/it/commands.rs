//! The commands of the registry in a session.

use vramscope_viewer::app::SessionReport;
use vramscope_viewer::commands::{COMMANDS, RunsIn};

use crate::files::open_bytes;
use crate::samples::{Sample, bytes};

#[test]
fn devices_are_shown_in_turn() {
    let mut session = open_bytes("drawn.vram", &bytes(Sample::TwoGpus));
    let first = session.model.device();
    let mut next = || {
        session.execute("device-next", 0.0, &mut SessionReport::default()).expect("there are two devices");
        session.model.device()
    };
    assert_ne!(next(), first);
    assert_eq!(next(), first);
    let mut one = open_bytes("drawn.vram", &bytes(Sample::Training));
    let refused = one.execute("device-next", 0.0, &mut SessionReport::default());
    assert_eq!(refused.unwrap_err(), "this recording has only one device");
}

#[test]
fn every_command_of_the_engine_is_executed() {
    // Those that need the connection.
    let elsewhere = ["follow"];
    for command in COMMANDS.iter().filter(|command| command.runs_in == RunsIn::Engine) {
        let mut session = open_bytes("drawn.vram", &bytes(Sample::TwoGpus));
        let mut report = SessionReport::default();
        // Some commands cannot do anything here, and say so.
        let _ = session.execute(command.name, 0.0, &mut report);
        let is_elsewhere = elsewhere.contains(&command.name);
        assert_eq!(report.commands.is_empty(), !is_elsewhere, "{}: {:?}", command.name, report.commands);
    }
}
