//! The conditions of `--fail-if`, evaluated for each device.

use comfy_table::CellAlignment;
use vramscope_insight::comparison::{Comparison, DeviceComparison};
use vramscope_insight::conditions::{Condition, Evaluation};
use vramscope_trace::{DeviceId, PerRecording};

use crate::error::{CommandError, Result};
use crate::table;

/// A condition and whether it holds for each compared device.
pub(crate) struct Check {
    pub(crate) condition: Condition,
    pub(crate) devices: Vec<(PerRecording<DeviceId>, Evaluation)>,
}

impl Check {
    /// Returns true if the condition holds for a device: the check fails.
    pub(crate) fn fails(&self) -> bool {
        self.devices.iter().any(|(_, evaluation)| evaluation.holds)
    }
}

/// Evaluates all conditions. Returns an error if no device is in both recordings: otherwise no
/// condition would hold for a run that recorded nothing.
pub(crate) fn check(conditions: &[Condition], comparison: &Comparison) -> Result<Vec<Check>> {
    let is_in_both = |device: &DeviceComparison| device.totals.a.is_some() && device.totals.b.is_some();
    if !conditions.is_empty() && !comparison.devices.iter().any(is_in_both) {
        return Err(CommandError::new("--fail-if: no device is in both recordings: name two with --device A:B"));
    }
    let checks = conditions.iter().map(|condition| {
        let devices = comparison.devices.iter().map(|device| (device.device, condition.evaluate(&device.totals)));
        Check { condition: condition.clone(), devices: devices.collect() }
    });
    Ok(checks.collect())
}

/// Returns the devices as text: `device 0`, or `device 0 and device 1`.
pub(crate) fn device_names(device: PerRecording<DeviceId>) -> String {
    if device.a == device.b { device.a.to_string() } else { format!("{} and {}", device.a, device.b) }
}

/// Returns the text for a check's result: `FAIL` or `pass`.
pub(crate) const fn outcome(fails: bool) -> &'static str {
    if fails { "FAIL" } else { "pass" }
}

/// Returns the table of all conditions for the terminal.
pub(crate) fn table(checks: &[Check], columns: Option<u16>) -> String {
    let mut table = table::new(["", "a", "b", "change", "fails if"], 1);
    table.column_mut(4).expect("the table has five columns").set_cell_alignment(CellAlignment::Left);
    for check in checks {
        for (device, Evaluation { values, holds }) in &check.devices {
            let evaluation = Evaluation { values: *values, holds: *holds };
            let name = if check.devices.len() > 1 { format!(", {}", device_names(*device)) } else { String::new() };
            table.add_row([
                outcome(*holds).to_owned(),
                values.a.text(),
                values.b.text(),
                evaluation.change_text(),
                format!("{}{name}", check.condition),
            ]);
        }
    }
    table::render(table, columns)
}
