//! Builds and loads the stand-in for PyTorch's library.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::snapshot_devices;
use crate::torch::layout_of;
use crate::torch::layouts::TorchLayout;

/// Folder of the stand-in's source.
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/standin");

/// The bytes of a compiled stand-in; empty until it is compiled.
type CompiledLibrary = Arc<OnceLock<Vec<u8>>>;

/// Compiler options for the stand-in.
pub(super) struct Build(Vec<String>);

impl Build {
    /// Returns the options for the layout of PyTorch 2.`minor`.
    pub(super) fn of(minor: u32) -> Self {
        let layout = layout_of(minor).expect("a known version");
        let TorchLayout { attach_slot, entry_size, time, mempool, compile_context, user_metadata, .. } = *layout;
        let TorchLayout { actions, cxx11_abi, attach_symbol, .. } = *layout;
        let mut options = vec![
            format!("-D_GLIBCXX_USE_CXX11_ABI={}", u32::from(cxx11_abi)),
            format!("-DLAYOUT_ATTACH_SLOT={attach_slot}"),
            format!("-DLAYOUT_ENTRY_SIZE={entry_size}"),
            format!("-DLAYOUT_TIME={time}"),
            format!("-DLAYOUT_ACTIONS={actions}"),
        ];
        let members = [("MEMPOOL", mempool), ("COMPILE_CONTEXT", compile_context), ("USER_METADATA", user_metadata)];
        let members = members.iter().filter_map(|(name, offset)| Some(format!("-DLAYOUT_{name}={}", (*offset)?)));
        options.extend(members);
        if attach_symbol.contains("CachingDeviceAllocator10TraceEntry") {
            options.push("-DLAYOUT_SHARED_ENTRY".to_owned());
        }
        Self(options)
    }

    /// Adds a compiler option.
    pub(super) fn with(mut self, option: &str) -> Self {
        self.0.push(option.to_owned());
        self
    }

    /// Writes the compiled library to a folder. Each set of options is compiled only once.
    #[track_caller]
    pub(super) fn library(&self, folder: &Path) {
        static BUILT: Mutex<BTreeMap<Vec<String>, CompiledLibrary>> = Mutex::new(BTreeMap::new());
        let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
        let library = Arc::clone(built.entry(self.0.clone()).or_default());
        drop(built);
        let path = folder.join("libc10_cuda.so");
        let library = library.get_or_init(|| {
            let options = ["-shared", "-fPIC", "-O2", "-g", "-fvisibility=hidden", "c10_cuda.cpp"];
            assert_eq!(self.compile(&options, &path), None, "g++ compiles the stand-in");
            std::fs::read(&path).expect("g++ has written the library")
        });
        std::fs::write(&path, library).expect("the folder is writable");
    }

    /// Compiles the driver for ThreadSanitizer into a folder and returns its path; `None` if the
    /// compiler has no ThreadSanitizer.
    #[track_caller]
    pub(super) fn thread_sanitizer(&self, folder: &Path) -> Option<PathBuf> {
        let empty = folder.join("empty.cpp");
        std::fs::write(&empty, "int main() {}").expect("a temporary file is written");
        let supported = [empty.to_str().expect("the path is Unicode"), "-fsanitize=thread"];
        if self.compile(&supported, &folder.join("empty")).is_some() {
            return None;
        }
        let program = folder.join("tsan");
        let errors = self.compile(&["-fsanitize=thread", "-O1", "-g", "tsan.cpp"], &program);
        assert_eq!(errors, None, "g++ compiles the driver");
        Some(program)
    }

    /// Compiles a program or a library; returns the errors, if any.
    fn compile(&self, options: &[&str], output: &Path) -> Option<String> {
        let done = Command::new("g++")
            .current_dir(SOURCE)
            .args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-pthread"])
            .args(&self.0)
            .args(options)
            .arg("-o")
            .arg(output)
            .output()
            .expect("g++ is installed");
        (!done.status.success()).then(|| String::from_utf8_lossy(&done.stderr).into_owned())
    }
}

/// An entry of the stand-in's log (`LogEntry` in `device_allocator.h`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogEntry {
    pub(super) action: u64,
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) stream: u64,
    pub(super) time: u64,
}

/// Counts of a storm, a run of threads that allocate and free (`StormCounts` in `storm.h`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StormCounts {
    pub(super) allocations: u64,
    pub(super) frees: u64,
    pub(super) failures: u64,
    pub(super) nanoseconds: u64,
}

impl StormCounts {
    /// Returns the events per second: one for an allocation, two for a free.
    pub(super) fn rate(&self) -> f64 {
        1e9 * (self.allocations + 2 * self.frees) as f64 / self.nanoseconds as f64
    }
}

// SAFETY: Declared as in POSIX and C.
unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Resolves all symbols when a library is loaded.
const RTLD_NOW: c_int = 2;

/// The loaded library. Its functions are safe to call with the numbers of its devices, and with
/// pointers to as much memory as their wrappers below pass.
#[derive(Clone, Copy)]
pub(super) struct Standin {
    init: extern "C" fn(c_int),
    alloc: extern "C" fn(c_int, u64, u64) -> u64,
    free: extern "C" fn(u64) -> bool,
    empty_cache: extern "C" fn(),
    set_limit: extern "C" fn(c_int, u64),
    snapshot: extern "C" fn() -> *mut c_char,
    free_text: extern "C" fn(*mut c_char),
    log: extern "C" fn(c_int, u64, u64, *mut LogEntry) -> u64,
    storm: extern "C" fn(c_int, f64, f64, c_int, u64, *mut StormCounts),
}

/// Returns a function of a library.
///
/// # Safety
/// `F` is the type of a pointer to that function.
unsafe fn function<F>(library: *mut c_void, name: &CStr) -> F {
    assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
    // SAFETY: The library is loaded and the name ends with a zero byte.
    let address = unsafe { dlsym(library, name.as_ptr()) };
    assert!(!address.is_null(), "the stand-in has {name:?}");
    // SAFETY: The caller guarantees that `F` is this function's type.
    unsafe { std::mem::transmute_copy(&address) }
}

impl Standin {
    /// Loads the library from a folder; `None` if there is none.
    pub(super) fn load(folder: &Path) -> Option<Self> {
        let path = folder.join("libc10_cuda.so");
        if !path.exists() {
            return None;
        }
        let path = CString::new(path.as_os_str().as_bytes()).expect("paths have no zero bytes");
        // SAFETY: The stand-in's initializers only allocate memory.
        let library = unsafe { dlopen(path.as_ptr(), RTLD_NOW) };
        assert!(!library.is_null(), "{path:?} can be loaded");
        // SAFETY: The types are those of `c10_cuda.cpp`, and the library is never unloaded.
        Some(unsafe {
            Self {
                init: function(library, c"standin_init"),
                alloc: function(library, c"standin_alloc"),
                free: function(library, c"standin_free"),
                empty_cache: function(library, c"standin_empty_cache"),
                set_limit: function(library, c"standin_set_limit"),
                snapshot: function(library, c"standin_snapshot_json"),
                free_text: function(library, c"standin_free_text"),
                log: function(library, c"standin_log"),
                storm: function(library, c"standin_storm"),
            }
        })
    }

    pub(super) fn init(&self, devices: u16) {
        (self.init)(devices.into())
    }

    pub(super) fn alloc(&self, device: u16, size: u64, stream: u64) -> u64 {
        (self.alloc)(device.into(), size, stream)
    }

    pub(super) fn free(&self, address: u64) -> bool {
        (self.free)(address)
    }

    pub(super) fn empty_cache(&self) {
        (self.empty_cache)()
    }

    pub(super) fn set_limit(&self, device: u16, bytes: u64) {
        (self.set_limit)(device.into(), bytes)
    }

    /// Takes a snapshot as the Python package does, and returns it as JSON.
    pub(super) fn own_snapshot(&self) -> Vec<u8> {
        snapshot_devices::begin();
        let snapshot = self.snapshot();
        snapshot_devices::end();
        snapshot
    }

    /// Takes a snapshot as a program does, and returns it as JSON.
    pub(super) fn snapshot(&self) -> Vec<u8> {
        let text = (self.snapshot)();
        // SAFETY: The text ends with a zero byte, and is freed only after it was copied.
        let copy = unsafe { CStr::from_ptr(text) }.to_bytes().to_vec();
        (self.free_text)(text);
        copy
    }

    /// Returns a device's whole log.
    pub(super) fn log(&self, device: u16) -> Vec<LogEntry> {
        let mut log = Vec::new();
        let mut part = vec![LogEntry::default(); 1 << 16];
        loop {
            let count = (self.log)(device.into(), log.len() as u64, part.len() as u64, part.as_mut_ptr());
            log.extend_from_slice(&part[..count as usize]);
            if count == 0 {
                return log;
            }
        }
    }

    /// Runs 8 threads that allocate and free, `events_per_second` in total, for this many seconds.
    pub(super) fn storm(&self, events_per_second: f64, seconds: f64, devices: u16) -> StormCounts {
        let mut counts = StormCounts::default();
        (self.storm)(8, events_per_second, seconds, devices.into(), 1, &mut counts);
        counts
    }
}
