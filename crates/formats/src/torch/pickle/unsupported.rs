//! Errors for instructions that are unknown, or would run code and are not executed.

use super::input::StepError;
use super::machine::Machine;
use super::opcode as op;
use super::value::Value;

/// Maximum number of characters of a class name in an error message; the rest is cut.
const MAX_NAME_LEN: usize = 100;

impl Machine {
    /// Returns the error for an opcode that is unknown or would run code.
    #[cold]
    pub(super) fn unsupported(&mut self, opcode: u8) -> StepError {
        let Some(action) = op::unsupported_action(opcode) else {
            return StepError::from(format!("0x{opcode:02x} is not an instruction of pickle protocols 2 to 5"));
        };
        let names = match opcode {
            op::GLOBAL | op::INST => {
                let rest = self.input.rest();
                let rest = String::from_utf8_lossy(&rest[..rest.len().min(2 * MAX_NAME_LEN)]).into_owned();
                Some(rest.split('\n').take(2).map(display_name).collect::<Vec<_>>())
            }
            op::STACK_GLOBAL => match self.stack[..] {
                [.., Value::Text(module), Value::Text(name)] => {
                    Some([module, name].map(|text| display_name(self.heap.strings.text(text))).to_vec())
                }
                _ => None,
            },
            _ => None,
        };
        let name = names.map_or_else(String::new, |names| format!(" {}", names.join(".")));
        StepError::from(format!("this pickle is not plain data: it {action}{name}, which is not executed"))
    }
}

/// Returns a class name from the pickle for a message: without control characters, and at most
/// [`MAX_NAME_LEN`] characters.
fn display_name(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(MAX_NAME_LEN).collect()
}
