//! The fuzz target for tables of buffers and their placement.

use vramscope_formats::{BufferTable, Limits};
use vramscope_insight::packing::{Buffer, Packer, check_placement};

/// Number of steps of the search for a placement.
const STEPS: u64 = 200_000;

/// Reads a table of buffers, places the buffers, checks that they do not overlap, and writes the
/// table with their offsets.
pub fn buffers(data: &[u8]) {
    place(data);
    if !data.starts_with(b"id") {
        place(&[b"id,lower,upper,size\n", data].concat());
    }
}

/// Reads a table, and places and writes its buffers.
fn place(bytes: &[u8]) {
    let table = match BufferTable::read(bytes, &Limits::default()) {
        Ok(table) => table,
        Err(error) => {
            assert!(error.offset <= bytes.len() as u64, "the offset is inside the file: {error}");
            assert!(!error.message.is_empty(), "an error has a message");
            return;
        }
    };
    let rows = table.rows().iter();
    let buffers: Vec<Buffer> = rows.map(|row| Buffer { lower: row.lower, upper: row.upper, size: row.size }).collect();
    let Ok(mut packer) = Packer::new(&buffers) else { return };
    let first = packer.state();
    let state = packer.advance(STEPS);
    assert!(state.lower_bound_bytes <= state.height_bytes && state.height_bytes <= first.height_bytes, "{state:?}");
    assert_eq!(check_placement(&buffers, &packer.offsets()), Ok(state.height_bytes));
    let mut written = Vec::new();
    table.write_placement(&packer.offsets(), &mut written).expect("writing to memory succeeds");
    let lines = written.iter().filter(|&&byte| byte == b'\n').count();
    assert_eq!(lines, buffers.len() + 1, "each buffer has a line");
}
