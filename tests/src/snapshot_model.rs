//! The independent model of a PyTorch snapshot, `tests/page/model.py`.

use std::io::Write;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::fixtures::workspace_root;

/// What the model is asked about a snapshot.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Questions {
    /// Devices, each with a moment.
    pub moments: Vec<(u16, u64)>,
    /// Devices, each with the first and the last moment of a range, and the most events from the
    /// allocation to the free of a temporary.
    pub ranges: Vec<(u16, u64, u64, u64)>,
    /// Devices, each with an address.
    pub addresses: Vec<(u16, u64)>,
}

/// What the model answers, in the order of the questions.
#[derive(Clone, Debug, Deserialize)]
pub struct Answers {
    /// Number of events.
    pub events: u64,
    /// By device, the event number and the bytes of the peak of the allocated bytes.
    pub peaks: Vec<(u64, u64)>,
    /// Memory at the moments.
    pub moments: Vec<MomentAnswer>,
    /// What happened in the ranges.
    pub ranges: Vec<RangeAnswer>,
    /// The uses of the addresses.
    pub addresses: Vec<Vec<AddressUse>>,
}

/// A use of an address: the event numbers of its allocation and free, its address and its bytes.
pub type AddressUse = (Option<u64>, Option<u64>, u64, u64);

/// The memory of a device at a moment.
#[derive(Clone, Debug, Deserialize)]
pub struct MomentAnswer {
    /// Bytes of allocated blocks.
    pub allocated_bytes: u64,
    /// Bytes of live blocks.
    pub active_bytes: u64,
    /// Bytes of segments.
    pub reserved_bytes: u64,
    /// Bytes of the largest free gap.
    pub largest_free_bytes: u64,
    /// Number of segments.
    pub segments: u64,
    /// The live blocks.
    pub blocks: Vec<BlockAnswer>,
    /// Bytes and number of the live blocks of each call stack, fewest bytes first.
    pub bytes_by_stack: Vec<(u64, u64)>,
}

/// A live block.
#[derive(Clone, Debug, Deserialize)]
pub struct BlockAnswer {
    /// Address.
    pub address: u64,
    /// Size.
    pub bytes: u64,
    /// Requested size.
    pub requested_bytes: u64,
    /// Number of the event that allocated it; `None` if it is older than the history.
    pub allocated_at: Option<u64>,
    /// Innermost line of the program's own code, `FILE:LINE`.
    pub line: Option<String>,
    /// Whether it is pending free.
    pub is_pending: bool,
}

/// What happened in a range.
#[derive(Clone, Debug, Deserialize)]
pub struct RangeAnswer {
    /// The allocations that were made.
    pub allocations: Vec<AllocationAnswer>,
    /// Those that are never freed.
    pub unfreed: Sums,
    /// Those that are freed soon.
    pub temporaries: Sums,
    /// Action, address and size of each event.
    pub events: Vec<(String, Option<u64>, u64)>,
}

/// An allocation.
#[derive(Clone, Debug, Deserialize)]
pub struct AllocationAnswer {
    /// Address.
    pub address: u64,
    /// Size of its block.
    pub bytes: u64,
    /// Requested size.
    pub requested_bytes: u64,
    /// Number of the event that made it.
    pub allocated_at: u64,
    /// Number of the event that freed it.
    pub freed_at: Option<u64>,
    /// Number of the event from which its memory is free.
    pub completed_at: Option<u64>,
}

/// Number and bytes of some allocations.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub struct Sums {
    /// Number.
    pub allocations: u64,
    /// Bytes of their blocks.
    pub bytes: u64,
}

/// Asks the model about a snapshot, a pickle that is not compressed.
///
/// # Panics
/// Panics if `python3` is missing or the model fails.
#[must_use]
pub fn ask(pickle: &[u8], questions: &Questions) -> Answers {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file can be created");
    file.write_all(pickle).expect("the temporary file can be written");
    let script = workspace_root().join("tests").join("page").join("model.py");
    let mut command = Command::new("python3");
    command.arg(script).arg(file.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start python3: {error}"));
    let questions = serde_json::to_vec(questions).expect("questions are valid JSON");
    child.stdin.take().expect("stdin is piped").write_all(&questions).expect("the model reads the questions");
    let output = child.wait_with_output().expect("the model ends");
    assert!(output.status.success(), "tests/page/model.py: {}", output.status);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("the model's answer: {error}"))
}
