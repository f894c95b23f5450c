//! The library as PyTorch loads it: a file whose functions are looked up by name, in a process of its own.

use std::env;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::ptr;

use vramscope_collector::CudaDevice;

const NAMES: [&CStr; 12] = [
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
];

/// Set in the process that loads the library.
const INSIDE: &str = "VRAMSCOPE_TEST_INSIDE";

// SAFETY: As POSIX declares them.
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
type Plain = extern "C" fn();
type Stop = extern "C" fn() -> c_int;

struct Library(*mut c_void);

/// The file that cargo built beside this test.
fn library_path() -> PathBuf {
    let beside = env::current_exe().expect("this test is a file").parent().expect("in a folder").to_owned();
    let places = [beside.join("..").join("libvramscope_pluggable.so"), beside.join("libvramscope_pluggable.so")];
    places.into_iter().find(|path| path.is_file()).expect("cargo builds the library first")
}

impl Library {
    fn open() -> Self {
        let path = CString::new(library_path().to_str().expect("a path of text")).expect("a path without a 0");
        // SAFETY: The path ends with a 0. What the library does when it is loaded is what Rust's standard library does.
        let library = unsafe { dlopen(path.as_ptr(), RTLD_NOW) };
        assert!(!library.is_null(), "it can be loaded");
        Self(library)
    }

    fn address(&self, name: &CStr) -> *mut c_void {
        // SAFETY: The library is open and the name ends with a 0.
        let address = unsafe { dlsym(self.0, name.as_ptr()) };
        assert!(!address.is_null(), "{name:?} is there");
        address
    }

    fn function<F: Copy>(&self, name: &CStr) -> F {
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>(), "a function is an address");
        let address = self.address(name);
        // SAFETY: Every caller names the type that the function is declared with in `lib.rs`.
        unsafe { std::mem::transmute_copy(&address) }
    }
}

/// Runs the test `name` of this file again, in a process of its own that these variables are set in.
fn run_inside(name: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env::current_exe().expect("this test is a file"));
    command.args(["--exact", name, "--nocapture", "--test-threads", "1"]).env(INSIDE, "1");
    command.envs(variables.iter().copied()).output().expect("it runs")
}

/// What a process without a GPU is told, and that it ended well.
fn told(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{:?}\n{text}", output.status);
    text.lines().filter(|line| line.starts_with("vramscope: ")).map(str::to_owned).collect()
}

fn is_inside() -> bool {
    env::var_os(INSIDE).is_some()
}

/// Whether there is a GPU, where what these tests expect is not what happens; run.sh of tests/gpu tests the library there.
fn has_gpu() -> bool {
    CudaDevice::list().is_ok_and(|devices| !devices.is_empty())
}

#[test]
fn every_function_is_found_and_the_library_stays_loaded() {
    let library = Library::open();
    let first = NAMES.map(|name| library.address(name).addr());
    // SAFETY: It was opened once and is closed once; it is linked to stay.
    unsafe { dlclose(library.0) };
    let again = Library::open();
    assert_eq!(NAMES.map(|name| again.address(name).addr()), first);
}

#[test]
fn without_a_gpu_every_function_answers_and_the_reason_is_given_once() {
    if has_gpu() {
        eprintln!("there is a GPU here: what happens without one was not tested");
        return;
    }
    if !is_inside() {
        let name = "without_a_gpu_every_function_answers_and_the_reason_is_given_once";
        let said =
            told(&run_inside(name, &[("VRAMSCOPE_RECORD", "/nowhere/a.vram"), ("VRAMSCOPE_LISTEN", "nonsense")]));
        assert_eq!(said.len(), 3, "{said:?}");
        assert!(said[0].starts_with("vramscope: VRAMSCOPE_LISTEN: \"nonsense\" is not an address"), "{said:?}");
        assert!(said[1].starts_with("vramscope: no CUDA here: "), "{said:?}");
        assert!(said[1].ends_with("; no memory is handed out"), "{said:?}");
        assert!(said[2].starts_with("vramscope: vramscope_free: 0x200"), "{said:?}");
        return;
    }
    let library = Library::open();
    let (malloc, free): (Malloc, Free) = (library.function(NAMES[0]), library.function(NAMES[1]));
    let (stats, mark): (Stats, Mark) = (library.function(NAMES[9]), library.function(NAMES[10]));
    let stop: Stop = library.function(NAMES[11]);
    let null = ptr::null_mut();
    // Before anything was asked for there is nothing to say.
    free(null, 512, 0, null);
    mark(c"too soon".as_ptr());
    assert_eq!((stop(), stats(0, ptr::null_mut(), 0)), (0, 2));
    for device in [0, 0, 1, -1] {
        assert!(malloc(512, device, null).is_null());
    }
    free(null, 512, 0, null);
    free(ptr::without_provenance_mut(512), 512, 0, null);
    let empty_cache: Plain = library.function(NAMES[3]);
    empty_cache();
    mark(ptr::null());
    let mut text: [c_char; 2] = [1; 2];
    assert_eq!(stats(0, text.as_mut_ptr(), 2), 2);
    assert_eq!(text, [b'{' as c_char, 0]);
    assert_eq!(stop(), 0);
}

#[test]
fn settings_that_mean_nothing_are_named() {
    if has_gpu() {
        eprintln!("there is a GPU here: what happens without one was not tested");
        return;
    }
    if !is_inside() {
        let said =
            told(&run_inside("settings_that_mean_nothing_are_named", &[("PYTORCH_CUDA_ALLOC_CONF", "expandable:1")]));
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(
            said[0].starts_with("vramscope: PYTORCH_CUDA_ALLOC_CONF: ") && said[0].contains("expandable"),
            "{said:?}"
        );
        return;
    }
    let malloc: Malloc = Library::open().function(NAMES[0]);
    assert!(malloc(512, 0, ptr::null_mut()).is_null());
}

#[test]
fn a_forked_child_touches_nothing_and_exits() {
    if !is_inside() {
        let said = told(&run_inside("a_forked_child_touches_nothing_and_exits", &[]));
        let forked = "vramscope: CUDA cannot be used in a forked process; no memory is handed out in it";
        assert_eq!(said.iter().filter(|line| *line == forked).count(), 1, "{said:?}");
        return;
    }
    let library = Library::open();
    let (malloc, free): (Malloc, Free) = (library.function(NAMES[0]), library.function(NAMES[1]));
    let null = ptr::null_mut();
    free(malloc(512, 0, null), 512, 0, null);
    // SAFETY: The child calls the library and exits, as a data loader's worker may; it has no lock of this process to wait for.
    let child = unsafe { fork() };
    if child == 0 {
        let refused = malloc(512, 0, null).is_null() && malloc(512, 0, null).is_null();
        free(ptr::without_provenance_mut(512), 512, 0, null);
        let stopped: Stop = library.function(NAMES[11]);
        // SAFETY: It ends the child with the handlers at exit run, which is what is tested.
        unsafe { exit(if refused && stopped() == 0 { 7 } else { 1 }) }
    }
    let mut status = 0;
    // SAFETY: The status is a variable that is there.
    assert_eq!(unsafe { waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 7 << 8, "it refused, and exited by itself");
}

/// Builds the C++ program; `None` where there is no compiler.
fn build(program: &Path) -> Option<()> {
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++17", "-pthread", "-x", "c++", "-", "-ldl", "-o"]).arg(program).stdin(Stdio::piped());
    let mut running = compiler.spawn().ok()?;
    // Taken along in this test, which may run where the repository is not.
    let source = include_bytes!("catches.cpp");
    running.stdin.take().expect("it is piped").write_all(source).expect("the compiler reads it");
    assert!(running.wait().expect("it ends").success(), "it compiles");
    Some(())
}

#[test]
fn a_failed_request_is_an_exception_in_cpp() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("catches");
    if build(&program).is_none() {
        let _ = io::stderr().write_all(b"SKIPPED: there is no g++ to build a C++ program with\n");
        return;
    }
    let output = Command::new(&program).arg(library_path()).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().collect();
    let (begin, reason) = if has_gpu() {
        ("caught: CUDA out of memory. Tried to allocate ", "more than 1EB")
    } else {
        ("caught: vramscope: ", "no CUDA here: ")
    };
    assert_eq!((lines.len(), lines[0], lines[2]), (4, "unwound", "unwound"), "{text}");
    for caught in [lines[1], lines[3]] {
        assert!(caught.starts_with(begin) && caught.contains(reason), "{text}");
    }
    assert_eq!(output.stderr, b"", "the exception says it, and nothing else");
}
