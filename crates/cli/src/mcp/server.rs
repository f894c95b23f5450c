//! The protocol: lists the tools and runs one analysis at a time.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, ListToolsResult,
    PaginatedRequestParams, ProgressNotificationParam, ProgressToken, ServerCapabilities, ServerConfig,
    Tool as ToolDescription,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, Peer, RoleServer};
use tokio::sync::Semaphore;
use tokio::time::{self, MissedTickBehavior};

use super::bounds::bounded_message;
use super::sources::Sources;
use super::tools::Tool;
use crate::operation::Operation;

/// Maximum number of calls that run or wait. Calls run one at a time, because each uses all cores.
const MAX_CALLS: usize = 8;
/// Timeout of an analysis.
const TIME_LIMIT: Duration = Duration::from_secs(600);
/// Interval between two notifications of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// Instructions about the server, which clients show to the model.
const INSTRUCTIONS: &str = "Answers questions about the GPU memory of PyTorch programs from recordings: .vram files \
    of vramscope, memory snapshots of PyTorch (.pickle) and RMM logs (.csv). Begin with info and diagnose, which finds \
    problems; autopsy explains out-of-memory errors, table shows who holds memory, advise finds better allocator \
    settings, diff compares two recordings. All sizes are in bytes. Results are shortened: left_out counts the entries \
    that are missing, and limit asks for more.";

/// The server that runs the tools for a client.
#[derive(Clone)]
pub(super) struct AnalysisServer {
    sources: Arc<Sources>,
    /// Permits for calls that run or wait, [`MAX_CALLS`] in total.
    calls: Arc<Semaphore>,
    /// The single permit to run an analysis.
    running: Arc<Semaphore>,
    time_limit: Duration,
}

/// A reporter of an operation's progress to the client that called the tool.
struct ProgressReporter<'a> {
    peer: &'a Peer<RoleServer>,
    /// The client's token for notifications of progress; `None` if it wants none.
    token: Option<ProgressToken>,
    /// The progress that was reported last.
    last: f64,
}

impl<'a> ProgressReporter<'a> {
    fn new(context: &'a RequestContext<RoleServer>) -> Self {
        Self { peer: &context.peer, token: context.meta.get_progress_token(), last: -1.0 }
    }

    /// Reports the progress if it has risen.
    async fn report(&mut self, operation: &Operation) {
        let progress = operation.progress().filter(|progress| progress.stages > self.last);
        if let (Some(progress), Some(token)) = (progress, &self.token) {
            self.last = progress.stages;
            let notification = ProgressNotificationParam::new(token.clone(), progress.stages);
            // Ignore errors: the connection notices a client that has disconnected.
            let _ = self.peer.notify_progress(notification.with_message(progress.label)).await;
        }
    }
}

/// A guard that cancels an operation when it is dropped: its client no longer waits.
struct CancelOnDrop(Operation);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl AnalysisServer {
    pub(super) fn new(sources: Sources) -> Self {
        Self {
            sources: Arc::new(sources),
            calls: Arc::new(Semaphore::new(MAX_CALLS)),
            running: Arc::new(Semaphore::new(1)),
            time_limit: TIME_LIMIT,
        }
    }

    /// Sets the timeout of an analysis.
    #[cfg(test)]
    pub(super) fn with_time_limit(self, time_limit: Duration) -> Self {
        Self { time_limit, ..self }
    }

    /// Runs a tool on another thread, reporting progress. Returns a message for the client if it
    /// fails.
    async fn run(
        &self,
        tool: Tool,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<serde_json::Value, String> {
        let Ok(_call) = self.calls.try_acquire() else {
            return Err(format!("{MAX_CALLS} calls are running or waiting: wait for one of them to end"));
        };
        let operation = Operation::for_client();
        let _cancel = CancelOnDrop(operation.clone());
        let running = tokio::select! {
            running = Arc::clone(&self.running).acquire_owned() => running.map_err(|error| error.to_string())?,
            () = context.ct.cancelled() => return Err("cancelled".to_owned()),
        };
        let sources = Arc::clone(&self.sources);
        let work = operation.clone();
        let mut analysis = tokio::task::spawn_blocking(move || {
            // The permit is held until this thread is free, even if the client no longer waits.
            let _running = running;
            let arguments = request.arguments.unwrap_or_default();
            panic::catch_unwind(AssertUnwindSafe(|| tool.run(arguments, &sources, &work)))
        });
        let mut reporter = ProgressReporter::new(context);
        let mut ticks = time::interval(PROGRESS_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let deadline = time::sleep(self.time_limit);
        tokio::pin!(deadline);
        let result = loop {
            tokio::select! {
                result = &mut analysis => break result,
                () = context.ct.cancelled() => return Err("cancelled".to_owned()),
                () = &mut deadline => {
                    let seconds = self.time_limit.as_secs();
                    return Err(format!(
                        "stopped after {seconds} s: use vramscope {} in a terminal, which has no time limit",
                        tool.name()
                    ));
                }
                _ = ticks.tick() => reporter.report(&operation).await,
            }
        };
        // Reports the final progress, which is the only report of a short analysis.
        reporter.report(&operation).await;
        match result {
            Ok(Ok(Ok(value))) => Ok(value),
            Ok(Ok(Err(error))) => Err(error.to_string()),
            Ok(Err(_)) | Err(_) => Err(format!(
                "internal error in {}: the input is not the cause to be fixed; report it with the recording",
                tool.name()
            )),
        }
    }
}

impl ServerHandler for AnalysisServer {
    fn get_info(&self) -> ServerConfig {
        let instructions = format!("{INSTRUCTIONS} Files can be read below {}.", self.sources.directory_names());
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("vramscope", env!("CARGO_PKG_VERSION")))
            .with_instructions(instructions)
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(Tool::ALL.map(Tool::description).into()))
    }

    fn get_tool(&self, name: &str) -> Option<ToolDescription> {
        Tool::from_name(name).map(Tool::description)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = Tool::from_name(&request.name) else {
            let names = Tool::ALL.map(Tool::name).join(", ");
            return Err(ErrorData::invalid_params(format!("there is no such tool; the tools are {names}"), None));
        };
        let result = match self.run(tool, request, &context).await {
            Ok(value) => CallToolResult::structured(value),
            Err(message) => CallToolResult::error(vec![ContentBlock::text(bounded_message(&message))]),
        };
        Ok(result.into())
    }
}
