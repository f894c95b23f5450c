//! The dictionary keys of a snapshot.

macro_rules! keys {
    ($($variant:ident = $($name:literal)|+,)+) => {
        /// A dictionary key of a PyTorch snapshot that the import uses; other keys are skipped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum SnapshotKey {
            $($variant,)+
        }

        impl SnapshotKey {
            /// Returns the key with this name, or `None` if the import does not use it.
            pub(crate) fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($($name)|+ => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

keys! {
    // Keys of the outermost dictionary.
    Segments = "segments",
    DeviceTraces = "device_traces",
    AllocatorSettings = "allocator_settings",
    ExternalAnnotations = "external_annotations",
    HostSegments = "host_segments",
    HostTraces = "host_traces",
    // Keys of a history entry.
    Action = "action",
    Addr = "addr",
    DeviceFree = "device_free",
    Size = "size",
    Stream = "stream",
    TimeUs = "time_us",
    UserMetadata = "user_metadata",
    CompileContext = "compile_context",
    PoolId = "pool_id" | "segment_pool_id",
    Frames = "frames",
    // Keys of a segment and its blocks.
    Device = "device",
    Address = "address",
    TotalSize = "total_size",
    SegmentType = "segment_type",
    IsExpandable = "is_expandable",
    Blocks = "blocks",
    RequestedSize = "requested_size",
    State = "state",
    // Up to PyTorch 2.0 blocks have these instead of frames.
    History = "history",
    RealSize = "real_size",
    // Keys of a call frame.
    Name = "name",
    Filename = "filename",
    Line = "line",
    // Keys of an annotation.
    Stage = "stage",
    // Keys of the allocator settings.
    AllocConf = "PYTORCH_CUDA_ALLOC_CONF" | "PYTORCH_ALLOC_CONF",
    MaxSplitSize = "max_split_size",
    GarbageCollectionThreshold = "garbage_collection_threshold",
    ExpandableSegments = "expandable_segments",
    Divisions = "roundup_power2_divisions",
    Overflowed = "trace_alloc_overflowed",
}
