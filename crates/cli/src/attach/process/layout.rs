//! The layout of CPython's internal state by version: offsets in bytes, on x86-64 Linux.
//!
//! The structures are private to CPython and do not change within a minor version as a rule. The
//! offsets were printed by C programs that include the headers of 3.10.13, 3.11.7, 3.12.1, 3.13.0,
//! 3.13.15 and 3.14.8. Everything that is read by them is checked before anything is written.

use super::image::{PythonImage, PythonVersion};
use super::target::{Mapping, TargetProcess};
use crate::error::{CommandError, Result};

/// Offsets in `PyThreadState` of the next thread's state and of the interpreter.
const THREAD_NEXT: u64 = 8;
const THREAD_INTERPRETER: u64 = 16;
/// Maximum number of threads of an interpreter. A longer list of threads counts as damaged.
const MAX_THREADS: usize = 1 << 16;
/// The beginning of `_PyRuntime` from Python 3.13 on.
const DEBUG_COOKIE: &[u8; 8] = b"xdebugpy";

/// Offsets in the data structures of one minor version of Python.
#[derive(Debug)]
pub(super) struct Layout {
    /// In `_PyRuntime`: pointer to the main interpreter's state.
    main_interpreter: u64,
    /// In the interpreter's state: pointer to the first thread's state.
    first_thread: u64,
    /// In the interpreter's state: the queue of pending calls.
    pub(super) queue: u64,
    /// The variable that makes the interpreter check the queue.
    pub(super) eval_breaker: EvalBreaker,
}

/// The variable that makes a thread leave its evaluation loop for pending work, by its offset.
#[derive(Clone, Copy, Debug)]
pub(super) enum EvalBreaker {
    /// In the interpreter's state: a 32-bit truth value.
    Interpreter(u64),
    /// In each thread's state: 64 bits.
    Thread(u64),
}

impl Layout {
    /// Returns the offsets of a supported version.
    pub(super) fn of(version: PythonVersion) -> &'static Self {
        /// The offsets of Python 3.10 to 3.14, in order.
        const LAYOUTS: [Layout; 5] = [
            Layout { main_interpreter: 40, first_thread: 8, queue: 80, eval_breaker: EvalBreaker::Interpreter(68) },
            Layout { main_interpreter: 48, first_thread: 16, queue: 112, eval_breaker: EvalBreaker::Interpreter(100) },
            Layout { main_interpreter: 48, first_thread: 72, queue: 400, eval_breaker: EvalBreaker::Interpreter(368) },
            Layout { main_interpreter: 640, first_thread: 7344, queue: 32, eval_breaker: EvalBreaker::Thread(24) },
            Layout { main_interpreter: 816, first_thread: 7344, queue: 32, eval_breaker: EvalBreaker::Thread(24) },
        ];
        &LAYOUTS[usize::from(version.minor - 10)]
    }
}

/// The main interpreter of a process, whose data structures were checked. Valid while the process
/// is stopped.
#[derive(Debug)]
pub(super) struct MainInterpreter {
    /// Address of the interpreter's state.
    pub(super) address: u64,
    /// Addresses of the threads' states.
    pub(super) threads: Vec<u64>,
    pub(super) layout: &'static Layout,
}

impl MainInterpreter {
    /// Finds the main interpreter and the threads that run Python.
    pub(super) fn find(process: &TargetProcess, image: &PythonImage) -> Result<Self> {
        let layout = Layout::of(image.version);
        if image.version.minor >= 13 {
            check_debug_offsets(process, image, layout)?;
        }
        let address = process.read_u64(image.runtime + layout.main_interpreter)?;
        if address == 0 {
            return Err(CommandError::new(format_args!("process {} has not started Python yet", process.pid())));
        }
        let mut threads = Vec::new();
        let mut thread =
            process.read_u64(address.wrapping_add(layout.first_thread)).map_err(|_| unknown(process, image))?;
        while thread != 0 {
            let interpreter = process.read_u64(thread.wrapping_add(THREAD_INTERPRETER));
            if interpreter.ok() != Some(address) || threads.len() >= MAX_THREADS {
                return Err(unknown(process, image));
            }
            threads.push(thread);
            thread = process.read_u64(thread + THREAD_NEXT)?;
        }
        if threads.is_empty() { Err(unknown(process, image)) } else { Ok(Self { address, threads, layout }) }
    }
}

/// Checks the interpreter's description of itself, from Python 3.13 on.
fn check_debug_offsets(process: &TargetProcess, image: &PythonImage, layout: &Layout) -> Result {
    let offsets = DebugOffsets::read(process, image)?;
    if offsets.is_free_threaded() {
        return Err(CommandError::new(format_args!(
            "process {} runs a free-threaded build of Python {}, which is not supported: use a Python with \
             the global interpreter lock",
            process.pid(),
            image.version
        )));
    }
    // The head of the list of interpreters precedes the pointer to the main interpreter.
    if offsets.interpreters_head() != layout.main_interpreter - 8 || offsets.first_thread() != layout.first_thread {
        return Err(unknown(process, image));
    }
    Ok(())
}

/// The structure `_Py_DebugOffsets` at the beginning of `_PyRuntime`, from Python 3.13 on, as
/// 64-bit numbers.
pub(super) struct DebugOffsets(Vec<u64>);

impl DebugOffsets {
    /// Number of 64-bit numbers in the structure of Python 3.14, the longer one.
    const LEN: usize = 95;

    /// Reads the structure and checks its beginning.
    pub(super) fn read(process: &TargetProcess, image: &PythonImage) -> Result<Self> {
        let bytes = process.read(image.runtime, Self::LEN * 8)?;
        let (numbers, _) = bytes.as_chunks::<8>();
        let offsets = Self(numbers.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect());
        let version = PythonVersion::from_hex(offsets.0[1] as u32);
        if numbers[0] != *DEBUG_COOKIE || version != Some(image.version) {
            return Err(unknown(process, image));
        }
        Ok(offsets)
    }

    /// Returns true if the interpreter was built without the global interpreter lock.
    fn is_free_threaded(&self) -> bool {
        self.0[2] != 0
    }

    /// Returns the offset in `_PyRuntime` of the pointer to the first interpreter's state.
    fn interpreters_head(&self) -> u64 {
        self.0[5]
    }

    /// Returns the offset in an interpreter's state of the pointer to the first thread's state.
    fn first_thread(&self) -> u64 {
        self.0[9]
    }

    /// Returns the offset in a thread's state of the id that the kernel gave the thread (3.14).
    pub(super) fn native_thread_id(&self) -> u64 {
        self.0[28]
    }

    /// Returns the offsets for remote debugging (3.14).
    pub(super) fn debugger_support(&self) -> DebuggerSupport {
        let [eval_breaker, support, enabled, pending_call, script_path, script_path_size] =
            self.0[89..95].try_into().expect("six numbers");
        DebuggerSupport {
            eval_breaker,
            enabled,
            pending_call: support + pending_call,
            script_path: support + script_path,
            script_path_size,
        }
    }
}

/// Offsets of the interface for debuggers of PEP 768, in a thread's state unless noted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DebuggerSupport {
    pub(super) eval_breaker: u64,
    /// In the interpreter's state: whether the interface is enabled, a 32-bit number.
    pub(super) enabled: u64,
    /// Whether a script is to be run, a 32-bit number.
    pub(super) pending_call: u64,
    /// The path of the script.
    pub(super) script_path: u64,
    /// Size of the path with its final zero, in bytes.
    pub(super) script_path_size: u64,
}

/// Creates the error for an interpreter whose data structures differ from the known ones.
pub(super) fn unknown(process: &TargetProcess, image: &PythonImage) -> CommandError {
    CommandError::new(format_args!(
        "process {}: this build of Python {} has an unknown memory layout, nothing was changed: \
         start the program with vramscope run",
        process.pid(),
        image.version
    ))
}

/// Returns true if the address is zero or lies in code.
pub(super) fn is_function_or_null(mappings: &[Mapping], address: u64) -> bool {
    let is_code = |mapping: &Mapping| mapping.is_executable && (mapping.start..mapping.end).contains(&address);
    address == 0 || mappings.iter().any(is_code)
}
