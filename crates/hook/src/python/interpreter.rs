//! The Python classes that read call stacks and autograd's operations, with methods to check them.

use std::ffi::c_void;

use pyo3::prelude::*;

use super::errors::error;
use crate::interpreter::{ExpectedFrame, FrameWalker, InterpreterBuild, Layout, check_frames};
use crate::torch::{Autograd, layout_of};

/// A frame as Python reports it: address of the code object, last instruction, line, address of the
/// first local variable, file, name; `None` for what is not compared.
type PythonFrame = (usize, Option<i32>, Option<u32>, Option<usize>, Option<String>, Option<String>);

/// A reader of this interpreter's call stacks, as a Python class.
#[pyclass(frozen)]
pub(super) struct Interpreter {
    pub(super) walker: FrameWalker,
    /// Address of the code object of `torch.nn.Module._wrapped_call_impl`, through which modules
    /// are called; 0 if it is unknown.
    pub(super) module_call: usize,
}

#[pymethods]
impl Interpreter {
    /// Finds the layout of this interpreter: `sys.hexversion`, whether it has no global lock,
    /// whether it traces references, and the addresses of `types.CodeType` and of the code object
    /// of `torch.nn.Module._wrapped_call_impl` (0 if unknown).
    #[new]
    fn new(
        hex_version: u32,
        free_threaded: bool,
        trace_refs: bool,
        code_type: usize,
        module_call: usize,
    ) -> PyResult<Self> {
        let build = InterpreterBuild { hex_version, free_threaded, trace_refs };
        let layout = Layout::for_interpreter(build).map_err(error)?;
        let current = pyo3::ffi::PyGILState_GetThisThreadState as *const c_void;
        // SAFETY: The function has no arguments and returns a pointer; only its type is erased.
        let current = unsafe { std::mem::transmute::<*const c_void, unsafe extern "C" fn() -> *mut c_void>(current) };
        // SAFETY: Python passed the address of its type of code objects. Both live as long as the
        // interpreter.
        let walker = unsafe { FrameWalker::new(layout, code_type, current) };
        Ok(Self { walker, module_call })
    }

    /// Checks that the frames read from this thread equal `frames`, innermost first.
    fn check(&self, frames: Vec<PythonFrame>) -> PyResult<()> {
        let expected: Vec<_> = frames
            .iter()
            .map(|(code, instruction_offset, line, first_local, file, name)| ExpectedFrame {
                code: *code,
                instruction_offset: *instruction_offset,
                line: *line,
                first_local: *first_local,
                file_name: file.as_deref(),
                name: name.as_deref(),
            })
            .collect();
        check_frames(&self.walker, &expected).map_err(error)
    }
}

/// A reader of autograd's operations from PyTorch's thread-local variables, as a Python class.
#[pyclass(name = "Autograd", frozen)]
pub(super) struct PyAutograd(pub(super) Autograd);

#[pymethods]
impl PyAutograd {
    /// Finds the variables of PyTorch 2.`minor` in this process.
    #[new]
    fn new(py: Python<'_>, minor: u32) -> PyResult<Self> {
        let layout = layout_of(minor).ok_or_else(|| error(format!("PyTorch 2.{minor} has an unknown layout")))?;
        py.detach(|| Autograd::find(layout.node_sequence)).map(Self).map_err(error)
    }

    /// The sequence number of this thread's next operation, and that of the backward node that the
    /// thread evaluates; `None` for an unknown number.
    fn numbers(&self) -> (Option<u64>, Option<u64>) {
        (self.0.next_sequence(), self.0.node_sequence())
    }

    /// Checks that the autograd node whose Python object is at the address `object` has this
    /// sequence number.
    fn check_node(&self, object: usize, sequence: u64) -> PyResult<()> {
        self.0.check_node(object, sequence).map_err(error)
    }
}
