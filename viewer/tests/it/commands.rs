//! The commands of the registry in a session.

use vramscope_viewer::app::SessionReport;
use vramscope_viewer::command::Command;
use vramscope_viewer::key_bindings::all;

use crate::testing::samples::{Sample, bytes};
use crate::testing::{open, open_bytes};

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

#[test]
fn missing_rows_about_events_are_unknown_without_events() {
    let mut session = open("stopped.pickle.gz");
    let rows = session.rows("lifetimes", "{}").expect_err("the file has no events");
    let copy = Command::CopyTable(Some("lifetimes".into()));
    let copied = session.execute(&copy, 0.0, &mut SessionReport::default()).expect_err("there is nothing to copy");
    for message in [rows, copied] {
        assert!(message.starts_with("Unknown: this recording has no "), "{message}");
    }
}
