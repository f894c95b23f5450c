//! PyTorch on vramscope's pool: the library that `torch.cuda.memory.CUDAPluggableAllocator` loads.
//!
//! `libvramscope_pluggable.so` allocates GPU memory for PyTorch from one pool for each GPU, in
//! PyTorch's own CUDA context, and records what happens. `vramscope.use_pool()` of the Python
//! package loads it (`docs/pytorch.md`). Environment variables have all options:
//!
//! - `VRAMSCOPE_RECORD`: the recording's file; `VRAMSCOPE_KEEP_BYTES` and `VRAMSCOPE_KEEP` limit
//!   it.
//! - `VRAMSCOPE_LISTEN`: the address of the page; `VRAMSCOPE_TOKEN`, `VRAMSCOPE_ALLOW_HOST`,
//!   `VRAMSCOPE_TLS_CERT` and `VRAMSCOPE_TLS_KEY` control access to it.
//! - `VRAMSCOPE_PUSH`: the server that several processes share.
//! - `VRAMSCOPE_OVERFLOW`: what happens when the program is faster than the recorder.
//! - `PYTORCH_CUDA_ALLOC_CONF`, `PYTORCH_ALLOC_CONF`: the allocator's settings, as in PyTorch.
//!
//! The allocator is in `vramscope-pool`, devices and recorder are in `vramscope-collector`; this
//! crate is their C interface.
//!
//! - This file has the functions that PyTorch calls, `recording.rs` and `statistics.rs` those that
//!   a program or `vramscope.use_pool()` calls through `ctypes`. No panic leaves them.
//! - `allocator.rs` adds functions that PyTorch's class for pluggable allocators lacks.
//! - `exception.rs` reports a failed request as a C++ exception, which PyTorch turns into a Python
//!   exception; `c10_error.rs` has PyTorch's own exception for out of memory.
//! - `process.rs` has the state behind the functions: pools, recording and page, for any device.
//! - The collector's module `session` records the process and handles exit and fork.

pub mod allocator;
mod c10_error;
mod cuda_devices;
mod exception;
mod loaded;
mod process;
pub mod recording;
pub mod statistics;

use std::env;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use vramscope_collector::session::lifecycle::{self, InheritedValue, ProcessLocal, ProcessMutex};
use vramscope_collector::session::{RecordingOptions, read_recording_options, stderr_log as log};
use vramscope_collector::{Rank, Settings, settings_from_env};
use vramscope_trace::{MempoolId, StreamId};

use crate::cuda_devices::CudaDevices;
use crate::exception::{Exception, Failure};
use crate::process::{Observer, ProcessState};

/// The library's state, with GPUs.
type CudaProcess = ProcessState<CudaDevices>;

/// The library's state in this process (pools, recording and page), created by the first call that
/// needs it. A forked child has a state of its own.
static PROCESS: ProcessLocal<OnceLock<CudaProcess>> = ProcessLocal::new();

/// The rank of this process's parent at the fork, stored by [`vramscope_after_fork`].
static PARENT_RANK: ProcessLocal<OnceLock<Rank>> = ProcessLocal::new();

/// Detects forks from the moment on when the library is loaded.
// SAFETY: The loader calls each function in this section once, with arguments that the function
// ignores.
#[used]
#[unsafe(link_section = ".init_array")]
static DETECT_FORKS: extern "C" fn() = lifecycle::detect_forks;

/// The settings and out-of-memory observers that the program has set. They also apply to children
/// that are forked before the program uses a device.
#[derive(Clone, Default)]
struct Choices {
    /// `None` for the settings of the environment.
    settings: Option<Settings>,
    observers: Vec<Observer>,
}

/// The program's choices, which forked children inherit.
static CHOICES: InheritedValue<Choices> = InheritedValue::new();

/// Locked while the library's state is created, and while [`Choices`] are stored and applied to it.
/// Without the lock, a thread could store a choice after another thread has read the choices for a
/// new state, and before that state exists.
static CREATION: ProcessMutex<()> = ProcessMutex::new();

/// Returns the library's state in this process, creating it in the first call; `None` in a child of
/// a process that had used the driver before the fork: CUDA does not work there.
#[inline]
fn process() -> Option<&'static CudaProcess> {
    // A child does not use its parent's state, because the parent's threads may have left it
    // inconsistent.
    if cuda_devices::is_unusable() { None } else { Some(PROCESS.get().get().unwrap_or_else(create_process)) }
}

/// Creates the library's state in this process, unless another thread just did.
#[cold]
fn create_process() -> &'static CudaProcess {
    let _creation = CREATION.lock();
    PROCESS.get().get_or_init(initialize)
}

/// Returns the library's state in this process; `None` if no call has created it yet, and in a
/// child of a process that had used the driver before the fork.
fn existing_process() -> Option<&'static CudaProcess> {
    if cuda_devices::is_unusable() { None } else { PROCESS.get().get() }
}

/// Creates the library's state from the environment variables and the program's choices, and
/// installs the log and the handlers for exit and fork.
fn initialize() -> CudaProcess {
    /// True once the handler is registered, also by a parent: children inherit it.
    static HAS_EXIT_HANDLER: AtomicBool = AtomicBool::new(false);
    log::install();
    if !HAS_EXIT_HANDLER.load(Ordering::Relaxed) {
        lifecycle::call_at_exit(at_exit);
        HAS_EXIT_HANDLER.store(true, Ordering::Relaxed);
    }
    vramscope_fleet::register();
    let (options, errors) = read_recording_options(|name| env::var_os(name));
    errors.iter().for_each(|error| log::print(&error.to_string()));
    let choices = CHOICES.get();
    let settings = choices.settings.map_or_else(|| settings_from_env().map_err(|error| error.to_string()), Ok);
    let process = ProcessState::new(CudaDevices, settings, options_of_process(options), Arc::new(log::print));
    choices.observers.into_iter().for_each(|observer| process.attach_out_of_memory_observer(observer));
    process
}

/// Returns the options of the environment for this process. A forked child that pushes leaves page
/// and file to its parent; the file of another child has the process id in its name, because
/// several processes cannot write one file.
fn options_of_process(options: RecordingOptions) -> RecordingOptions {
    if !lifecycle::is_forked_child() {
        return options;
    }
    match options.push {
        Some(_) => RecordingOptions { listen: None, record: None, parent_rank: parent_rank(), ..options },
        None => options.with_process_id(std::process::id()),
    }
}

/// Returns the rank of the parent of a forked child; no numbers elsewhere.
pub(crate) fn parent_rank() -> Rank {
    PARENT_RANK.get().get().copied().unwrap_or_default()
}

/// The handler that runs when the process exits: completes the recording's file and ends the
/// server. Memory can still be allocated and freed afterwards.
extern "C" fn at_exit() {
    with_process("exit handler", existing_process, |process| {
        lifecycle::set_exiting();
        process.shut_down();
    });
}

/// Runs the body of the C function `name`, which must not unwind into its caller. Returns `default`
/// after a panic, which is a bug in vramscope, and prints that it happened.
#[inline]
fn catch_panic<T>(name: &str, default: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        log::print(&format!("internal error: {name} panicked; please report this"));
        default
    })
}

/// Runs the body of the C function `name` with the library's state that `find` returns, if there is
/// one.
#[inline]
fn with_process(name: &str, find: impl FnOnce() -> Option<&'static CudaProcess>, body: impl FnOnce(&CudaProcess)) {
    catch_panic(name, (), || find().map_or((), body));
}

/// As [`with_process`], for a body that can fail. The function cannot return the error, so it is
/// printed to stderr, except while the process exits.
#[inline]
fn try_with_process<E: ToString>(
    name: &str,
    find: impl FnOnce() -> Option<&'static CudaProcess>,
    body: impl FnOnce(&CudaProcess) -> Result<(), E>,
) {
    with_process(name, find, |process| {
        if let Err(error) = body(process)
            && !lifecycle::is_exiting()
        {
            log::print(&format!("{name}: {}", error.to_string()));
        }
    });
}

/// A private pool's id as PyTorch passes it: `c10::cuda::MempoolId_t`, a
/// `std::pair<unsigned long long, unsigned long long>`, which the C++ ABI passes like this struct.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MempoolPair {
    /// Nonzero for pools that PyTorch created for a graph capture.
    pub first: u64,
    /// Nonzero for pools that the program created.
    pub second: u64,
}

impl From<MempoolPair> for MempoolId {
    fn from(id: MempoolPair) -> Self {
        Self(id.first, id.second)
    }
}

/// Allocates `size` bytes of device memory for work on `stream`: the `alloc_fn` of PyTorch's
/// allocator. Returns null if `size` is 0.
///
/// Throws a C++ exception if the request fails: PyTorch's `c10::OutOfMemoryError` if there is no
/// memory, which becomes `torch.OutOfMemoryError`, and a `std::runtime_error` if there is no GPU or
/// the settings are invalid, which becomes a `RuntimeError`. In a process without libstdc++ nothing
/// could catch it, so the function prints the reason on stderr and returns null.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn vramscope_malloc(size: usize, device: c_int, stream: *mut c_void) -> *mut c_void {
    // The exception unwinds this frame, so there is nothing to drop or to catch in it.
    match try_allocate(size, device, stream) {
        Ok(address) => address,
        Err(exception) => exception.throw(),
    }
}

/// Allocates device memory for [`vramscope_malloc`], or returns the exception that it must throw,
/// also after a panic.
///
/// It is not part of [`vramscope_malloc`], because the exception unwinds that function's frame. A
/// frame that catches panics has handlers, which use the unwinder that this library is linked with;
/// in the wheel, that is not the unwinder of the C++ exception.
#[inline(never)]
fn try_allocate(size: usize, device: c_int, stream: *mut c_void) -> Result<*mut c_void, Exception> {
    let result = catch_panic("vramscope_malloc", None, || Some(allocate(size, device, stream)));
    let panicked = || fail(Failure::Other, "vramscope: internal error: a request panicked; please report this");
    result.unwrap_or_else(panicked)
}

/// Allocates device memory for [`vramscope_malloc`]. Returns its address (null for size 0), or the
/// exception that `vramscope_malloc` must throw.
#[inline]
fn allocate(size: usize, device: c_int, stream: *mut c_void) -> Result<*mut c_void, Exception> {
    let Some(process) = process() else {
        return fail(
            Failure::Other,
            "vramscope: cannot allocate in a forked process, where CUDA does not work: start processes with spawn",
        );
    };
    match process.allocate(size as u64, device, StreamId(stream.expose_provenance() as u64)) {
        Ok(Some(address)) => Ok(ptr::with_exposed_provenance_mut(address as usize)),
        Ok(None) => Ok(ptr::null_mut()),
        Err(error) => fail(error.failure(), &error.to_string()),
    }
}

/// Returns the C++ exception for a failed request, with `reason` as its message. In a process
/// without libstdc++, which cannot throw one, prints the reason and returns null.
#[cold]
fn fail(failure: Failure, reason: &str) -> Result<*mut c_void, Exception> {
    /// The reason of a failed request that was printed last, so that a thousand failing requests
    /// print it once.
    static LAST_PRINTED: Mutex<String> = Mutex::new(String::new());
    if let Some(exception) = Exception::new(failure, reason) {
        return Err(exception);
    }
    // Does not wait for the lock, which a thread of the parent may hold in a forked child.
    let is_new = LAST_PRINTED.try_lock().map_or(true, |mut last| {
        let is_new = *last != reason;
        reason.clone_into(&mut last);
        is_new
    });
    if is_new {
        log::print(reason.strip_prefix("vramscope: ").unwrap_or(reason));
    }
    Ok(ptr::null_mut())
}

/// Frees memory that [`vramscope_malloc`] returned: the `free_fn` of PyTorch's allocator. Does
/// nothing for null. Any other address that is not allocated is ignored and reported on stderr.
#[unsafe(no_mangle)]
pub extern "C" fn vramscope_free(address: *mut c_void, _size: usize, device: c_int, _stream: *mut c_void) {
    // In a forked child the memory belongs to the parent, which frees it.
    let process = || existing_process().filter(|_| !address.is_null());
    try_with_process("vramscope_free", process, |process| process.free(address.addr() as u64, device));
}

/// Initializes the library and the driver; pass it to `set_init_fn` of PyTorch's
/// `CUDAPluggableAllocator`. The page is served from this call on, instead of from the first
/// allocation.
#[unsafe(no_mangle)]
pub extern "C" fn vramscope_init(_device_count: c_int) {
    with_process("vramscope_init", process, ProcessState::list_devices);
}

/// Prepares the library for a forked child, before the child changes its environment. A child
/// whose environment keeps the rank of its parent is recorded without a rank.
#[unsafe(no_mangle)]
pub extern "C" fn vramscope_after_fork() {
    catch_panic("vramscope_after_fork", (), || {
        let _ = PARENT_RANK.get().set(Rank::from_env());
    });
}

/// Releases the cached segments of all GPUs, as `torch.cuda.empty_cache()` does; pass it to
/// `set_reset_fn` of PyTorch's `CUDAPluggableAllocator`. A failure is printed to stderr.
#[unsafe(no_mangle)]
pub extern "C" fn vramscope_empty_cache() {
    try_with_process("vramscope_empty_cache", existing_process, ProcessState::empty_cache);
}

/// Limits a device's pool to `fraction`, from 0 to 1, of the device's memory, as
/// `torch.cuda.set_per_process_memory_fraction()` does; pass it to `set_memory_fraction_fn` of
/// PyTorch's `CUDAPluggableAllocator`. Any other fraction changes nothing and is reported on
/// stderr.
#[unsafe(no_mangle)]
pub extern "C" fn vramscope_set_memory_fraction(fraction: f64, device: c_int) {
    let set = |process: &CudaProcess| process.set_memory_fraction(fraction, device);
    try_with_process("vramscope_set_memory_fraction", process, set);
}

/// Records that `stream` uses the block at `address`, as `torch.Tensor.record_stream()` does, so
/// that the block's memory is not reused before the stream's work is done. Pass it to
/// `set_record_stream_fn` of PyTorch's `CUDAPluggableAllocator`.
#[unsafe(no_mangle)]
pub extern "C" fn vramscope_record_stream(address: *mut c_void, stream: *mut c_void) {
    // A tensor without elements has a null address.
    let process = || existing_process().filter(|_| !address.is_null());
    let stream = StreamId(stream.expose_provenance() as u64);
    let record = |process: &CudaProcess| process.record_stream(address.addr() as u64, stream);
    try_with_process("vramscope_record_stream", process, record);
}

/// Serves a device's requests from the private pool `pool` from now on; pass it to
/// `set_begin_allocate_to_pool` of PyTorch's `CUDAPluggableAllocator`.
///
/// `_filter` points to a `std::function` that tells whether a stream is captured, which C cannot
/// call. So until the end of the capture all requests of the device use the private pool, those of
/// other streams too. That costs memory, but is correct: blocks are only reused on their own
/// stream.
#[unsafe(no_mangle)]
pub extern "C" fn vramscope_begin_allocate_to_pool(device: c_int, pool: MempoolPair, _filter: *const c_void) {
    let begin = |process: &CudaProcess| process.begin_allocate_to_pool(device, pool.into());
    try_with_process("vramscope_begin_allocate_to_pool", process, begin);
}

/// Stops serving a device's requests from the private pool `pool`; pass it to
/// `set_end_allocate_to_pool_fn` of PyTorch's `CUDAPluggableAllocator`.
#[unsafe(no_mangle)]
pub extern "C" fn vramscope_end_allocate_to_pool(device: c_int, pool: MempoolPair) {
    let end = |process: &CudaProcess| process.end_allocate_to_pool(device, pool.into());
    try_with_process("vramscope_end_allocate_to_pool", existing_process, end);
}

/// Ends one use of a private pool, when a graph is destroyed; after the last use, its segments can
/// be released. Pass it to `set_release_pool` of PyTorch's `CUDAPluggableAllocator`.
#[unsafe(no_mangle)]
pub extern "C" fn vramscope_release_pool(device: c_int, pool: MempoolPair) {
    let release = |process: &CudaProcess| process.release_pool(device, pool.into());
    try_with_process("vramscope_release_pool", existing_process, release);
}
