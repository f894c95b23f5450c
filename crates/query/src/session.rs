//! Runs statements on the tables of one archive.

use std::fmt;
use std::io::Write;
use std::sync::Arc;
use std::thread;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::DataFusionError;
use datafusion::execution::context::SQLOptions;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::object_store::ObjectStoreRegistry;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::logical_expr::LogicalPlan;
use datafusion::object_store::ObjectStore;
use datafusion::object_store::memory::InMemory;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};
use futures_util::StreamExt as _;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use vramscope_fleet::archive::{ArchiveReader, Table};

use crate::archived_table::{ArchivedTable, STORE_URL};
use crate::error::SqlError;
use crate::object_reader::ReadCounters;
use crate::output::{OutputFormat, RowWriter};
use crate::ranks::ranks_table;

/// Maximum length of a statement, in bytes.
pub const MAX_STATEMENT_BYTES: usize = 64 << 10;
/// Maximum number of words, numbers and signs of a statement: they can nest, and DataFusion is
/// recursive.
const MAX_TOKENS: usize = 2048;
/// Stack size of a thread that plans or runs a statement, in bytes. Without optimization, half of
/// it suffices for the deepest statements of [`MAX_TOKENS`] that tests try, and a quarter does not.
const STACK_BYTES: usize = 64 << 20;
/// Maximum memory for sorting, grouping and joining, in bytes.
const MEMORY_BYTES: usize = 1 << 30;
/// Maximum number of batches of rows that wait to be written.
const WAITING_BATCHES: usize = 2;

/// The bytes and rows that a statement read and returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuerySummary {
    /// Number of rows that were written.
    pub rows: u64,
    /// True if there are more rows than the limit.
    pub has_more: bool,
    /// Number of the archive's objects that were read.
    pub objects: u64,
    /// Number of bytes that were read from the archive.
    pub bytes: u64,
}

/// The tables `rollups`, `sites` and `ranks` of an archive.
pub struct QuerySession {
    context: SessionContext,
    /// `None` only while the session is dropped.
    runtime: Option<Runtime>,
    counters: Arc<ReadCounters>,
}

impl fmt::Debug for QuerySession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuerySession").finish_non_exhaustive()
    }
}

impl Drop for QuerySession {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A part of an answer, sent from DataFusion's threads to the writer.
enum Part {
    Columns(SchemaRef),
    Rows(RecordBatch),
}

impl QuerySession {
    /// Creates the tables of an archive. Reads nothing of them.
    ///
    /// # Errors
    /// If the operating system cannot start threads.
    pub fn new(archive: ArchiveReader) -> Result<Self, SqlError> {
        let threads = thread::available_parallelism().map_or(2, usize::from);
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("vramscope-query")
            .thread_stack_size(STACK_BYTES)
            .enable_all()
            .build()?;
        let counters = Arc::new(ReadCounters::default());
        let context =
            context(archive, &counters, threads).map_err(|error| SqlError::from_datafusion(&error, MEMORY_BYTES))?;
        Ok(Self { context, runtime: Some(runtime), counters })
    }

    /// Runs a statement and writes its first `limit` rows to `out`. Must not be called from an
    /// asynchronous task.
    ///
    /// # Errors
    /// If the statement is no SQL, does more than read, or fails; if an object of the archive is
    /// not as the manifest lists it; or if `out` fails. `out` then has a part of the rows.
    pub fn run(
        &self,
        statement: &str,
        limit: usize,
        format: OutputFormat,
        out: &mut dyn Write,
    ) -> Result<QuerySummary, SqlError> {
        check_size(statement)?;
        let Some(runtime) = &self.runtime else { return Ok(QuerySummary::default()) };
        self.counters.take();
        let (sender, mut receiver) = mpsc::channel(WAITING_BATCHES);
        let task = runtime.spawn(execute(self.context.clone(), statement.to_owned(), limit, sender));
        let mut writer = None;
        let mut out = Some(out);
        let mut has_more = false;
        while let Some(part) = receiver.blocking_recv() {
            match part {
                Part::Columns(schema) => {
                    writer = out.take().map(|out| RowWriter::new(out, format, schema)).transpose()?;
                }
                Part::Rows(batch) => {
                    let Some(writer) = &mut writer else { break };
                    let left = limit.saturating_sub(usize::try_from(writer.rows()).unwrap_or(usize::MAX));
                    has_more |= batch.num_rows() > left;
                    writer.write(&batch.slice(0, batch.num_rows().min(left)))?;
                    if has_more {
                        break;
                    }
                }
            }
        }
        drop(receiver);
        match runtime.block_on(task) {
            Ok(Ok(())) => (),
            Ok(Err(error)) => return Err(SqlError::from_datafusion(&error, MEMORY_BYTES)),
            Err(error) => return Err(SqlError::Internal(error.to_string())),
        }
        let rows = writer.as_ref().map_or(0, RowWriter::rows);
        if let Some(writer) = writer {
            writer.finish(has_more)?;
        }
        let (objects, bytes) = self.counters.take();
        Ok(QuerySummary { rows, has_more, objects, bytes })
    }
}

/// Refuses statements that are too long, or so deep that DataFusion could exhaust the stack.
fn check_size(statement: &str) -> Result<(), SqlError> {
    let refuse = |reason: String| Err(SqlError::Statement(reason));
    if statement.len() > MAX_STATEMENT_BYTES {
        return refuse(format!("it has {} bytes; {MAX_STATEMENT_BYTES} are allowed", statement.len()));
    }
    // A statement that is no sequence of tokens fails later, with a position.
    let Ok(tokens) = Tokenizer::new(&GenericDialect {}, statement).tokenize() else { return Ok(()) };
    let tokens = tokens.iter().filter(|token| !matches!(token, Token::Whitespace(_))).count();
    if tokens > MAX_TOKENS {
        return refuse(format!("it has {tokens} words and signs; {MAX_TOKENS} are allowed"));
    }
    Ok(())
}

/// Returns a context with the tables of an archive that can read nothing else.
fn context(
    archive: ArchiveReader,
    counters: &Arc<ReadCounters>,
    threads: usize,
) -> Result<SessionContext, DataFusionError> {
    let mut config = SessionConfig::new().with_target_partitions(threads).with_information_schema(true);
    config.options_mut().sql_parser.collect_spans = true;
    config.options_mut().execution.time_zone = Some("UTC".to_owned());
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(GreedyMemoryPool::new(MEMORY_BYTES)))
        .with_disk_manager_builder(DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled))
        .with_object_store_registry(Arc::new(EmptyStore(Arc::new(InMemory::new()))))
        .build_arc()?;
    let context = SessionContext::new_with_config_rt(config, runtime);
    let archive = Arc::new(archive);
    for table in Table::ALL {
        context.register_table(table.name(), Arc::new(ArchivedTable::new(&archive, table, counters)))?;
    }
    context.register_table("ranks", Arc::new(ranks_table(&archive)?))?;
    Ok(context)
}

/// The only object store that DataFusion knows, which is empty.
#[derive(Debug)]
struct EmptyStore(Arc<InMemory>);

impl ObjectStoreRegistry for EmptyStore {
    fn register_store(&self, _url: &url::Url, _store: Arc<dyn ObjectStore>) -> Option<Arc<dyn ObjectStore>> {
        None
    }

    fn get_store(&self, url: &url::Url) -> Result<Arc<dyn ObjectStore>, DataFusionError> {
        if url.as_str().trim_end_matches('/') == STORE_URL {
            return Ok(Arc::clone(&self.0) as _);
        }
        Err(DataFusionError::Plan("only tables of the archive can be read".to_owned()))
    }
}

/// Runs a statement and sends its rows, at least one more than `limit` if there are more.
async fn execute(
    context: SessionContext,
    statement: String,
    limit: usize,
    sender: mpsc::Sender<Part>,
) -> Result<(), DataFusionError> {
    let only_reads = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
    let rows = context.sql_with_options(&statement, only_reads).await?;
    let explains = matches!(
        rows.logical_plan(),
        LogicalPlan::Explain(_) | LogicalPlan::Analyze(_) | LogicalPlan::DescribeTable(_)
    );
    // With the limit in its plan, DataFusion sorts less.
    let rows = if explains { rows } else { rows.limit(0, Some(limit.saturating_add(1)))? };
    let mut batches = rows.execute_stream().await?;
    if sender.send(Part::Columns(batches.schema())).await.is_err() {
        return Ok(());
    }
    while let Some(batch) = batches.next().await {
        // The receiver is gone once the limit is reached.
        if sender.send(Part::Rows(batch?)).await.is_err() {
            break;
        }
    }
    Ok(())
}
