//! What `diff` compared, and the result.

use vramscope_insight::comparison::{Comparison, Moment};
use vramscope_trace::PerRecording;

use super::checks::Check;
use super::operand::Operand;

/// What was compared, and the result.
pub(crate) struct Compared {
    pub(crate) operands: PerRecording<Operand>,
    pub(crate) comparison: Comparison,
    pub(crate) checks: Vec<Check>,
}

impl Compared {
    /// Returns the moments of both recordings.
    pub(crate) fn moments(&self) -> [&Moment; 2] {
        [&self.operands.a.moment, &self.operands.b.moment]
    }
}
