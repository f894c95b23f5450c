//! Loads the library as PyTorch does: a file whose functions are found by name, in a separate
//! process.

use std::env;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::ptr;

use vramscope_collector::CudaDevice;

const FUNCTIONS: [&CStr; 27] = [
    c"vramscope_malloc",
    c"vramscope_free",
    c"vramscope_init",
    c"vramscope_empty_cache",
    c"vramscope_set_memory_fraction",
    c"vramscope_record_stream",
    c"vramscope_begin_allocate_to_pool",
    c"vramscope_end_allocate_to_pool",
    c"vramscope_release_pool",
    c"vramscope_memory_stats_json",
    c"vramscope_mark",
    c"vramscope_stop",
    c"vramscope_attach_out_of_memory_observer",
    c"vramscope_close",
    c"vramscope_complete_allocator",
    c"vramscope_configure",
    c"vramscope_free_bytes",
    c"vramscope_mark_stage",
    c"vramscope_memory_fraction",
    c"vramscope_reset_stats",
    c"vramscope_save",
    c"vramscope_scope_begin",
    c"vramscope_scope_end",
    c"vramscope_set_recording",
    c"vramscope_snapshot",
    c"vramscope_start",
    c"vramscope_after_fork",
];

/// Set in the child process that loads the library.
const CHILD_VARIABLE: &str = "VRAMSCOPE_TEST_CHILD";

// SAFETY: All are declared as in POSIX.
unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlclose(library: *mut c_void) -> c_int;
    fn fork() -> c_int;
    fn waitpid(process: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn exit(status: c_int) -> !;
}

const RTLD_NOW: c_int = 2;

type Malloc = extern "C" fn(usize, c_int, *mut c_void) -> *mut c_void;
type Free = extern "C" fn(*mut c_void, usize, c_int, *mut c_void);
type Stats = extern "C" fn(c_int, *mut c_char, usize) -> usize;
type Mark = extern "C" fn(*const c_char);
type NoArguments = extern "C" fn();
type Stop = extern "C" fn() -> c_int;
type Start = extern "C" fn(*const c_char, *const c_char, *mut c_char, usize) -> c_int;

struct Library(*mut c_void);

/// Returns the library that cargo built beside this test.
fn library_path() -> PathBuf {
    let folder = env::current_exe().expect("this test has a path").parent().expect("the path has a folder").to_owned();
    let paths = [folder.join("..").join("libvramscope_pluggable.so"), folder.join("libvramscope_pluggable.so")];
    paths.into_iter().find(|path| path.is_file()).expect("cargo builds the library first")
}

impl Library {
    fn open() -> Self {
        let path = CString::new(library_path().to_str().expect("the path is Unicode")).expect("the path has no 0");
        // SAFETY: The path ends with a 0. On loading, the library only runs the standard library's
        // initializers.
        let library = unsafe { dlopen(path.as_ptr(), RTLD_NOW) };
        assert!(!library.is_null(), "the library can be loaded");
        Self(library)
    }

    fn address(&self, name: &CStr) -> *mut c_void {
        // SAFETY: The library is open and the name ends with a 0.
        let address = unsafe { dlsym(self.0, name.as_ptr()) };
        assert!(!address.is_null(), "the library exports {name:?}");
        address
    }

    fn function<F: Copy>(&self, name: &CStr) -> F {
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>(), "a function pointer has the size of an address");
        let address = self.address(name);
        // SAFETY: Every caller passes the type that the function has in `lib.rs`.
        unsafe { std::mem::transmute_copy(&address) }
    }
}

/// Runs the test `name` of this file in a child process with these environment variables.
fn run_in_child(name: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env::current_exe().expect("this test has a path"));
    command.args(["--exact", name, "--nocapture", "--test-threads", "1"]).env(CHILD_VARIABLE, "1");
    command.envs(variables.iter().copied()).output().expect("the program runs")
}

/// Returns the messages that a successful process printed.
fn printed_messages(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{:?}\n{text}", output.status);
    text.lines().filter(|line| line.starts_with("vramscope: ")).map(str::to_owned).collect()
}

fn is_child() -> bool {
    env::var_os(CHILD_VARIABLE).is_some()
}

/// Returns true on a machine with a GPU, where the expectations of these tests do not hold;
/// `tests/gpu/run.sh` tests the library there.
fn has_gpu() -> bool {
    CudaDevice::list().is_ok_and(|devices| !devices.is_empty())
}

/// Returns why this machine has no GPU to allocate from.
fn no_gpu_reason() -> String {
    CudaDevice::list().expect_err("there is no CUDA driver").to_string()
}

#[test]
fn library_exports_every_function_and_stays_loaded() {
    let library = Library::open();
    let first = FUNCTIONS.map(|name| library.address(name).addr());
    // SAFETY: The library was opened once and is closed once; it is linked to stay loaded.
    unsafe { dlclose(library.0) };
    let again = Library::open();
    assert_eq!(FUNCTIONS.map(|name| again.address(name).addr()), first);
}

#[test]
fn without_a_gpu_every_function_returns_and_the_reason_is_printed_once() {
    if has_gpu() {
        eprintln!("SKIPPED: this machine has a GPU");
        return;
    }
    if !is_child() {
        let name = "without_a_gpu_every_function_returns_and_the_reason_is_printed_once";
        let messages = printed_messages(&run_in_child(
            name,
            &[("VRAMSCOPE_RECORD", "/nowhere/a.vram"), ("VRAMSCOPE_LISTEN", "nonsense")],
        ));
        assert_eq!(messages.len(), 3, "{messages:?}");
        assert!(messages[0].starts_with("vramscope: VRAMSCOPE_LISTEN: expected an address"), "{messages:?}");
        assert!(messages[0].contains("not \"nonsense\""), "{messages:?}");
        assert_eq!(messages[1], format!("vramscope: cannot allocate: {}", no_gpu_reason()));
        assert!(messages[2].starts_with("vramscope: vramscope_free: 0x200"), "{messages:?}");
        return;
    }
    let library = Library::open();
    let (malloc, free): (Malloc, Free) = (library.function(FUNCTIONS[0]), library.function(FUNCTIONS[1]));
    let (stats, mark): (Stats, Mark) = (library.function(FUNCTIONS[9]), library.function(FUNCTIONS[10]));
    let stop: Stop = library.function(FUNCTIONS[11]);
    let null = ptr::null_mut();
    // Nothing is printed before the first request.
    free(null, 512, 0, null);
    mark(c"too soon".as_ptr());
    assert_eq!((stop(), stats(0, ptr::null_mut(), 0)), (0, 2));
    for device in [0, 0, 1, -1] {
        assert!(malloc(512, device, null).is_null());
    }
    free(null, 512, 0, null);
    free(ptr::without_provenance_mut(512), 512, 0, null);
    let empty_cache: NoArguments = library.function(FUNCTIONS[3]);
    empty_cache();
    mark(ptr::null());
    let mut text: [c_char; 2] = [1; 2];
    assert_eq!(stats(0, text.as_mut_ptr(), 2), 2);
    assert_eq!(text, [b'{' as c_char, 0]);
    assert_eq!(stop(), 0);
}

#[test]
fn invalid_settings_are_printed() {
    if has_gpu() {
        eprintln!("SKIPPED: this machine has a GPU");
        return;
    }
    if !is_child() {
        let messages = printed_messages(&run_in_child(
            "invalid_settings_are_printed",
            &[("PYTORCH_CUDA_ALLOC_CONF", "expandable:1")],
        ));
        assert_eq!(messages.len(), 1, "{messages:?}");
        let expected = "vramscope: cannot allocate: PYTORCH_CUDA_ALLOC_CONF: ";
        assert!(messages[0].starts_with(expected) && messages[0].contains("expandable"), "{messages:?}");
        return;
    }
    let malloc: Malloc = Library::open().function(FUNCTIONS[0]);
    assert!(malloc(512, 0, ptr::null_mut()).is_null());
}

#[test]
fn forked_child_cannot_allocate_and_exits() {
    if !is_child() {
        let messages = printed_messages(&run_in_child("forked_child_cannot_allocate_and_exits", &[]));
        let expected =
            "vramscope: cannot allocate in a forked process, where CUDA does not work: start processes with spawn";
        assert_eq!(messages.iter().filter(|line| *line == expected).count(), 1, "{messages:?}");
        return;
    }
    let library = Library::open();
    let (malloc, free): (Malloc, Free) = (library.function(FUNCTIONS[0]), library.function(FUNCTIONS[1]));
    let null = ptr::null_mut();
    free(malloc(512, 0, null), 512, 0, null);
    // SAFETY: The child calls the library and exits, as a data loader's worker may; it waits for no
    // lock.
    let child = unsafe { fork() };
    if child == 0 {
        let fails = malloc(512, 0, null).is_null() && malloc(512, 0, null).is_null();
        free(ptr::without_provenance_mut(512), 512, 0, null);
        let stop: Stop = library.function(FUNCTIONS[11]);
        // SAFETY: Ends the child and runs its exit handlers, which this test covers.
        unsafe { exit(if fails && stop() == 0 { 7 } else { 1 }) }
    }
    let mut status = 0;
    // SAFETY: `status` is a valid variable.
    assert_eq!(unsafe { waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 7 << 8, "requests failed in the child, and it exited by itself");
}

#[test]
fn child_forked_before_the_driver_is_used_has_its_own_state() {
    if has_gpu() {
        eprintln!("SKIPPED: this machine has a GPU");
        return;
    }
    if !is_child() {
        let name = "child_forked_before_the_driver_is_used_has_its_own_state";
        let messages = printed_messages(&run_in_child(name, &[]));
        let expected = format!("vramscope: cannot allocate: {}", no_gpu_reason());
        assert_eq!(messages, [expected.as_str(); 2], "one in the child of the child, one in the child");
        return;
    }
    let library = Library::open();
    let (malloc, stop): (Malloc, Stop) = (library.function(FUNCTIONS[0]), library.function(FUNCTIONS[11]));
    let (start, after_fork): (Start, NoArguments) = (library.function(FUNCTIONS[25]), library.function(FUNCTIONS[26]));
    let null = ptr::null_mut();
    let starts = || start(ptr::null(), ptr::null(), ptr::null_mut(), 0);
    // Creates the library's state without a request for memory.
    assert_eq!((starts(), starts()), (0, 2));
    let fork_and_check = |check: &dyn Fn() -> bool| {
        // SAFETY: The child calls the library and exits; it waits for no lock of its parent.
        let child = unsafe { fork() };
        if child == 0 {
            after_fork();
            // SAFETY: Ends the child and runs its exit handlers, which this test covers.
            unsafe { exit(if check() { 7 } else { 1 }) }
        }
        let mut status = 0;
        // SAFETY: `status` is a valid variable.
        unsafe { waitpid(child, &mut status, 0) == child && status == 7 << 8 }
    };
    let in_grandchild = || starts() == 0 && malloc(512, 0, null).is_null() && stop() == 0;
    let in_child = || starts() == 0 && fork_and_check(&in_grandchild) && malloc(512, 0, null).is_null();
    assert!(fork_and_check(&in_child));
    assert_eq!((starts(), stop()), (2, 0), "the session of the parent goes on");
}

/// Builds the C++ program; `None` without a compiler.
fn build(program: &Path) -> Option<()> {
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++17", "-pthread", "-x", "c++", "-", "-ldl", "-o"]).arg(program).stdin(Stdio::piped());
    let mut running = compiler.spawn().ok()?;
    // Embedded, because this test may run on a machine without the repository.
    let source = include_bytes!("catch_exception.cpp");
    running.stdin.take().expect("stdin is piped").write_all(source).expect("the compiler reads it");
    assert!(running.wait().expect("the compiler ends").success(), "the program compiles");
    Some(())
}

#[test]
fn failed_request_throws_a_cpp_exception() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = folder.path().join("catch_exception");
    if build(&program).is_none() {
        let _ = io::stderr().write_all(b"SKIPPED: no g++ on this machine\n");
        return;
    }
    let output = Command::new(&program).arg(library_path()).output().expect("the program runs");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().collect();
    let (start, reason) = if has_gpu() {
        ("caught: CUDA out of memory. Tried to allocate ".to_owned(), "more than 1EB".to_owned())
    } else {
        ("caught: vramscope: cannot allocate: ".to_owned(), no_gpu_reason())
    };
    assert_eq!((lines.len(), lines[0], lines[2]), (4, "unwound", "unwound"), "{text}");
    for caught in [lines[1], lines[3]] {
        assert!(caught.starts_with(&start) && caught.contains(&reason), "{text}");
    }
    assert_eq!(output.stderr, b"", "the reason is only in the exception");
}
