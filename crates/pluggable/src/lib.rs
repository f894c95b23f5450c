//! PyTorch on vramscope's pool: the library that `torch.cuda.memory.CUDAPluggableAllocator` loads.
//!
//! `libvramscope_pluggable.so` hands out and takes back GPU memory for PyTorch, from one pool a GPU in PyTorch's own CUDA context, and
//! records what happens to it. `docs/pytorch.md` has the lines of Python. Everything else is told by environment variables:
//! `VRAMSCOPE_RECORD` names the file of the recording, `VRAMSCOPE_KEEP_BYTES` and `VRAMSCOPE_KEEP` how much of it stays, `VRAMSCOPE_OVERFLOW` what is
//! done when the program is faster than the recorder, `VRAMSCOPE_LISTEN` the address of the live page (`VRAMSCOPE_TOKEN`, `VRAMSCOPE_ALLOW_HOST`,
//! `VRAMSCOPE_TLS_CERT` and `VRAMSCOPE_TLS_KEY` for whom), `VRAMSCOPE_PUSH` the hub that several processes share, and the pool's settings are those
//! that PyTorch reads (`PYTORCH_CUDA_ALLOC_CONF`, `PYTORCH_ALLOC_CONF`).
//!
//! It is no allocator (that is `vramscope-pool`), no device and no recorder (those are `vramscope-collector`): it is their C side.
//!
//! - This file is that side: what PyTorch calls, and what a program calls through `ctypes`. No panic leaves it.
//! - `exception.rs` is how a request fails: by an exception of C++, which PyTorch makes one of Python.
//! - `process.rs` is what stands behind it, for any device: pools, the recording, the page.
//! - `lifetime.rs` says what happens at exit and after a fork.

mod console;
mod environment;
mod exception;
mod gpus;
mod lifetime;
mod process;
mod recording;

use std::env;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock};

use vramscope_collector::{Category, enter_scope, leave_scope, settings_from_env};
use vramscope_trace::{MempoolId, StreamId};

use crate::console::tell;
use crate::exception::Exception;
use crate::gpus::Gpus;
use crate::process::Process;

static PROCESS: OnceLock<Process<Gpus>> = OnceLock::new();

/// The process that called, which begins with its first call; `None` in a forked child.
#[inline]
fn process() -> Option<&'static Process<Gpus>> {
    // First: in a child the other may be half made, by a thread that is not there.
    if lifetime::is_forked_child() { None } else { Some(PROCESS.get_or_init(begin)) }
}

/// The process, if it has begun.
fn begun_process() -> Option<&'static Process<Gpus>> {
    if lifetime::is_forked_child() { None } else { PROCESS.get() }
}

#[cold]
fn begin() -> Process<Gpus> {
    lifetime::watch(at_exit);
    let (wanted, missets) = environment::read(|name| env::var_os(name));
    missets.iter().for_each(|misset| tell(&misset.to_string()));
    let settings = settings_from_env().map_err(|error| error.to_string());
    Process::new(Gpus, settings, wanted, Arc::new(tell))
}

extern "C" fn at_exit() {
    guarded("at exit", (), || {
        if let Some(process) = begun_process() {
            lifetime::set_exiting();
            process.exit();
        }
    });
}

/// Runs what a C function does. A panic, which would be a mistake in here, must not unwind into the caller; the hook has printed it.
#[inline]
fn guarded<T>(name: &str, otherwise: T, work: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        tell(&format!("{name} panicked, which is a mistake in vramscope; please report it"));
        otherwise
    })
}

/// Says that something did not work, in a function that can return no error.
fn complain<E: ToString>(name: &str, result: Result<(), E>) {
    if let Err(error) = result
        && !lifetime::is_exiting()
    {
        tell(&format!("{name}: {}", error.to_string()));
    }
}

/// A private pool's name, as PyTorch passes it: a `std::pair<unsigned long long, unsigned long long>`, which C++ passes as it passes this.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PoolName {
    /// The first number, of pools that PyTorch made.
    pub first: u64,
    /// The second, of pools that a program made.
    pub second: u64,
}

impl From<PoolName> for MempoolId {
    fn from(name: PoolName) -> Self {
        Self(name.first, name.second)
    }
}

/// Hands out `size` bytes of device memory for work on `stream`: the `alloc_fn` of PyTorch's allocator. Null where `size` is 0.
///
/// Where there is no memory, no GPU, or no settings that mean anything, it throws a C++ exception that says so, a `std::runtime_error`; PyTorch
/// makes it a `RuntimeError`. In a process without libstdc++ nobody could catch one: there it says it on stderr and returns null.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn vramscope_malloc(size: usize, device: c_int, stream: *mut c_void) -> *mut c_void {
    let served = guarded("vramscope_malloc", None, || Some(allocate(size, device, stream)));
    // Outside of `guarded`, which must not meet an exception that is not Rust's, and with nothing in this frame to drop.
    match served.unwrap_or_else(|| refuse("vramscope: a request panicked, which is a mistake in vramscope")) {
        Ok(address) => address,
        Err(exception) => exception.throw(),
    }
}

/// What [`vramscope_malloc`] does, with the exception that it throws.
#[inline]
fn allocate(size: usize, device: c_int, stream: *mut c_void) -> Result<*mut c_void, Exception> {
    let Some(process) = process() else {
        return refuse("vramscope: CUDA cannot be used in a forked process; no memory is handed out in it");
    };
    match process.allocate(size as u64, device, StreamId(stream.expose_provenance() as u64)) {
        Ok(Some(address)) => Ok(ptr::with_exposed_provenance_mut(address as usize)),
        Ok(None) => Ok(ptr::null_mut()),
        Err(refused) => refuse(&refused.to_string()),
    }
}

/// The exception that says why a request failed; where none can be thrown, null, said on stderr.
#[cold]
fn refuse(reason: &str) -> Result<*mut c_void, Exception> {
    /// What was said last, so that the same is not said for each of a thousand requests.
    static SAID: Mutex<String> = Mutex::new(String::new());
    if let Some(exception) = Exception::new(reason) {
        return Err(exception);
    }
    // In a forked child another thread of its parent may have left it locked.
    let is_new = SAID.try_lock().map_or(true, |mut said| {
        let is_new = *said != reason;
        reason.clone_into(&mut said);
        is_new
    });
    if is_new {
        tell(reason.strip_prefix("vramscope: ").unwrap_or(reason));
    }
    Ok(ptr::null_mut())
}

/// Takes back memory that [`vramscope_malloc`] handed out: the `free_fn` of PyTorch's allocator. Null is nothing; what was not handed
/// out, or was taken back before, is left alone and stderr says so.
#[unsafe(no_mangle)]
pub extern "C" fn vramscope_free(address: *mut c_void, _size: usize, device: c_int, _stream: *mut c_void) {
    guarded("vramscope_free", (), || {
        if address.is_null() {
            return;
        }
        // In a forked child it is the parent's memory, and the parent will free it.
        let Some(process) = begun_process() else { return };
        complain("vramscope_free", process.free(address.addr() as u64, device));
    });
}

/// PyTorch begins to use its devices: for `set_init_fn`. Serves the page from here on, instead of from the first allocation.
#[unsafe(no_mangle)]
pub extern "C" fn vramscope_init(_device_count: c_int) {
    guarded("vramscope_init", (), || {
        let _ = process();
    });
}

/// `torch.cuda.empty_cache()`: for `set_reset_fn`.
#[unsafe(no_mangle)]
pub extern "C" fn vramscope_empty_cache() {
    guarded("vramscope_empty_cache", (), || {
        if let Some(process) = begun_process() {
            complain("vramscope_empty_cache", process.empty_cache());
        }
    });
}

/// `torch.cuda.set_per_process_memory_fraction()`: for `set_memory_fraction_fn`.
#[unsafe(no_mangle)]
pub extern "C" fn vramscope_set_memory_fraction(fraction: f64, device: c_int) {
    guarded("vramscope_set_memory_fraction", (), || {
        if let Some(process) = process() {
            complain("vramscope_set_memory_fraction", process.set_memory_fraction(fraction, device));
        }
    });
}

/// `torch.Tensor.record_stream()`: for `set_record_stream_fn`.
#[unsafe(no_mangle)]
pub extern "C" fn vramscope_record_stream(address: *mut c_void, stream: *mut c_void) {
    guarded("vramscope_record_stream", (), || {
        // A tensor without elements has no memory.
        if let Some(process) = begun_process().filter(|_| !address.is_null()) {
            let stream = StreamId(stream.expose_provenance() as u64);
            complain("vramscope_record_stream", process.record_stream(address.addr() as u64, stream));
        }
    });
}

/// A graph's capture begins: for `set_begin_allocate_to_pool`.
///
/// `_filter` is where the caller keeps the `std::function` that says of a stream whether it is captured, which cannot be called from C. So
/// until the end everything that is asked for on the device comes from the private pool, of other streams too; that costs memory and
/// nothing else, since blocks are handed out again on their own stream alone.
#[unsafe(no_mangle)]
pub extern "C" fn vramscope_begin_allocate_to_pool(device: c_int, pool: PoolName, _filter: *const c_void) {
    guarded("vramscope_begin_allocate_to_pool", (), || {
        if let Some(process) = process() {
            complain("vramscope_begin_allocate_to_pool", process.begin_allocate_to_pool(device, pool.into()));
        }
    });
}

/// The capture has ended: for `set_end_allocate_to_pool_fn`.
#[unsafe(no_mangle)]
pub extern "C" fn vramscope_end_allocate_to_pool(device: c_int, pool: PoolName) {
    guarded("vramscope_end_allocate_to_pool", (), || {
        if let Some(process) = begun_process() {
            complain("vramscope_end_allocate_to_pool", process.end_allocate_to_pool(device, pool.into()));
        }
    });
}

/// A graph is gone: for `set_release_pool`.
#[unsafe(no_mangle)]
pub extern "C" fn vramscope_release_pool(device: c_int, pool: PoolName) {
    guarded("vramscope_release_pool", (), || {
        if let Some(process) = begun_process() {
            complain("vramscope_release_pool", process.release_pool(device, pool.into()));
        }
    });
}

/// What `torch.cuda.memory_stats()` says on PyTorch's own allocator, as a JSON object, with a 0 behind it; `{}` for a device that was not
/// used. At most `capacity` bytes are written, none where `text` is null. Returns how many there are, the 0 not counted.
///
/// # Safety
/// `text` is null or points at `capacity` bytes that may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramscope_memory_stats_json(device: c_int, text: *mut c_char, capacity: usize) -> usize {
    guarded("vramscope_memory_stats_json", 0, || {
        let json = begun_process().map_or_else(|| "{}".to_owned(), |process| process.memory_stats_json(device));
        if !text.is_null() && capacity > 0 {
            let length = json.len().min(capacity - 1);
            // SAFETY: The caller guarantees `capacity` bytes at `text`, and `length` is less. The string is not among them.
            unsafe {
                ptr::copy_nonoverlapping(json.as_ptr().cast(), text, length);
                text.add(length).write(0);
            }
        }
        json.len()
    })
}

/// Records a named moment, a training step say, on every GPU that is used.
///
/// # Safety
/// `name` is null or points at a string that ends with a 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramscope_mark(name: *const c_char) {
    guarded("vramscope_mark", (), || {
        if let Some(process) = begun_process().filter(|_| !name.is_null()) {
            // SAFETY: It is not null, and the caller guarantees the rest.
            let name = unsafe { CStr::from_ptr(name) };
            process.mark(&name.to_string_lossy());
        }
    });
}

/// Begins a scope on this thread, a module's forward pass say: until [`vramscope_scope_end`], what the thread asks for is recorded as asked for in
/// it, inside of those that have begun before. `category` is null or the name of a [`Category`], `activation` say; any other name is as null.
///
/// # Safety
/// Each is null or points at a string that ends with a 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramscope_scope_begin(name: *const c_char, category: *const c_char) {
    // SAFETY: It is not null, and the caller guarantees the rest.
    let text = |text: *const c_char| (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy());
    guarded("vramscope_scope_begin", (), || {
        let category = text(category).and_then(|name| Category::ALL.into_iter().find(|one| one.name() == name));
        enter_scope(&text(name).unwrap_or_default(), category);
    });
}

/// Ends the scope that began last on this thread, if there is one.
#[unsafe(no_mangle)]
pub extern "C" fn vramscope_scope_end() {
    guarded("vramscope_scope_end", (), leave_scope);
}

/// Whether what happens is recorded from now on (0: no), on every GPU that is used so far. While it is not, events are counted; when it is again, the
/// recording has a gap that says how many there were, and right after it what memory looks like.
#[unsafe(no_mangle)]
pub extern "C" fn vramscope_set_recording(recording: c_int) {
    guarded("vramscope_set_recording", (), || {
        if let Some(process) = begun_process() {
            process.set_recording(recording != 0);
        }
    });
}

/// Ends the recording before the process does. Returns 0 where its file, if any was wanted, is whole, else 1. Memory is handed out and
/// taken back as before, and is not recorded any more.
#[unsafe(no_mangle)]
pub extern "C" fn vramscope_stop() -> c_int {
    guarded("vramscope_stop", 1, || c_int::from(!begun_process().is_none_or(|process| process.stop())))
}
