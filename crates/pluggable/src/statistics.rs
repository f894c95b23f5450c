//! The C functions for settings, counters and snapshots, which `vramscope.use_pool()` calls.

use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::Arc;

use vramscope_collector::{Settings, settings_from_env};

use crate::process::{Observer, StatsReset};
use crate::{CHOICES, CREATION, catch_panic, existing_process, process, with_process};

/// Writes `message` to `text`, ended by a 0. Writes at most `capacity` bytes with the 0, cutting a
/// longer message, and nothing if `text` is null. Returns the length of the message.
///
/// # Safety
/// `text` is null or points to `capacity` writable bytes.
pub(crate) unsafe fn write_text(message: &str, text: *mut c_char, capacity: usize) -> usize {
    if !text.is_null() && capacity > 0 {
        let length = message.len().min(capacity - 1);
        // SAFETY: The caller guarantees `capacity` bytes at `text`, `length` is less, and the
        // message is another allocation.
        unsafe {
            ptr::copy_nonoverlapping(message.as_ptr().cast(), text, length);
            text.add(length).write(0);
        }
    }
    message.len()
}

/// Returns the string at `text`; `None` for null.
///
/// # Safety
/// `text` is null or points to a string that ends with a 0.
pub(crate) unsafe fn read_text(text: *const c_char) -> Option<String> {
    // SAFETY: The pointer is not null, so the caller guarantees a string.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// Chooses the settings of the pools in the notation of `PYTORCH_CUDA_ALLOC_CONF`. Pools that exist
/// keep their memory limit. Null checks the settings in the environment, which apply if none are
/// chosen. Returns 0, or 1 if the settings are invalid; then the reason is in `text`, as
/// [`vramscope_memory_stats_json`] writes it.
///
/// # Safety
/// `conf` is null or points to a string that ends with a 0, and `text` is null or points to
/// `capacity` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramscope_configure(conf: *const c_char, text: *mut c_char, capacity: usize) -> c_int {
    catch_panic("vramscope_configure", 1, || {
        // SAFETY: The caller guarantees a string or null.
        let result = match unsafe { read_text(conf) } {
            None => settings_from_env().map(drop).map_err(|error| error.to_string()),
            Some(conf) => configure(&conf),
        };
        // SAFETY: The caller guarantees null or `capacity` writable bytes.
        unsafe { write_text(&result.as_ref().err().cloned().unwrap_or_default(), text, capacity) };
        c_int::from(result.is_err())
    })
}

/// Changes the settings of this process, and of children that are forked before it uses a device.
fn configure(conf: &str) -> Result<(), String> {
    let settings = Settings::parse(conf).map_err(|error| error.to_string())?;
    let _creation = CREATION.lock();
    CHOICES.update(|choices| choices.settings = Some(settings));
    existing_process().map_or(Ok(()), |process| process.set_settings(conf))
}

/// Writes the counters of `torch.cuda.memory_stats()` to `text` as a JSON object that ends with a
/// 0; `{}` for a missing device. Writes at most `capacity` bytes with the 0, cutting a longer
/// object, and nothing if `text` is null. Returns the length of the whole object, without the 0.
///
/// # Safety
/// `text` is null or points to `capacity` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramscope_memory_stats_json(device: c_int, text: *mut c_char, capacity: usize) -> usize {
    catch_panic("vramscope_memory_stats_json", 0, || {
        let json = existing_process().map_or_else(|| "{}".to_owned(), |process| process.memory_stats_json(device));
        // SAFETY: The caller guarantees null or `capacity` writable bytes.
        unsafe { write_text(&json, text, capacity) }
    })
}

/// Resets counters of a device: with `kind` 0 the peaks to the current values, as
/// `torch.cuda.reset_peak_memory_stats()` does; with any other `kind` the totals to 0, as
/// `torch.cuda.reset_accumulated_memory_stats()` does. Does nothing for an unused device.
#[unsafe(no_mangle)]
pub extern "C" fn vramscope_reset_stats(device: c_int, kind: c_int) {
    let reset = if kind == 0 { StatsReset::Peaks } else { StatsReset::Accumulated };
    with_process("vramscope_reset_stats", existing_process, |process| process.reset_stats(device, reset));
}

/// Returns the share of a device's memory, from 0 to 1, that its pool may reserve, as
/// `torch.cuda.get_per_process_memory_fraction()` does.
#[unsafe(no_mangle)]
pub extern "C" fn vramscope_memory_fraction(device: c_int) -> f64 {
    catch_panic("vramscope_memory_fraction", 1.0, || {
        existing_process().map_or(1.0, |process| process.memory_fraction(device))
    })
}

/// Takes a snapshot of all pools as a pickle, as `torch.cuda.memory._snapshot()` has it: with the
/// recorded events if `with_history` is not 0 and the recording is kept in memory. Stores the
/// address of the pickle in `bytes`, or that of an error message, and returns its length, or the
/// message's length as a negative number. Pass both to [`vramscope_free_bytes`] afterwards.
///
/// # Safety
/// `bytes` points to a pointer that can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramscope_snapshot(with_history: c_int, bytes: *mut *mut u8) -> isize {
    let result = catch_panic("vramscope_snapshot", Err("internal error".to_owned()), || {
        let process = process().ok_or("this process was forked after CUDA was used, so it has no GPU memory")?;
        process.snapshot_pickle(with_history != 0)
    });
    let (content, sign) = match result {
        Ok(pickle) => (pickle, 1),
        Err(message) => (message.into_bytes(), -1),
    };
    let content = content.into_boxed_slice();
    let length = content.len() as isize;
    // SAFETY: The caller guarantees that `bytes` can be written.
    unsafe { bytes.write(Box::into_raw(content).cast()) };
    sign * length
}

/// Frees the `length` bytes that [`vramscope_snapshot`] returned.
///
/// # Safety
/// `bytes` and `length` are from one call of [`vramscope_snapshot`], without the sign, and are
/// freed once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramscope_free_bytes(bytes: *mut u8, length: usize) {
    // SAFETY: The caller guarantees that this is the slice that `vramscope_snapshot` released.
    drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(bytes, length)) });
}

/// A function that is called at out-of-memory with the device, the requested bytes, and the
/// device's total and free bytes.
pub type OutOfMemoryCallback = extern "C" fn(c_int, u64, u64, u64);

/// Registers `callback`, which is called at every out-of-memory, before the request fails, on the
/// thread of the request. The callback must not throw.
#[unsafe(no_mangle)]
pub extern "C" fn vramscope_attach_out_of_memory_observer(callback: OutOfMemoryCallback) {
    with_process("vramscope_attach_out_of_memory_observer", process, |process| {
        let observer: Observer = Arc::new(move |details| {
            let device = c_int::from(details.device.0);
            callback(device, details.requested, details.device_total_bytes, details.device_free_bytes);
        });
        process.attach_out_of_memory_observer(Arc::clone(&observer));
        CHOICES.update(|choices| choices.observers.push(observer));
    });
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn settings_are_stored_before_or_after_the_state_is_created() {
        let creation = CREATION.lock();
        thread::scope(|scope| {
            let (is_stored, stored) = channel();
            scope.spawn(move || {
                configure("max_split_size_mb:64").expect("valid settings");
                is_stored.send(()).expect("the test waits");
            });
            // By now, a thread that creates the state has read the settings.
            assert_eq!(stored.recv_timeout(Duration::from_millis(200)), Err(RecvTimeoutError::Timeout));
            assert!(CHOICES.get().settings.is_none());
            drop(creation);
            stored.recv().expect("the thread stores the settings");
        });
        assert_eq!(CHOICES.get().settings, Settings::parse("max_split_size_mb:64").ok());
    }
}
