//! Reads the layout of one version of PyTorch from its wheel.

use std::collections::BTreeMap;

use super::layout::{ACTION_NAMES, COMMON_OFFSETS, WheelLayout, minor_version};
use super::layouts::TorchLayout;
use super::wheel::Wheel;
use super::{compiler, library};
use crate::shell::{self, Result, command};

/// The results of the probe for a wheel.
#[derive(Debug)]
pub(crate) struct Measured {
    /// The entry for the table.
    pub(crate) wheel: WheelLayout,
    /// The values of [`COMMON_OFFSETS`], in order.
    pub(crate) common_offsets: [usize; COMMON_OFFSETS.len()],
}

/// Compiles and runs `probe.cpp` with the wheel's headers, and checks the result with the wheel's
/// libraries.
pub(crate) fn measure(wheel: &Wheel) -> Result<Measured> {
    let cxx11_abi = library::has_cxx11_abi(&wheel.library("libc10.so"))?;
    let source = compiler::source_dir().join("probe.cpp");
    let program = compiler::compile(wheel, cxx11_abi, &source, "probe").map_err(|error| {
        format!("{error}\n  A class of PyTorch has changed: adapt xtask/src/torch_layouts and the hook.")
    })?;
    let output = shell::output(&mut command(&program.to_string_lossy()))
        .ok_or_else(|| format!("{} failed: run it to see why", program.display()))?;
    let values: BTreeMap<&str, &str> = output.lines().filter_map(|line| line.split_once(' ')).collect();
    let text = |name: &str| values.get(name).copied().ok_or_else(|| format!("probe.cpp printed no {name}: add it"));
    let number =
        |name: &str| text(name)?.parse::<usize>().map_err(|error| format!("probe.cpp printed a wrong {name}: {error}"));
    let optional = |name: &str| if text(name)? == "absent" { Ok(None) } else { number(name).map(Some) };
    let attach_slot = number("attach_slot")?;
    library::check_torch_cpu(&wheel.torch_cpu_exports()?)?;
    let layout = TorchLayout {
        minor: minor_version(&wheel.version)?,
        attach_slot,
        entry_size: number("entry_size")?,
        time: number("time_")?,
        mempool: optional("mempool_")?,
        compile_context: optional("compile_context_")?,
        user_metadata: optional("user_metadata_")?,
        actions: count_actions(text("actions")?)?,
        cxx11_abi,
        node_sequence: number("sequence_nr_")?,
        attach_symbol: library::attach_symbol(&wheel.library("libc10_cuda.so"), attach_slot as u64)?.leak(),
    };
    let mut common_offsets = [0; COMMON_OFFSETS.len()];
    for (offset, (_, _, member)) in common_offsets.iter_mut().zip(COMMON_OFFSETS) {
        *offset = number(member)?;
    }
    Ok(Measured { wheel: WheelLayout { version: wheel.version.clone(), layout }, common_offsets })
}

/// Returns the number of actions in a list of their names. Fails if they are not the first of
/// [`ACTION_NAMES`].
fn count_actions(names: &str) -> Result<u32> {
    let names: Vec<&str> = names.split_whitespace().collect();
    if ACTION_NAMES.starts_with(&names) {
        return Ok(names.len() as u32);
    }
    Err(format!(
        "the actions of TraceEntry are {}, but the hook knows {}: \
         add new ones to the hook and to ACTION_NAMES in xtask/src/torch_layouts/layout.rs",
        names.join(", "),
        ACTION_NAMES.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_of_a_wheel_must_begin_the_list_of_known_actions() {
        assert_eq!(count_actions(&ACTION_NAMES[..9].join(" ")), Ok(9));
        assert_eq!(count_actions(&ACTION_NAMES.join(" ")), Ok(10));
        assert!(count_actions("ALLOC FREE_COMPLETED").is_err());
        assert!(count_actions(&format!("{} NEW", ACTION_NAMES.join(" "))).is_err());
    }
}
