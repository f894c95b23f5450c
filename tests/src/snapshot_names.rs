//! The names of recorded PyTorch snapshots, which the tests of `vramscope-formats` read, too.

/// The recordings under `tests/data`.
pub const SMALL: [&str; 5] = ["tiny_inference", "mlp_train", "frag_a_expandable", "ring", "graphs"];

/// Larger recordings, kept beside the checkout; `big` is not among them.
pub const LARGE: [&str; 10] = [
    "cppstacks",
    "frag_a",
    "frag_a_gc",
    "frag_a_maxsplit",
    "frag_a_roundup",
    "gpt_varlen",
    "gpt_varlen_expandable",
    "oom_frag",
    "resnet50_train",
    "two_gpus",
];
