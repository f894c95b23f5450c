//! The knobs of the allocator.

/// What a program may set. The default is PyTorch's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The most bytes that the pool may hold in segments; a request that needs a segment beyond it is treated as if the device had
    /// refused. PyTorch sets it by `set_per_process_memory_fraction`.
    pub limit_bytes: Option<u64>,
}
