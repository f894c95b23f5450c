//! The commands of the registry in a session.

use vramscope_viewer::app::SessionReport;
use vramscope_viewer::command::Command;
use vramscope_viewer::key_bindings::all;

use crate::testing::open_bytes;
use crate::testing::samples::{Sample, bytes};

#[test]
fn devices_are_shown_in_turn() {
    let mut session = open_bytes("drawn.vram", &bytes(Sample::TwoGpus));
    let first = session.model.device();
    let mut next = || {
        session.execute(&Command::NextDevice, 0.0, &mut SessionReport::default()).expect("there are two devices");
        session.model.device()
    };
    assert_ne!(next(), first);
    assert_eq!(next(), first);
    let mut one = open_bytes("drawn.vram", &bytes(Sample::Training));
    let refused = one.execute(&Command::NextDevice, 0.0, &mut SessionReport::default());
    assert_eq!(refused.unwrap_err(), "this recording has only one device");
}

#[test]
fn every_command_of_the_engine_is_executed() {
    let commands = all().into_iter().map(|listed| listed.command().expect("a command"));
    for command in commands.filter(|command| !matches!(command, Command::Page(_))) {
        let mut session = open_bytes("drawn.vram", &bytes(Sample::TwoGpus));
        let mut report = SessionReport::default();
        // Some commands cannot do anything here, and say so.
        let _ = session.execute(&command, 0.0, &mut report);
        // It needs the connection.
        let is_elsewhere = command == Command::Follow;
        assert_eq!(report.commands.is_empty(), !is_elsewhere, "{command}: {:?}", report.commands);
    }
}
