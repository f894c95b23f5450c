//! The C functions for the recording: marks, scopes, its start and its end.

use std::env;
use std::ffi::{CStr, OsString, c_char, c_int};
use std::path::Path;

use vramscope_collector::session::read_recording_options;
use vramscope_collector::{Category, Overflow, enter_scope, leave_scope};
use vramscope_trace::AnnotationStage;

use crate::process::SessionStart;
use crate::statistics::{read_text, write_text};
use crate::{catch_panic, existing_process, parent_rank, process, with_process};

/// Environment variable that the argument `listen` of [`vramscope_start`] replaces.
const LISTEN: &str = "VRAMSCOPE_LISTEN";
/// Environment variable that the argument `record` of [`vramscope_start`] replaces.
const RECORD: &str = "VRAMSCOPE_RECORD";

/// Records a mark (a named moment, such as the start of a training step) on every GPU in use. Does
/// nothing if `name` is null or nothing is recorded.
///
/// # Safety
/// `name` is null or points to a string that ends with a 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramscope_mark(name: *const c_char) {
    // SAFETY: The caller guarantees a string or null.
    unsafe { vramscope_mark_stage(name, 0) }
}

/// Records a mark if `stage` is 0, the beginning of a span if it is 1, and the span's end if it is
/// 2, on every GPU in use. A span that begins before the first GPU is used is recorded if it is
/// still open then. Does nothing if `name` is null or nothing is recorded.
///
/// # Safety
/// `name` is null or points to a string that ends with a 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramscope_mark_stage(name: *const c_char, stage: c_int) {
    // SAFETY: The caller guarantees a string or null.
    let name = unsafe { read_text(name) };
    let stage = match stage {
        1 => AnnotationStage::Begin,
        2 => AnnotationStage::End,
        _ => AnnotationStage::Instant,
    };
    with_process("vramscope_mark_stage", existing_process, |process| {
        name.iter().for_each(|name| process.mark(name, stage));
    });
}

/// Begins a scope on this thread, such as a module's forward pass. Until [`vramscope_scope_end`],
/// the thread's requests are recorded in it, nested in the scopes that began before. `category` is
/// null or the name of a [`Category`], such as `activation`; other names count as null.
///
/// # Safety
/// Each argument is null or points to a string that ends with a 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramscope_scope_begin(name: *const c_char, category: *const c_char) {
    // SAFETY: The pointer is not null, so the caller guarantees a string.
    let text = |text: *const c_char| (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy());
    catch_panic("vramscope_scope_begin", (), || {
        let category = text(category).and_then(|name| Category::ALL.into_iter().find(|one| one.name() == name));
        enter_scope(&text(name).unwrap_or_default(), category);
    });
}

/// Ends the innermost scope that [`vramscope_scope_begin`] began on this thread, if there is one.
#[unsafe(no_mangle)]
pub extern "C" fn vramscope_scope_end() {
    catch_panic("vramscope_scope_end", (), leave_scope);
}

/// Pauses (`enabled` is 0) or resumes (any other value) the recording of every GPU in use. While it
/// is paused, events are only counted; after it resumes, the recording has a gap with their number,
/// followed by a full state.
#[unsafe(no_mangle)]
pub extern "C" fn vramscope_set_recording(enabled: c_int) {
    with_process("vramscope_set_recording", existing_process, |process| process.set_recording(enabled != 0));
}

/// Ends the recording while the process continues; later allocations are not recorded. Returns 0 if
/// the recording's file is complete or none was requested, else 1.
#[unsafe(no_mangle)]
pub extern "C" fn vramscope_stop() -> c_int {
    catch_panic("vramscope_stop", 1, || c_int::from(!existing_process().is_none_or(|process| process.stop())))
}

/// Starts a recording while the process runs: with a page at the address `listen` and a file
/// `record`, unless they are null. Its newest part is also kept in memory. If pools exist, it
/// begins with their present state. Other options are those of the environment.
///
/// Returns 0 if the recording was started and 2 if one is already in progress, and writes the
/// page's address to `text`. Returns 1 if the recording could not be started, and writes the reason
/// to `text`. The text is cut as by
/// [`vramscope_memory_stats_json`](crate::statistics::vramscope_memory_stats_json).
///
/// # Safety
/// `listen` and `record` are null or point to strings that end with a 0, and `text` is null or
/// points to `capacity` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramscope_start(
    listen: *const c_char,
    record: *const c_char,
    text: *mut c_char,
    capacity: usize,
) -> c_int {
    // SAFETY: The caller guarantees strings or null.
    let (listen, record) = unsafe { (read_text(listen), read_text(record)) };
    let result = catch_panic("vramscope_start", Err("internal error".to_owned()), || start(listen, record));
    let (status, message) = match result {
        Ok(SessionStart::Started(url)) => (0, url.unwrap_or_default()),
        Ok(SessionStart::InProgress(url)) => (2, url.unwrap_or_default()),
        Err(reason) => (1, reason),
    };
    // SAFETY: The caller guarantees null or `capacity` writable bytes.
    unsafe { write_text(&message, text, capacity) };
    status
}

/// Starts a recording for [`vramscope_start`].
fn start(listen: Option<String>, record: Option<String>) -> Result<SessionStart, String> {
    let wants_page = listen.is_some();
    vramscope_fleet::register();
    let (mut options, errors) = read_recording_options(|name| match name {
        LISTEN => listen.as_ref().map(OsString::from),
        RECORD => record.as_ref().map(OsString::from),
        _ => env::var_os(name),
    });
    if let Some(error) = errors.first().filter(|_| wants_page && options.listen.is_none()) {
        return Err(error.to_string());
    }
    // The program waits if the recorder is too slow, so that this recording has every event.
    options.overflow = options.overflow.or(Some(Overflow::Wait));
    options.parent_rank = parent_rank();
    process()
        .ok_or("this process was forked after CUDA was used, so nothing can be recorded in it")?
        .start_session(options)
}

/// Writes the newest part of the recording, up to now, to the file at `path`. Returns 0, or 1 with
/// the reason in `text`.
///
/// # Safety
/// `path` points to a string that ends with a 0, and `text` is null or points to `capacity`
/// writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramscope_save(path: *const c_char, text: *mut c_char, capacity: usize) -> c_int {
    // SAFETY: The caller guarantees a string.
    let path = unsafe { read_text(path) };
    let result = catch_panic("vramscope_save", Err("internal error".to_owned()), || {
        let process = existing_process().ok_or("nothing is recorded in memory yet")?;
        process.save(Path::new(&path.unwrap_or_default()))
    });
    // SAFETY: The caller guarantees null or `capacity` writable bytes.
    unsafe { write_text(result.as_ref().err().map_or("", String::as_str), text, capacity) };
    c_int::from(result.is_err())
}

/// Ends the recording and its page; another can be started then. Returns what [`vramscope_stop`]
/// returns.
#[unsafe(no_mangle)]
pub extern "C" fn vramscope_close() -> c_int {
    catch_panic("vramscope_close", 1, || c_int::from(!existing_process().is_none_or(|process| process.shut_down())))
}
