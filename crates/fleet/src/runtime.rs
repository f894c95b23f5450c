//! The runtime of a connection to the broker.

use std::io;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

/// A Tokio runtime with one thread. Dropping it ends its tasks without waiting for them, because
/// the program's end must not wait for the broker.
#[derive(Debug)]
pub(crate) struct BackgroundRuntime {
    /// `None` only while the runtime is dropped.
    runtime: Option<Runtime>,
}

impl BackgroundRuntime {
    /// Starts a runtime whose thread has this name.
    ///
    /// # Errors
    /// If the operating system cannot start it.
    pub(crate) fn new(thread_name: &str) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name(thread_name).enable_all().build()?;
        Ok(Self { runtime: Some(runtime) })
    }

    /// Returns the Tokio runtime.
    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("the runtime exists until it is dropped")
    }

    /// Returns a handle that starts tasks on this runtime, also from within its own tasks.
    pub(crate) fn handle(&self) -> Handle {
        self.runtime().handle().clone()
    }

    /// Runs a future to its end, on the calling thread.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime().block_on(future)
    }

    /// Starts a task.
    pub(crate) fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.runtime().spawn(task)
    }
}

impl Drop for BackgroundRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
