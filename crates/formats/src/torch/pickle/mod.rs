//! Reads a snapshot from a pickle of protocol 2 to 5.
//!
//! [`Machine`] executes the instructions. The values that they create are in the [`heap`] and
//! referred to by number ([`value`]). `convert` finds the snapshot in the result.

mod convert;
mod fast_entry;
mod heap;
mod input;
mod machine;
mod memo;
pub(crate) mod opcode;
mod value;

use machine::Machine;

use super::snapshot::Snapshot;
use crate::error::ReadError;
use crate::limits::Limits;

/// Reads a PyTorch snapshot from a pickle; `progress` receives the number of bytes read so far.
pub(crate) fn read(bytes: &[u8], limits: &Limits, progress: &mut dyn FnMut(usize)) -> Result<Snapshot, ReadError> {
    let mut machine = Machine::new(bytes, limits);
    let top = machine.run(progress)?;
    let end = machine.offset();
    let Machine { mut heap, mut builder, .. } = machine;
    convert::snapshot(top, &mut heap, &mut builder).map_err(|error| ReadError::at(end, error.to_string()))?;
    Ok(builder.finish())
}
