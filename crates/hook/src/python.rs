//! The extension module `vramscope._native`, which the Python package imports.
//!
//! Functions raise `RuntimeError` with the reason in words. Those that can wait release the
//! interpreter's lock.

use std::env;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyType};
use vramscope_collector::session::{RecordingOptions, lifecycle, read_recording_options, stderr_log};
use vramscope_collector::{ANY_HOST, PushAddress};
use vramscope_trace::{AnnotationStage, Category, DeviceId, DeviceInfo};

use crate::follower::Request;
use crate::interpreter::{ExpectedFrame, FrameWalker, InterpreterBuild, Layout, check_frames};
use crate::native;
use crate::notes::NoteKind;
use crate::out_of_memory::end_at_failure;
use crate::polling::PINNED_SNAPSHOT_POOL;
use crate::scopes::{self, Scope};
use crate::session::Session;
use crate::stacks::StackTable;
use crate::torch::{Autograd, layout_of};
use crate::tracker::{self, Mode};

/// A frame as Python reports it: address of the code object, last instruction, line, address of the
/// first local variable, file, name; `None` for what is not compared.
type PythonFrame = (usize, Option<i32>, Option<u32>, Option<usize>, Option<String>, Option<String>);

/// Creates a `RuntimeError`.
fn error(reason: impl ToString) -> PyErr {
    PyRuntimeError::new_err(reason.to_string())
}

/// Ends the recording when the process exits without having stopped it.
extern "C" fn at_exit() {
    lifecycle::set_exiting();
    tracker::set_mode(Mode::Off);
}

/// Parses an address to listen on, such as `127.0.0.1:7791`.
fn parse_listen(text: &str) -> PyResult<SocketAddr> {
    let expected =
        || PyValueError::new_err(format!("listen: expected an address such as 127.0.0.1:7791, not {text:?}"));
    text.to_socket_addrs().map_err(|_| expected())?.next().ok_or_else(expected)
}

/// Returns the options of the environment variables. Invalid ones are reported.
fn environment_options() -> RecordingOptions {
    let (options, errors) = read_recording_options(|name| env::var_os(name));
    errors.iter().for_each(|error| stderr_log::print(&error.to_string()));
    options
}

/// How the call stacks of this interpreter are read.
#[pyclass(frozen)]
struct Interpreter {
    walker: FrameWalker,
    /// Address of the code object through which modules are called; 0 if it is unknown.
    module_call: usize,
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

    /// Checks that reading this thread's frames gives `frames`, innermost first.
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

/// How autograd's operations are read from PyTorch's thread-local variables.
#[pyclass(name = "Autograd", frozen)]
struct PyAutograd(Autograd);

#[pymethods]
impl PyAutograd {
    /// Finds the variables of PyTorch 2.`minor` in this process.
    #[new]
    fn new(py: Python<'_>, minor: u32) -> PyResult<Self> {
        let layout = layout_of(minor).ok_or_else(|| error(format!("PyTorch 2.{minor} has an unknown layout")))?;
        py.detach(|| Autograd::find(layout.node_sequence)).map(Self).map_err(error)
    }

    /// The sequence number of this thread's next operation, and that of the node it evaluates.
    fn numbers(&self) -> (Option<u64>, Option<u64>) {
        (self.0.next_sequence(), self.0.node_sequence())
    }
}

/// Returns a category by its name.
fn parse_category(name: &str) -> PyResult<Category> {
    let known = Category::ALL.into_iter().find(|known| known.name() == name);
    known.ok_or_else(|| {
        let names: Vec<_> = Category::ALL.into_iter().map(Category::name).collect();
        PyValueError::new_err(format!("no category {name:?}: use one of {}", names.join(", ")))
    })
}

/// Returns what the tracker does by its name, and prepares for it.
fn parse_mode(name: &str) -> PyResult<Mode> {
    Ok(match name {
        "off" => Mode::Off,
        "events" => Mode::Events,
        "stacks" => Mode::EventsWithStacks,
        "all stacks" => {
            native::enable(Some(pyo3::ffi::PyGILState_GetThisThreadState as *const () as usize));
            Mode::EventsWithAllStacks
        }
        _ => return Err(PyValueError::new_err(format!("no mode {name:?}"))),
    })
}

/// Returns the number of a scope: the name, the category, the number of the scope around it (0 for
/// none), and the address of the module in whose method it begins (0 for none).
#[pyfunction]
fn define_scope(name: &str, category: Option<&str>, parent: u32, module: u64) -> PyResult<u32> {
    let category = category.map(parse_category).transpose()?;
    Ok(scopes::define(Scope { parent, name: Arc::from(name), category, module }))
}

/// Sets the scope of this thread by its number; 0 for none.
#[pyfunction]
fn enter_scope(number: u32) {
    scopes::enter(number);
}

/// Returns the objects of a type, or of a class that is derived from it, that the garbage collector
/// tracks.
///
/// A list of all objects keeps alive what other threads release, tensors too. So no Python code
/// runs while this function has one, and no other thread gets the interpreter's lock. For that
/// reason, and because `isinstance` runs code of proxies, this is not Python code itself.
#[pyfunction]
fn tracked_objects<'py>(wanted: &Bound<'py, PyType>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let all = wanted.py().import("gc")?.getattr("get_objects")?.call0()?.cast_into::<PyList>()?;
    let is_wanted = |object: &Bound<'py, PyAny>| {
        // SAFETY: Both types are valid: the object and the caller own references to them.
        unsafe { ffi::PyType_IsSubtype(object.get_type_ptr(), wanted.as_type_ptr()) != 0 }
    };
    Ok(all.iter().filter(is_wanted).collect())
}

/// Returns the metadata of devices: number, name, bytes.
fn device_infos(devices: Vec<(u16, String, u64)>) -> Vec<DeviceInfo> {
    devices
        .into_iter()
        .map(|(device, name, total_bytes)| DeviceInfo { device, name, total_bytes, ..DeviceInfo::default() })
        .collect()
}

/// A session; see `session.rs`.
#[pyclass(name = "Session", frozen)]
struct PySession(ManuallyDrop<Session>);

impl Drop for PySession {
    fn drop(&mut self) {
        // A forked child has none of the threads that dropping would wait for.
        if !lifecycle::is_forked_child() {
            // SAFETY: The session is dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.0) }
        }
    }
}

#[pymethods]
impl PySession {
    /// Opens a session with the options of the environment variables, of which the arguments
    /// replace some. Without `from_environment`, the variables have no effect. With
    /// `any_host`, the page accepts every host name and needs its token for everything.
    #[new]
    #[pyo3(signature = (listen=None, record=None, push=None, from_environment=true, any_host=false))]
    fn new(
        py: Python<'_>,
        listen: Option<&str>,
        record: Option<PathBuf>,
        push: Option<&str>,
        from_environment: bool,
        any_host: bool,
    ) -> PyResult<Self> {
        let mut options = if from_environment { environment_options() } else { RecordingOptions::default() };
        if let Some(listen) = listen {
            options.listen = Some(parse_listen(listen)?);
        }
        if record.is_some() {
            options.record = record;
        }
        if let Some(push) = push {
            options.push = Some(PushAddress::parse(push).map_err(|error| PyValueError::new_err(error.to_string()))?);
        }
        if any_host {
            options.allow_hosts.push(ANY_HOST.to_owned());
        }
        py.detach(|| Session::open(options, Arc::new(stderr_log::print)))
            .map(ManuallyDrop::new)
            .map(Self)
            .map_err(error)
    }

    /// Serves the page at `listen` from now on, with the options of the environment variables. A
    /// page that is served already stays.
    #[pyo3(signature = (listen, any_host=false))]
    fn serve(&self, py: Python<'_>, listen: &str, any_host: bool) -> PyResult<()> {
        let mut options = RecordingOptions { listen: Some(parse_listen(listen)?), ..environment_options() };
        if any_host {
            options.allow_hosts.push(ANY_HOST.to_owned());
        }
        py.detach(|| self.0.serve(&options)).map_err(error)
    }

    /// Writes the recording to another file, too, from the current state on. With `can_end`, the
    /// file may end before the recording, by `end_file`.
    fn add_file(&self, py: Python<'_>, path: PathBuf, can_end: bool) -> PyResult<()> {
        let keep = environment_options().keep;
        py.detach(|| self.0.add_file(&path, keep, can_end)).map_err(error)
    }

    /// Ends a file of `add_file`. Returns False if it is incomplete.
    fn end_file(&self, py: Python<'_>, path: PathBuf) -> PyResult<bool> {
        py.detach(|| self.0.end_file(&path)).map_err(error)
    }

    /// Ends the connection to the server that the recording is pushed to.
    fn end_push(&self, py: Python<'_>) {
        py.detach(|| self.0.end_push());
    }

    /// The page's address with its token, or `None`.
    #[getter]
    fn url(&self) -> Option<String> {
        self.0.url()
    }

    /// Starts to follow the allocator of PyTorch 2.`minor` on the devices (number, name, bytes),
    /// with a mode of [`set_mode`](Self::set_mode).
    #[pyo3(signature = (minor, devices, mode, interpreter=None, autograd=None))]
    fn attach(
        &self,
        py: Python<'_>,
        minor: u32,
        devices: Vec<(u16, String, u64)>,
        mode: &str,
        interpreter: Option<&Interpreter>,
        autograd: Option<&PyAutograd>,
    ) -> PyResult<()> {
        let infos = device_infos(devices);
        let walker = interpreter.map(|interpreter| (interpreter.walker, interpreter.module_call));
        let stacks = move || walker.map(|(walker, module_call)| StackTable::new(walker, module_call));
        let autograd = autograd.map(|autograd| autograd.0);
        let mode = py.detach(|| parse_mode(mode))?;
        py.detach(|| self.0.attach(minor, infos, mode, stacks, autograd)).map_err(error)
    }

    /// Checks that the tracker saw the allocation and free of `bytes` bytes at `address`.
    fn check(&self, py: Python<'_>, device: u16, address: u64, bytes: u64) -> PyResult<()> {
        py.detach(|| self.0.check(device, address, bytes)).map_err(error)
    }

    /// Checks that the tracker saw that a segment of `bytes` bytes could not be allocated.
    fn check_failure(&self, py: Python<'_>, device: u16, bytes: u64) -> PyResult<()> {
        py.detach(|| self.0.check_failure(device, bytes)).map_err(error)
    }

    /// Keeps events until `record`, so that a snapshot can be taken now.
    fn prepare_snapshot(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.prepare_snapshot()).map_err(error)
    }

    /// Starts the recording with the first snapshot, the pickle of `torch.cuda.memory._snapshot()`.
    fn start(&self, py: Python<'_>, snapshot: &[u8]) -> PyResult<()> {
        py.detach(|| self.0.start(snapshot)).map_err(error)
    }

    /// Records the first snapshot and the events after it.
    fn begin(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.begin()).map_err(error)
    }

    /// Continues to record from a snapshot on.
    fn record(&self, py: Python<'_>, snapshot: &[u8]) -> PyResult<()> {
        py.detach(|| self.0.record(snapshot)).map_err(error)
    }

    /// Records a snapshot of the devices (number, name, bytes) without the tracker. The recording
    /// has the note.
    fn poll(&self, py: Python<'_>, devices: Vec<(u16, String, u64)>, note: &str, snapshot: &[u8]) -> PyResult<()> {
        py.detach(|| self.0.poll(device_infos(devices), note, snapshot)).map_err(error)
    }

    /// Records pinned host memory from a snapshot that is limited to the pool
    /// `PINNED_SNAPSHOT_POOL`.
    fn record_pinned_memory(&self, py: Python<'_>, snapshot: &[u8]) -> PyResult<()> {
        py.detach(|| self.0.record_pinned_memory(snapshot)).map_err(error)
    }

    /// Sets what the tracker does: `"off"` pauses the recording; `"events"`, `"stacks"` or
    /// `"all stacks"` (also of C++), and then a snapshot, resume it.
    fn set_mode(&self, py: Python<'_>, mode: &str) -> PyResult<()> {
        let mode = py.detach(|| parse_mode(mode))?;
        py.detach(|| self.0.set_mode(mode)).map_err(error)
    }

    /// Records a mark on every device: a moment, or with `stage` "begin" or "end" of a span.
    #[pyo3(signature = (name, stage=None))]
    fn mark(&self, name: &str, stage: Option<&str>) -> PyResult<()> {
        let stage = match stage {
            None => AnnotationStage::Instant,
            Some("begin") => AnnotationStage::Begin,
            Some("end") => AnnotationStage::End,
            Some(stage) => return Err(PyValueError::new_err(format!("no stage {stage:?}"))),
        };
        self.0.notes().add([(None, NoteKind::Mark { name: Arc::from(name), stage })]);
        Ok(())
    }

    /// Records that blocks have a category: device, address, and a scope or an empty text of each.
    fn relabel(&self, category: &str, blocks: Vec<(u16, u64, String)>) -> PyResult<()> {
        let category = parse_category(category)?;
        self.0.notes().add(blocks.into_iter().map(|(device, address, scope)| {
            let scope = Arc::from(scope);
            (Some(DeviceId(device)), NoteKind::Relabel { address, category, scope })
        }));
        Ok(())
    }

    /// Records that a step of the program ended; a workspace of cuBLAS has this many bytes on each
    /// device.
    fn end_step(&self, workspace_bytes: Vec<(u16, u64)>) {
        self.0.notes().add(
            workspace_bytes
                .into_iter()
                .map(|(device, workspace_bytes)| (Some(DeviceId(device)), NoteKind::StepEnd { workspace_bytes })),
        );
    }

    /// Writes what has been recorded so far to a file.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.0.save(&path)).map_err(error)
    }

    /// Waits for a request: `"snapshot"`, `"modules"`, or `None` after the time.
    fn next_request(&self, py: Python<'_>, timeout_s: f64) -> Option<&'static str> {
        let timeout = Duration::try_from_secs_f64(timeout_s).unwrap_or_default();
        py.detach(|| self.0.next_request(timeout)).map(|request| match request {
            Request::Snapshot => "snapshot",
            Request::Modules => "modules",
        })
    }

    /// Adds names of modules by address.
    fn add_modules(&self, modules: Vec<(u64, String)>) {
        self.0.modules().add(modules);
    }

    /// Adds the name of the region of `torch.compile` whose code object is at `address`.
    fn add_region(&self, address: u64, name: &str) {
        self.0.regions().add(address, name);
    }

    /// Removes the region of a code object that is about to be freed.
    fn remove_region(&self, address: u64) {
        self.0.regions().remove(address);
    }

    /// Ends the recording and the page. Returns False if the file is incomplete.
    fn stop(&self, py: Python<'_>) -> bool {
        py.detach(|| self.0.stop())
    }
}

/// Ends the recording in a file with its last out-of-memory. Returns what filled the GPU, and why
/// the request failed; None if the recording has no out-of-memory.
#[pyfunction]
fn end_at_out_of_memory(py: Python<'_>, path: PathBuf) -> PyResult<Option<String>> {
    let ended = py.detach(|| end_at_failure(&path));
    ended.map_err(|reason| error(format!("{}: {reason}", path.display())))
}

/// The extension module.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    stderr_log::install();
    lifecycle::install_handlers(at_exit);
    vramscope_fleet::register();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("PINNED_SNAPSHOT_POOL", (PINNED_SNAPSHOT_POOL.0, PINNED_SNAPSHOT_POOL.1))?;
    module.add_class::<Interpreter>()?;
    module.add_class::<PyAutograd>()?;
    module.add_function(wrap_pyfunction!(define_scope, module)?)?;
    module.add_function(wrap_pyfunction!(enter_scope, module)?)?;
    module.add_function(wrap_pyfunction!(tracked_objects, module)?)?;
    module.add_function(wrap_pyfunction!(end_at_out_of_memory, module)?)?;
    module.add_class::<PySession>()
}
