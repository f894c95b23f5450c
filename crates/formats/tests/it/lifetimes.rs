//! The lifetime index of snapshots contains exactly the blocks of the memory state at each moment.

use std::path::Path;

use vramscope_formats::{Limits, ignore_progress, import, unpack};
use vramscope_trace::{DeviceId, Lifetimes, LifetimesBuilder, MemorySink, MemoryState, SiteId};

/// Address, size, requested size, site, and whether a free is pending.
type Row = (u64, u64, u64, SiteId, bool);

fn blocks(state: &MemoryState, device: DeviceId) -> Vec<Row> {
    let blocks = state.device(device).into_iter().flat_map(|device| device.blocks());
    blocks.map(|one| (one.address, one.size, one.requested, one.site, one.pending_free)).collect()
}

fn live(lifetimes: &Lifetimes, device: DeviceId, moment: u64) -> Vec<Row> {
    let live = lifetimes.device(device).into_iter().flat_map(|index| index.live_at(moment));
    let mut rows: Vec<Row> =
        live.map(|one| (one.address, one.size, one.requested, one.site, !one.is_allocated_at(moment))).collect();
    rows.sort_unstable();
    rows
}

/// Builds the index of a snapshot and compares it with the state at about two hundred moments.
fn check(path: &Path) {
    let limits = Limits::default();
    let file = std::fs::read(path).expect("the snapshot can be read");
    let bytes = unpack(&file, &limits).expect("the snapshot can be read");
    let name = path.to_string_lossy();
    let (memory, _) = import(&bytes, &name, &limits, &mut ignore_progress, |_| MemorySink::default())
        .expect("the snapshot can be read");

    let mut builder = LifetimesBuilder::new();
    let mut state = MemoryState::default();
    let mut moments = Vec::new();
    let mut full_states = memory.states.iter().peekable();
    for (index, event) in memory.events.iter().enumerate() {
        while let Some((_, full)) = full_states.next_if(|(at, _)| *at == index) {
            builder.replace_state(full);
            state = full.clone();
        }
        builder.event(state.event(), event);
        state.apply(event);
        if index % (memory.events.len() / 200 + 1) == 0 {
            moments.push(state.clone());
        }
    }
    let misfits: u64 = state.devices().map(|(_, device)| device.inconsistencies()).sum();
    assert_eq!(misfits, 0, "{name} is consistent");
    moments.push(state);
    let lifetimes = builder.finish();
    for state in &moments {
        for (device, _) in state.devices() {
            let moment = state.event();
            assert_eq!(live(&lifetimes, device, moment), blocks(state, device), "{name}, device {device:?}, {moment}");
        }
    }
}

#[test]
fn live_allocations_match_the_state_of_every_snapshot() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    let files = std::fs::read_dir(folder)
        .expect("the snapshots can be listed")
        .map(|file| file.expect("the snapshot can be read").path());
    let snapshots: Vec<_> = files.filter(|path| path.to_string_lossy().contains(".pickle")).collect();
    assert!(snapshots.len() >= 10);
    snapshots.iter().for_each(|path| check(path));
}
