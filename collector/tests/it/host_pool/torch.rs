//! The functions with PyTorch's names: counters, summary, snapshot and settings.

use vramscope_collector::{AllocateError, HostDevice, HostPool, Settings};
use vramscope_trace::{NullSink, StreamId};

use crate::host_pool::MIB;
use crate::host_pool::test_sink::recorded_pool;

#[test]
fn byte_counters_match_pytorch() {
    let (pool, _) = recorded_pool(64 * MIB);
    let small = pool.alloc_zeros::<u8>(1000).unwrap();
    let large = pool.alloc_zeros::<u8>(3 << 20).unwrap();
    assert_eq!((pool.memory_allocated(), pool.memory_reserved()), (1024 + 3 * MIB, 22 * MIB));
    drop(large);
    assert_eq!((pool.memory_allocated(), pool.max_memory_allocated()), (1024, 1024 + 3 * MIB));
    pool.reset_peak_memory_stats();
    assert_eq!((pool.max_memory_allocated(), pool.max_memory_reserved()), (1024, 22 * MIB));
    pool.empty_cache().unwrap();
    assert_eq!((pool.memory_reserved(), pool.max_memory_reserved()), (2 * MIB, 22 * MIB));
    assert_eq!(pool.memory_stats().allocated_bytes.all.freed, 3 * MIB);
    pool.reset_accumulated_memory_stats();
    assert_eq!(pool.memory_stats().allocated_bytes.all.freed, 0);
    drop(small);
}

#[test]
fn stats_and_summary_have_pytorchs_form() {
    let (pool, _) = recorded_pool(64 * MIB);
    let _buffer = pool.alloc_zeros::<u8>(1000).unwrap();
    let stats = serde_json::to_value(pool.memory_stats()).unwrap();
    assert_eq!(stats["allocated_bytes.all.current"], 1024);
    assert_eq!(stats["reserved_bytes.small_pool.peak"], 2 * MIB);
    let (summary, short) = (pool.memory_summary(false), pool.memory_summary(true));
    assert!(summary.contains("PyTorch CUDA memory summary, device ID 0"), "{summary}");
    assert!(summary.contains("from small pool") && !short.contains("from small pool"));
}

#[test]
fn mem_get_info_returns_free_and_total_bytes() {
    let (pool, _) = recorded_pool(64 * MIB);
    let buffer = pool.alloc_zeros::<u8>(1).unwrap();
    let memory = pool.mem_get_info();
    assert_eq!((memory.free_bytes, memory.total_bytes), (62 * MIB, 64 * MIB));
    drop(buffer);
}

#[test]
fn memory_fraction_caps_reserved_bytes() {
    let (pool, _) = recorded_pool(64 * MIB);
    pool.set_per_process_memory_fraction(0.5).unwrap();
    let within = pool.alloc_zeros::<u8>(30 << 20).unwrap();
    let Err(AllocateError::OutOfMemory(details)) = pool.alloc_zeros::<u8>(30 << 20) else { panic!("over the limit") };
    assert_eq!((details.limit_bytes, details.device_free_bytes), (Some(32 * MIB), 34 * MIB));
    for wrong in [-0.1, 1.5, f64::NAN] {
        let error = pool.set_per_process_memory_fraction(wrong).unwrap_err();
        assert!(error.to_string().contains(&format!("invalid memory fraction {wrong}")), "{error}");
    }
    pool.set_per_process_memory_fraction(1.0).unwrap();
    assert!(pool.alloc_zeros::<u8>(30 << 20).is_ok());
    drop(within);
}

#[test]
fn changed_settings_keep_the_memory_limit() {
    let (pool, _) = recorded_pool(256 * MIB);
    pool.set_per_process_memory_fraction(0.5).unwrap();
    pool.set_allocator_settings("max_split_size_mb:64,large_segment_size_mb:40").unwrap();
    let settings = pool.allocator_settings();
    assert_eq!((settings.max_split_size_bytes, settings.per_process_memory_fraction), (Some(64 * MIB), 0.5));
    assert!(pool.set_allocator_settings("max_split_size_mb:").is_err());
    assert_eq!(pool.allocator_settings(), settings);
    let _buffer = pool.alloc_zeros::<u8>(2 << 20).unwrap();
    assert_eq!(pool.memory_reserved(), 40 * MIB);
}

#[test]
fn settings_apply_from_the_start() {
    let settings = Settings::parse("roundup_power2_divisions:4").unwrap();
    let pool = HostPool::new(HostDevice::new(64 << 20), settings, NullSink, || 0);
    let _buffer = pool.alloc_zeros::<u8>(1_300_000).unwrap();
    assert_eq!(pool.memory_allocated(), MIB + MIB / 4);
}

#[test]
fn snapshot_has_pytorchs_keys() {
    let (pool, _) = recorded_pool(64 * MIB);
    let scope = pool.scope("model");
    let first = pool.alloc_zeros::<u8>(1000).unwrap();
    let line = line!() - 1;
    let second = pool.on(&StreamId(7)).alloc_zeros::<u8>(3 << 20).unwrap();
    drop(scope);
    let segments = pool.memory_snapshot();
    let values = serde_json::to_value(&segments).unwrap();
    let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let segment_keys = [
        "active_size",
        "address",
        "allocated_size",
        "blocks",
        "device",
        "frames",
        "is_expandable",
        "requested_size",
        "segment_pool_id",
        "segment_type",
        "stream",
        "total_size",
    ];
    assert_eq!(keys(&values[0]), segment_keys);
    assert_eq!(keys(&values[0]["blocks"][0]), ["address", "frames", "requested_size", "size", "state"]);
    let small = values.as_array().unwrap().iter().find(|segment| segment["segment_type"] == "small").unwrap();
    assert_eq!(small["segment_pool_id"], serde_json::json!([0, 0]));
    assert_eq!((&small["total_size"], &small["allocated_size"]), (&(2 * MIB).into(), &1024.into()));
    let blocks = small["blocks"].as_array().unwrap();
    assert_eq!((&blocks[0]["state"], &blocks[1]["state"]), (&"active_allocated".into(), &"inactive".into()));
    assert_eq!((&blocks[0]["requested_size"], blocks[0]["address"].as_u64()), (&1000.into(), Some(first.address())));
    let frame = &blocks[0]["frames"][0];
    assert!(frame["filename"].as_str().unwrap().ends_with("torch.rs"));
    assert_eq!((&frame["line"], &frame["name"]), (&line.into(), &"model".into()));
    assert_eq!(blocks[1]["frames"], serde_json::json!([]));

    second.record_stream(&StreamId(0)).unwrap();
    // The free is pending until the next request; taking a snapshot is not one.
    drop(second);
    let segments = pool.memory_snapshot();
    let large = segments.iter().find(|segment| segment.stream == 7).unwrap();
    assert_eq!((large.allocated_size, large.active_size, large.requested_size), (0, 3 * MIB, 3 * MIB));
    let state = serde_json::to_value(large.blocks[0].state).unwrap();
    assert_eq!(state, "active_pending_free");
}
