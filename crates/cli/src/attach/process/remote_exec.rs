//! Runs a Python program in a process through Python's interface for debuggers (PEP 768, from
//! Python 3.14 on), as `sys.remote_exec` does.
//!
//! The path of a script and a flag are written to a thread's state. The thread runs the script
//! between two instructions of its Python program.

use super::image::PythonImage;
use super::layout::{DebugOffsets, DebuggerSupport, EvalBreaker, MainInterpreter, unknown};
use super::script::ScriptFolder;
use super::stop::{Attempt, StopError};
use super::target::TargetProcess;
use crate::error::{CommandError, Result};

/// The bit of a thread's eval breaker that makes it check for a debugger's script
/// (`_PY_EVAL_PLEASE_STOP_BIT`).
const PLEASE_STOP_BIT: u64 = 1 << 5;
/// Size of the path in a thread's state, in bytes.
const SCRIPT_PATH_BYTES: u64 = 512;
/// Maximum size of a thread's state, in bytes. Larger offsets count as damaged.
const MAX_THREAD_BYTES: u64 = 1 << 14;

/// The threads that run a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Threads {
    /// The process's first thread, which most programs train on.
    Main,
    /// All threads; the first one to check for a debugger's script runs it.
    All,
}

/// Makes `threads` of the process run the starter in `folder`, each once, and adds them to the
/// folder's count of asked threads. Returns an error if another debugger's script is waiting. The
/// process must be stopped.
pub(super) fn request(
    process: &TargetProcess,
    image: &PythonImage,
    folder: &ScriptFolder,
    threads: Threads,
) -> Attempt {
    let (interpreter, support, native_thread_id) = find(process, image)?;
    let is_enabled = process.read_i32(interpreter.address + support.enabled)?;
    if is_enabled == 0 {
        return Err(CommandError::new(format_args!(
            "process {} does not allow debuggers (PYTHON_DISABLE_REMOTE_DEBUG or -X disable-remote-debug): \
             start the program with vramscope run",
            process.pid()
        ))
        .into());
    }
    let path = folder.starter_path();
    if path.len() as u64 >= SCRIPT_PATH_BYTES {
        return Err(CommandError::new(format_args!(
            "{path}: the path is too long for Python: set TMPDIR to a folder with a shorter name"
        ))
        .into());
    }
    let path = [path.as_bytes(), b"\0"].concat();
    let (mut writes, mut is_asked) = (Vec::new(), false);
    for &thread in &interpreter.threads {
        let id = process.read_u64(thread + native_thread_id)?;
        if threads == Threads::Main && id != u64::from(process.pid().as_raw().unsigned_abs()) {
            continue;
        }
        if process.read(thread + support.script_path, path.len())? == path {
            is_asked = true;
        } else if process.read_i32(thread + support.pending_call)? == 0 {
            let breaker = process.read_u64(thread + support.eval_breaker)?;
            writes.push((thread, breaker | PLEASE_STOP_BIT));
        }
    }
    if writes.is_empty() && !is_asked {
        let pid = process.pid();
        return Err(StopError::Busy(format!("process {pid} has to run the script of another debugger first")));
    }
    for (thread, breaker) in writes {
        process.write(thread + support.script_path, &path)?;
        folder.add_asked()?;
        process.write(thread + support.pending_call, &1_i32.to_le_bytes())?;
        process.write(thread + support.eval_breaker, &breaker.to_le_bytes())?;
    }
    Ok(())
}

/// Withdraws the starter in `folder` from the threads that have not run it, and removes these
/// threads from the folder's count. The other threads have opened the starter or are about to open
/// it. The process must be stopped.
pub(super) fn withdraw(process: &TargetProcess, image: &PythonImage, folder: &ScriptFolder) -> Attempt {
    let (interpreter, support, _) = find(process, image)?;
    let path = [folder.starter_path().as_bytes(), b"\0"].concat();
    for thread in interpreter.threads {
        if process.read(thread + support.script_path, path.len())? == path
            && process.read_i32(thread + support.pending_call)? != 0
        {
            process.write(thread + support.pending_call, &0_i32.to_le_bytes())?;
            // A thread that has just read the flag copies the path next.
            process.write(thread + support.script_path, &[0])?;
            folder.remove_asked()?;
        }
    }
    Ok(())
}

/// Returns the main interpreter, the offsets of the interface, and the offset of the id that the
/// kernel gave a thread.
fn find(process: &TargetProcess, image: &PythonImage) -> Result<(MainInterpreter, DebuggerSupport, u64)> {
    let interpreter = MainInterpreter::find(process, image)?;
    let offsets = DebugOffsets::read(process, image)?;
    let (support, native_thread_id) = (offsets.debugger_support(), offsets.native_thread_id());
    let is_breaker_known =
        matches!(interpreter.layout.eval_breaker, EvalBreaker::Thread(offset) if offset == support.eval_breaker);
    let offsets = [support.pending_call, support.script_path, native_thread_id];
    let are_offsets_valid = offsets.iter().all(|offset| *offset < MAX_THREAD_BYTES);
    if is_breaker_known && are_offsets_valid && support.script_path_size == SCRIPT_PATH_BYTES {
        Ok((interpreter, support, native_thread_id))
    } else {
        Err(unknown(process, image))
    }
}
