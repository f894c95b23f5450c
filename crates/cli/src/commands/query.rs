//! `vramscope query`: SQL over the archive of a run.

use std::num::NonZeroUsize;

use clap::Args;

use crate::error::Result;

/// Text after the options in `vramscope query --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope query 'SELECT rank, max(allocated_max) AS peak FROM rollups
                   GROUP BY rank ORDER BY peak DESC LIMIT 10' --from s3://bucket/team/run
  vramscope query 'SELECT * FROM ranks' --from file:///data/run --csv
  vramscope query 'DESCRIBE rollups' --from file:///data/run

Tables: rollups (one row for each process and second), sites (its largest sites), ranks (the
processes whose recordings the archive has). docs/query.md has more examples.";

/// Arguments of `vramscope query`: the statement, the archive and the output.
#[derive(Args, Debug)]
pub(crate) struct QueryArguments {
    /// Statement: SELECT, DESCRIBE, SHOW or EXPLAIN
    #[arg(value_name = "SQL")]
    statement: String,
    /// Archive of a run: file:///FOLDER, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or
    /// az://CONTAINER/PREFIX
    #[arg(long, value_name = "URL")]
    from: String,
    /// Print at most this many rows
    #[arg(long, value_name = "N", default_value = "10000")]
    limit: NonZeroUsize,
    /// Print one JSON object
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print comma-separated values
    #[arg(long)]
    csv: bool,
}

/// Runs a statement on an archive and prints its rows.
#[cfg(feature = "query")]
pub(crate) fn run(arguments: &QueryArguments) -> Result {
    use std::io::{self, Seek as _};

    use tempfile::SpooledTempFile;
    use vramscope_query::{OutputFormat, QuerySession};

    use crate::archive;
    use crate::error::CommandError;
    use crate::terminal;

    /// Maximum size of the rows in memory, in bytes. More rows go to a temporary file.
    const ROWS_IN_MEMORY_BYTES: usize = 16 << 20;

    let QueryArguments { statement, from, limit, json, csv } = arguments;
    let format = match (json, csv) {
        (true, _) => OutputFormat::Json,
        (_, true) => OutputFormat::Csv,
        _ => OutputFormat::Table,
    };
    let (archive, address) = archive::open(from)?;
    // The parquet crate panics for some damaged objects. The error that the panic becomes is
    // printed instead.
    std::panic::set_hook(Box::new(|_| ()));
    // Rows are printed after all of them were read, so that a damaged object leaves no partial
    // result.
    let mut rows = SpooledTempFile::new(ROWS_IN_MEMORY_BYTES);
    let result = QuerySession::new(archive).and_then(|session| session.run(statement, limit.get(), format, &mut rows));
    let _ = std::panic::take_hook();
    let summary = result.map_err(|error| CommandError::new(format_args!("{address}: {error}")))?;
    let printed = rows.rewind().and_then(|()| io::copy(&mut rows, &mut io::stdout().lock()).map(drop));
    terminal::ignore_broken_pipe(printed)?;
    if summary.has_more {
        terminal::message(format_args!("there are more than {limit} rows: use --limit, or LIMIT in the statement"));
    }
    Ok(())
}

/// Returns an error that says that this build has no SQL.
#[cfg(not(feature = "query"))]
pub(crate) fn run(arguments: &QueryArguments) -> Result {
    let QueryArguments { statement: _, from: _, limit: _, json: _, csv: _ } = arguments;
    Err(crate::error::CommandError::new(
        "this vramscope was built without SQL: run `cargo install vramscope --features query`",
    ))
}
