//! Reads a snapshot from a pickle, protocols 2 to 5.
//!
//! [`Machine`] follows the instructions; what they make lies in the [`heap`] and is named by number ([`value`]); `convert` finds the
//! snapshot in what the machine leaves.

mod convert;
mod entry;
mod heap;
mod input;
mod machine;
mod memo;
mod opcode;
mod value;

use machine::Machine;

pub(crate) use heap::is_unknown_file;

use super::snapshot::Snapshot;
use crate::error::ReadError;
use crate::limits::Limits;

/// Reads a snapshot; `progress` is told the bytes read.
pub(crate) fn read(bytes: &[u8], limits: &Limits, progress: &mut dyn FnMut(usize)) -> Result<Snapshot, ReadError> {
    let mut machine = Machine::new(bytes, limits);
    let top = machine.run(progress)?;
    let end = machine.offset();
    let Machine { mut heap, mut builder, .. } = machine;
    convert::snapshot(top, &mut heap, &mut builder)
        .map_err(|refusal| ReadError::at(end, format!("{refusal}, as found")))?;
    Ok(builder.finish())
}
