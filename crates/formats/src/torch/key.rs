//! The names that a snapshot's dictionaries use.

macro_rules! keys {
    ($($variant:ident = $($name:literal)|+,)+) => {
        /// A name that the reader looks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Key {
            $($variant,)+
        }

        impl Key {
            /// The key of this name, if it is one that the reader looks for.
            pub(crate) fn of(name: &str) -> Option<Self> {
                match name {
                    $($($name)|+ => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

keys! {
    // The snapshot.
    Segments = "segments",
    DeviceTraces = "device_traces",
    AllocatorSettings = "allocator_settings",
    ExternalAnnotations = "external_annotations",
    HostSegments = "host_segments",
    HostTraces = "host_traces",
    // An entry of the history.
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
    // A segment and its blocks.
    Device = "device",
    Address = "address",
    TotalSize = "total_size",
    SegmentType = "segment_type",
    IsExpandable = "is_expandable",
    Blocks = "blocks",
    RequestedSize = "requested_size",
    State = "state",
    // What was there in place of a block's frames up to PyTorch 2.0.
    History = "history",
    RealSize = "real_size",
    // A frame.
    Name = "name",
    Filename = "filename",
    Line = "line",
    // An annotation.
    Stage = "stage",
    // The settings.
    AllocConf = "PYTORCH_CUDA_ALLOC_CONF" | "PYTORCH_ALLOC_CONF",
    MaxSplitSize = "max_split_size",
    GarbageCollectionThreshold = "garbage_collection_threshold",
    ExpandableSegments = "expandable_segments",
    Divisions = "roundup_power2_divisions",
    Overflowed = "trace_alloc_overflowed",
}
