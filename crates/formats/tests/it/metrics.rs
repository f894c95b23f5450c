//! The metrics at the end of every snapshot equal PyTorch's counters.

use std::path::Path;

use serde_json::Value;
use vramscope_formats::{Limits, ignore_progress, import, unpack};
use vramscope_trace::{DeviceId, DeviceState, MemorySink, MemoryState, Metrics, PoolKind};

/// Returns the `torch.cuda.memory_stats()` of a device; older files have device 0 only.
fn stats(truth: &Value, device: DeviceId) -> Option<&Value> {
    let of_each = truth["device_stats"].get(usize::from(device.0));
    of_each.or_else(|| truth.get("stats").filter(|_| device == DeviceId(0)))
}

/// Compares `torch.cuda.memory_stats()` with the metrics at the end, for each size class and both.
fn check(name: &str, packed: &[u8], truth: &Value) {
    let limits = Limits::default();
    let bytes = unpack(packed, &limits).expect("the snapshot is valid");
    let (memory, _) =
        import(&bytes, name, &limits, &mut ignore_progress, |_| MemorySink::default()).expect("the snapshot is valid");
    let mut state = memory.states.first().map_or_else(MemoryState::default, |(_, state)| state.clone());
    memory.events.iter().for_each(|event| state.apply(event));
    let mut compared = 0;
    for (id, device) in state.devices() {
        if let Some(stats) = stats(truth, id) {
            compare(name, device, stats);
            compared += 1;
        }
    }
    assert!(compared > 0, "{name}");
}

fn compare(name: &str, device: &DeviceState, stats: &Value) {
    for class in ["all", "small_pool", "large_pool"] {
        let metrics = Metrics::at(device, |pool, _| match pool.kind {
            PoolKind::Small => class != "large_pool",
            PoolKind::Large => class != "small_pool",
        });
        let expected = |stat: &str| stats[format!("{stat}.{class}.current")].as_u64();
        let counters = metrics.counters;
        for (stat, value) in [
            ("inactive_split_bytes", metrics.inactive_split_bytes),
            ("inactive_split", metrics.inactive_split),
            ("allocated_bytes", counters.allocated),
            ("active_bytes", counters.active),
            ("reserved_bytes", counters.reserved),
            ("requested_bytes", counters.requested),
        ] {
            assert_eq!(Some(value), expected(stat), "{name}: {stat}.{class}");
        }
    }
}

#[test]
fn metrics_equal_pytorchs_counters() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut checked = 0;
    for folder in ["tests/data", "../shared/snapshots"] {
        let Ok(files) = std::fs::read_dir(root.join(folder)) else {
            println!("SKIPPED: {folder} does not exist");
            continue;
        };
        for path in files.map(|file| file.expect("the folder can be listed").path()) {
            let file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            // The largest snapshot would take a minute and adds no coverage.
            let Some((name, _)) = file.split_once(".pickle").filter(|(name, _)| *name != "big") else { continue };
            let truth = std::fs::read(path.with_file_name(format!("{name}.json"))).expect("the counters can be read");
            let truth = serde_json::from_slice(&truth).expect("the output is JSON");
            check(name, &std::fs::read(&path).expect("the snapshot is valid"), &truth);
            checked += 1;
        }
    }
    assert!(checked >= 10);
}
