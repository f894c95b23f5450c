//! The extension module `vramscope._native`, which the Python package imports.
//!
//! Functions raise `RuntimeError` with the reason in words. Those that can wait release the
//! interpreter's lock.

mod errors;
mod interpreter;
mod module_names;

use std::env;
use std::mem::ManuallyDrop;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use vramscope_collector::session::{RecordingOptions, lifecycle, read_recording_options, stderr_log};
use vramscope_collector::{ANY_HOST, PushAddress, Rank, redact_from_env};
use vramscope_trace::{AnnotationStage, Category, DeviceId, DeviceInfo};

use self::errors::error;
use self::interpreter::{Interpreter, PyAutograd};
use self::module_names::{
    begin_module_search, enclosing_module_name, end_module_search, name_all_modules, name_modules,
};
use crate::follower::PythonRequest;
use crate::native;
use crate::notes::NoteKind;
use crate::out_of_memory::end_at_failure;
use crate::pace::PAUSE_FACTOR;
use crate::reader::PINNED_SNAPSHOT_POOL;
use crate::scopes::{self, Scope};
use crate::session::Session;
use crate::snapshot_devices;
use crate::stacks::StackTable;
use crate::tracker::{self, Mode};

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

/// Returns the options of the environment variables. Invalid ones are reported. In a forked child,
/// the name of the file contains the process id: several processes cannot write one file.
fn environment_options() -> RecordingOptions {
    let (options, errors) = read_recording_options(|name| env::var_os(name));
    errors.iter().for_each(|error| stderr_log::print(&error.to_string()));
    if lifecycle::is_forked_child() { options.with_process_id(std::process::id()) } else { options }
}

/// Returns the category with this name; an error for an unknown name.
fn parse_category(name: &str) -> PyResult<Category> {
    let known = Category::ALL.into_iter().find(|known| known.name() == name);
    known.ok_or_else(|| {
        let names: Vec<_> = Category::ALL.into_iter().map(Category::name).collect();
        PyValueError::new_err(format!("no category {name:?}: use one of {}", names.join(", ")))
    })
}

/// Returns the tracker's mode with this name. For `all stacks`, also prepares to read C++ frames.
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

/// Returns the number of the scope with this name, category, outer scope (`parent`, its number; 0
/// for none), and module in whose method it begins (empty for none). Defines the scope if it is
/// new.
#[pyfunction]
fn define_scope(name: &str, category: Option<&str>, parent: u32, module: &str) -> PyResult<u32> {
    let category = category.map(parse_category).transpose()?;
    Ok(scopes::define(Scope { parent, name: Arc::from(name), category, module: Arc::from(module) }))
}

/// Makes the scope with this number the current one of this thread; 0 means no scope.
#[pyfunction]
fn enter_scope(number: u32) {
    scopes::enter(number);
}

/// Returns descriptions of devices from tuples of number, name and memory size in bytes.
fn device_infos(devices: Vec<(u16, String, u64)>) -> Vec<DeviceInfo> {
    let info = |(device, name, total_bytes)| DeviceInfo { device, name, total_bytes, ..DeviceInfo::default() };
    devices.into_iter().map(info).collect()
}

/// A recording session as a Python class; see the module `session`.
#[pyclass(name = "Session", frozen)]
struct PySession(ManuallyDrop<Session>);

impl Drop for PySession {
    fn drop(&mut self) {
        // A forked child has none of the threads that dropping would wait for.
        if self.0.is_own() {
            // SAFETY: The session is dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.0) }
        }
    }
}

impl PySession {
    /// Returns the session; an error in a forked child of the process that opened it.
    fn own(&self) -> PyResult<&Session> {
        if self.0.is_own() { Ok(&self.0) } else { Err(error("the session belongs to the parent of this process")) }
    }

    /// Calls `work` with the session, without the interpreter's lock.
    fn call<R: Send>(&self, py: Python<'_>, work: impl FnOnce(&Session) -> Result<R, String> + Send) -> PyResult<R> {
        let session = self.own()?;
        py.detach(|| work(session)).map_err(error)
    }
}

#[pymethods]
impl PySession {
    /// Opens a session with the options from environment variables, some of which the arguments
    /// replace. Without `from_environment`, only `VRAMSCOPE_REDACT` has an effect. With `any_host`,
    /// the page accepts every host name, and every request needs its token. With `is_child`, this
    /// process is a forked child, whose session only pushes, without a page or file.
    #[new]
    #[pyo3(signature = (
        listen=None, record=None, push=None, from_environment=true, any_host=false, is_child=false
    ))]
    fn new(
        py: Python<'_>,
        listen: Option<&str>,
        record: Option<PathBuf>,
        push: Option<&str>,
        from_environment: bool,
        any_host: bool,
        is_child: bool,
    ) -> PyResult<Self> {
        let mut options = match from_environment {
            true => environment_options(),
            // `VRAMSCOPE_REDACT` applies to every session of the process.
            false => RecordingOptions { redact: redact_from_env(), ..RecordingOptions::default() },
        };
        if is_child {
            options = RecordingOptions { listen: None, record: None, parent_rank: Rank::from_env(), ..options };
        }
        if let Some(listen) = listen {
            options.listen = Some(parse_listen(listen)?);
        }
        options.record = record.or(options.record);
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
        self.call(py, |session| session.serve(&options))
    }

    /// Also writes the recording to another file, from the current state on. With `can_end`,
    /// `end_file` may end the file before the recording.
    fn add_file(&self, py: Python<'_>, path: PathBuf, can_end: bool) -> PyResult<()> {
        self.call(py, |session| session.add_file(&path, environment_options().keep, can_end))
    }

    /// Ends a file that `add_file` began. Returns False if the file is incomplete.
    fn end_file(&self, py: Python<'_>, path: PathBuf) -> PyResult<bool> {
        self.call(py, |session| session.end_file(&path))
    }

    /// Ends the connection to the server that the recording is pushed to.
    fn end_push(&self, py: Python<'_>) {
        let Ok(session) = self.own() else { return };
        py.detach(|| session.end_push());
    }

    /// The page's address with its token, or `None`.
    #[getter]
    fn url(&self) -> Option<String> {
        self.own().ok()?.url()
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
        self.own()?;
        let infos = device_infos(devices);
        let walker = interpreter.map(|interpreter| (interpreter.walker, interpreter.module_call));
        let stacks = move || walker.map(|(walker, module_call)| StackTable::new(walker, module_call));
        let autograd = autograd.map(|autograd| autograd.0);
        let mode = py.detach(|| parse_mode(mode))?;
        self.call(py, |session| session.attach(minor, infos, mode, stacks, autograd))
    }

    /// Returns True once the tracker is known to report correctly, also if an earlier session found
    /// this out.
    #[getter]
    fn is_tracker_checked(&self) -> bool {
        self.0.is_tracker_checked()
    }

    /// Returns True if the program has used memory and the tracker has not been checked yet.
    fn has_events_to_check(&self, py: Python<'_>) -> PyResult<bool> {
        self.call(py, Session::has_events_to_check)
    }

    /// Checks the tracker by the program's own events between the first snapshot and this one.
    /// Returns True if the tracker reports correctly, False if the events do not show this yet, and
    /// None if events were lost: the session then needs another first snapshot. With `is_last`,
    /// returns True even if the events do not confirm every field.
    fn check_events(&self, py: Python<'_>, snapshot: &[u8], is_last: bool) -> PyResult<Option<bool>> {
        self.call(py, |session| session.check_events(snapshot, is_last))
    }

    /// Checks that the tracker reported an out-of-memory event on `device`, for a request that
    /// needed a segment of `bytes` bytes.
    fn check_failure(&self, py: Python<'_>, device: u16, bytes: u64) -> PyResult<()> {
        self.call(py, |session| session.check_failure(device, bytes))
    }

    /// Keeps events in the rings until `record`, so that a snapshot can be taken now.
    fn prepare_snapshot(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, Session::prepare_snapshot)
    }

    /// Starts the recording with the first snapshot, the pickle of `torch.cuda.memory._snapshot()`.
    fn start(&self, py: Python<'_>, snapshot: &[u8]) -> PyResult<()> {
        self.call(py, |session| session.start(snapshot))
    }

    /// Begins to record: the state in the first snapshot, and the events after it.
    fn begin(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, Session::begin)
    }

    /// Continues the recording with the state in a snapshot, after events were lost.
    fn record(&self, py: Python<'_>, snapshot: &[u8]) -> PyResult<()> {
        self.call(py, |session| session.record(snapshot))
    }

    /// Records a snapshot of the devices (number, name, bytes) without the tracker. `note` is
    /// written to the recording's header.
    fn poll(&self, py: Python<'_>, devices: Vec<(u16, String, u64)>, note: &str, snapshot: &[u8]) -> PyResult<()> {
        self.call(py, |session| session.poll(device_infos(devices), note, snapshot))
    }

    /// Records pinned host memory from a snapshot that is limited to the pool
    /// `PINNED_SNAPSHOT_POOL`.
    fn record_pinned_memory(&self, py: Python<'_>, snapshot: &[u8]) -> PyResult<()> {
        self.call(py, |session| session.record_pinned_memory(snapshot))
    }

    /// Sets the tracker's mode. `"off"` pauses the recording. `"events"`, `"stacks"` (of Python) or
    /// `"all stacks"` (also of C++) resumes it; the caller must then record a snapshot.
    fn set_mode(&self, py: Python<'_>, mode: &str) -> PyResult<()> {
        self.own()?;
        let mode = py.detach(|| parse_mode(mode))?;
        self.call(py, |session| session.set_mode(mode))
    }

    /// Records a mark on every device: a moment, or with `stage` "begin" or "end" the beginning or
    /// end of a span.
    #[pyo3(signature = (name, stage=None))]
    fn mark(&self, name: &str, stage: Option<&str>) -> PyResult<()> {
        let Ok(session) = self.own() else { return Ok(()) };
        let stage = match stage {
            None => AnnotationStage::Instant,
            Some("begin") => AnnotationStage::Begin,
            Some("end") => AnnotationStage::End,
            Some(stage) => return Err(PyValueError::new_err(format!("no stage {stage:?}"))),
        };
        session.notes().add([(None, NoteKind::Mark { name: Arc::from(name), stage })]);
        Ok(())
    }

    /// Gives blocks a category. Each block is a tuple of device, address and new scope; an empty
    /// scope keeps the block's scope.
    fn relabel(&self, category: &str, blocks: Vec<(u16, u64, String)>) -> PyResult<()> {
        let Ok(session) = self.own() else { return Ok(()) };
        let category = parse_category(category)?;
        session.notes().add(blocks.into_iter().map(|(device, address, scope)| {
            let scope = Arc::from(scope);
            (Some(DeviceId(device)), NoteKind::Relabel { address, category, scope })
        }));
        Ok(())
    }

    /// Records the end of a training step. `workspace_bytes` has pairs of device number and size of
    /// a cuBLAS workspace on that device.
    fn end_step(&self, workspace_bytes: Vec<(u16, u64)>) {
        let Ok(session) = self.own() else { return };
        let end = |(device, workspace_bytes)| (Some(DeviceId(device)), NoteKind::StepEnd { workspace_bytes });
        session.notes().add(workspace_bytes.into_iter().map(end));
    }

    /// Writes what has been recorded so far to a file.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.call(py, |session| session.save(&path))
    }

    /// Sets whether autograd's operations are known to be read correctly. While this is false,
    /// requests of the backward pass belong to no forward operation.
    fn trust_operations(&self, is_trusted: bool) {
        let Ok(session) = self.own() else { return };
        session.trust_operations(is_trusted);
    }

    /// Waits for a request from the follower, at most `timeout_s` seconds. Returns `"snapshot"`,
    /// `"modules"` or `"backward"`, or `None` after the time.
    fn next_request(&self, py: Python<'_>, timeout_s: f64) -> Option<&'static str> {
        let session = self.own().ok()?;
        let timeout = Duration::try_from_secs_f64(timeout_s).unwrap_or_default();
        py.detach(|| session.next_request(timeout)).map(|request| match request {
            PythonRequest::Snapshot => "snapshot",
            PythonRequest::Modules => "modules",
            PythonRequest::Backward => "backward",
        })
    }

    /// Adds the name of the region of `torch.compile` whose code object is at `address`.
    fn add_region(&self, address: u64, name: &str) {
        let Ok(session) = self.own() else { return };
        session.regions().add(address, name);
    }

    /// Removes the region of a code object that is about to be freed.
    fn remove_region(&self, address: u64) {
        let Ok(session) = self.own() else { return };
        session.regions().remove(address);
    }

    /// Ends the recording and stops the page's server. Returns False if the file is incomplete.
    fn stop(&self, py: Python<'_>) -> bool {
        let Ok(session) = self.own() else { return true };
        py.detach(|| session.stop())
    }
}

/// Removes the events after the last out-of-memory event from a recording's file. Returns a text
/// that says what filled the GPU and why the request failed; None if the recording has no
/// out-of-memory event.
#[pyfunction]
fn end_at_out_of_memory(py: Python<'_>, path: PathBuf) -> PyResult<Option<String>> {
    let ended = py.detach(|| end_at_failure(&path));
    ended.map_err(|reason| error(format!("{}: {reason}", path.display())))
}

/// Marks the beginning of a snapshot that the package takes in this thread. The caller must call
/// `end_snapshot` afterwards, also after an error.
#[pyfunction]
fn begin_snapshot() {
    snapshot_devices::begin();
}

/// Marks the end of a snapshot of this thread.
#[pyfunction]
fn end_snapshot() {
    snapshot_devices::end();
}

/// Prepares the library for a forked child, before anything else uses it there.
#[pyfunction]
fn after_fork() {
    scopes::leave_all();
    snapshot_devices::forget_all();
}

/// Fills the Python extension module with this library's functions and classes.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    stderr_log::install();
    lifecycle::detect_forks();
    lifecycle::call_at_exit(at_exit);
    vramscope_fleet::register();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("PAUSE_FACTOR", PAUSE_FACTOR)?;
    module.add("PINNED_SNAPSHOT_POOL", (PINNED_SNAPSHOT_POOL.0, PINNED_SNAPSHOT_POOL.1))?;
    module.add_class::<Interpreter>()?;
    module.add_class::<PyAutograd>()?;
    module.add_function(wrap_pyfunction!(define_scope, module)?)?;
    module.add_function(wrap_pyfunction!(enter_scope, module)?)?;
    module.add_function(wrap_pyfunction!(name_all_modules, module)?)?;
    module.add_function(wrap_pyfunction!(name_modules, module)?)?;
    module.add_function(wrap_pyfunction!(begin_module_search, module)?)?;
    module.add_function(wrap_pyfunction!(end_module_search, module)?)?;
    module.add_function(wrap_pyfunction!(enclosing_module_name, module)?)?;
    module.add_function(wrap_pyfunction!(end_at_out_of_memory, module)?)?;
    module.add_function(wrap_pyfunction!(begin_snapshot, module)?)?;
    module.add_function(wrap_pyfunction!(end_snapshot, module)?)?;
    module.add_function(wrap_pyfunction!(after_fork, module)?)?;
    module.add_class::<PySession>()
}
