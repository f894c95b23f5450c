//! The operands and the result of `diff`.

use std::path::Path;

use vramscope_insight::comparison::{Comparison, ComparisonError, Moment, RecordingLabel, Side, compare};
use vramscope_trace::{DeviceId, PerRecording};

use super::checks::Check;
use super::operand::Operand;
use crate::error::{CommandError, Result};
use crate::history::read_history;
use crate::input::Input;
use crate::operation::Operation;

/// Sentence in all outputs if the search for moved and renamed code was limited.
const LIMITED_MATCHING: &str = "The programs differ in too much code to search for everything that moved or was \
    renamed: a site may be shown as one that only a has and one that only b has.";

/// The operands and the result of a comparison.
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

    /// Returns a warning if the matching of sites was limited.
    pub(crate) fn matching_warning(&self) -> Option<&'static str> {
        self.comparison.is_matching_limited.then_some(LIMITED_MATCHING)
    }
}

/// Reads the recordings of two operands with `open`, and compares them. If both operands name one
/// file, reads it once.
pub(crate) fn compare_operands(
    operands: &PerRecording<Operand>,
    devices: Option<PerRecording<DeviceId>>,
    open: impl Fn(&Path) -> Result<Input>,
    operation: &Operation,
) -> Result<Comparison> {
    let PerRecording { a, b } = operands;
    let recording_a = open(&a.path)?.into_recording()?;
    let history_a = read_history(&a.path, &recording_a, operation)?;
    let recording_b = if a.has_path_of(b) { None } else { Some(open(&b.path)?.into_recording()?) };
    let history_b = recording_b.as_ref().map(|recording| read_history(&b.path, recording, operation)).transpose()?;
    let sides = PerRecording {
        a: Side { recording: &recording_a, history: &history_a, moment: &a.moment },
        b: Side {
            recording: recording_b.as_ref().unwrap_or(&recording_a),
            history: history_b.as_ref().unwrap_or(&history_a),
            moment: &b.moment,
        },
    };
    operation.check()?;
    compare(sides, devices).map_err(|error| {
        let operand = |label| if label == RecordingLabel::A { a } else { b };
        match error {
            ComparisonError::Unreadable { recording, source } => CommandError::file(&operand(recording).path, source),
            ComparisonError::Moment { recording, source } => CommandError::file(&operand(recording).path, source),
            ComparisonError::NoDevice { recording, device } => {
                CommandError::file(&operand(recording).path, format_args!("has no {device}; vramscope info lists them"))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::{json, markdown};

    #[test]
    fn outputs_say_if_matching_was_limited() {
        let operand = |name: &str| Operand { path: name.into(), moment: Moment::Peak, text: name.to_owned() };
        let mut compared = Compared {
            operands: PerRecording { a: operand("a.vram"), b: operand("b.vram") },
            comparison: Comparison::default(),
            checks: Vec::new(),
        };
        for is_limited in [false, true] {
            compared.comparison.is_matching_limited = is_limited;
            assert_eq!(compared.matching_warning().is_some(), is_limited);
            assert_eq!(markdown::text(&compared).contains(LIMITED_MATCHING), is_limited);
            let json = serde_json::to_value(json::DiffReport::new(&compared)).expect("finite numbers");
            assert_eq!(json["matching_limited"], is_limited);
        }
    }
}
