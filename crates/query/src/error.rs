//! Why a statement has no result.

use std::error::Error;
use std::io;

use datafusion::error::DataFusionError;
use datafusion::parquet::errors::ParquetError;
use vramscope_fleet::archive::ArchiveError;

/// Why a statement has no result.
#[derive(Debug, thiserror::Error)]
pub enum SqlError {
    /// The statement cannot be run: it is no SQL, names what does not exist, or does more than
    /// read.
    #[error("the statement cannot be run: {0}")]
    Statement(String),
    /// An object of the archive cannot be read. The text names it.
    #[error("{0}")]
    Object(String),
    /// The query needs more memory than is allowed.
    #[error("the query needs more than {limit_bytes} bytes of memory: select less time or fewer columns, or add LIMIT")]
    Memory {
        /// The limit.
        limit_bytes: usize,
    },
    /// Running the statement failed, such as by a division by zero.
    #[error("the query failed: {0}")]
    Execution(String),
    /// The rows cannot be written.
    #[error("cannot write the rows: {0}")]
    Output(#[from] io::Error),
    /// A bug in vramscope or DataFusion.
    #[error("internal error: {0}")]
    Internal(String),
}

/// The error of reading an object of an archive, as DataFusion passes it on. The text names the
/// object.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ObjectError(pub(crate) String);

impl ObjectError {
    /// Returns the error of an object with this name.
    pub(crate) fn new(name: &str, reason: impl std::fmt::Display) -> Self {
        Self(format!("{name} cannot be read: {reason}"))
    }
}

impl From<ObjectError> for DataFusionError {
    fn from(error: ObjectError) -> Self {
        Self::External(Box::new(error))
    }
}

impl From<ObjectError> for ParquetError {
    fn from(error: ObjectError) -> Self {
        Self::External(Box::new(error))
    }
}

impl From<ArchiveError> for ObjectError {
    /// Takes the text over, which names the object.
    fn from(error: ArchiveError) -> Self {
        Self(error.to_string())
    }
}

/// Returns the [`ObjectError`] in an error or its sources.
fn find_object_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a ObjectError> {
    let mut error = Some(error);
    while let Some(this) = error {
        if let Some(found) = this.downcast_ref::<ObjectError>() {
            return Some(found);
        }
        error = match this.downcast_ref::<ParquetError>() {
            // `source` of an external error is the source of that error, not the error itself.
            Some(ParquetError::External(external)) => Some(external.as_ref()),
            _ => this.source(),
        };
    }
    None
}

/// Returns the text of an [`ObjectError`] in `error`.
fn object_text(error: &DataFusionError) -> Option<String> {
    let found = match error.find_root() {
        DataFusionError::External(external) => find_object_error(external.as_ref()),
        DataFusionError::ParquetError(parquet) => find_object_error(parquet.as_ref()),
        root => find_object_error(root),
    };
    found.map(|found| found.0.clone())
}

/// Returns an error of reading the object `name` with the object's name in it.
pub(crate) fn name_object(name: &str, error: DataFusionError) -> DataFusionError {
    if object_text(&error).is_some() || matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)) {
        return error;
    }
    ObjectError::new(name, root_text(&error)).into()
}

/// Returns the text of the innermost error.
fn root_text(error: &DataFusionError) -> String {
    let root = error.find_root();
    let text = match root {
        DataFusionError::SQL(parser, _) => parser.to_string(),
        DataFusionError::ParquetError(parquet) => parquet.to_string(),
        DataFusionError::ArrowError(arrow, _) => arrow.to_string(),
        root => root.message().into_owned(),
    };
    let text = text.split(DataFusionError::BACK_TRACE_SEP).next().unwrap_or_default();
    ["sql parser error: ", "SQL error: "]
        .iter()
        .fold(text, |text, start| text.strip_prefix(start).unwrap_or(text))
        .into()
}

impl SqlError {
    /// Returns the error of a statement that was not run or failed.
    pub(crate) fn from_datafusion(error: &DataFusionError, memory_limit_bytes: usize) -> Self {
        if let Some(text) = object_text(error) {
            return Self::Object(text);
        }
        let text = root_text(error);
        // The parser's text has a position; other errors have it as a diagnostic.
        let position = error
            .diagnostic()
            .and_then(|diagnostic| diagnostic.span)
            .map_or_else(String::new, |span| format!(" at Line: {}, Column: {}", span.start.line, span.start.column));
        match error.find_root() {
            DataFusionError::ResourcesExhausted(_) => Self::Memory { limit_bytes: memory_limit_bytes },
            DataFusionError::SQL(..)
            | DataFusionError::Plan(_)
            | DataFusionError::SchemaError(..)
            | DataFusionError::NotImplemented(_)
            | DataFusionError::Configuration(_) => Self::Statement(format!("{text}{position}")),
            DataFusionError::Internal(_) => Self::Internal(text),
            _ => Self::Execution(format!("{text}{position}")),
        }
    }
}
