//! The tools: their arguments and results with schemas, and their implementations.

use std::path::Path;

use rmcp::model::{JsonObject, Tool as ToolDescription, ToolAnnotations};
use schemars::{JsonSchema, Schema, json_schema};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use vramscope_insight::comparison::Moment;
use vramscope_insight::group::GroupBy;
use vramscope_insight::verdict::DiagnosisReport;
use vramscope_trace::{ByteSize, DeviceId, PerRecording};

use super::bounds::{DEFAULT_LIMIT, MAX_LIMIT, Output, bounded, checked_limit};
use super::sources::{AllowedSource, Sources};
use crate::diff::compared::{Compared, compare_operands};
use crate::diff::json;
use crate::diff::operand::Operand;
use crate::error::{CommandError, Result};
use crate::operation::Operation;
use crate::reports::{advise, autopsy, diagnose, info, table};
use crate::simulation::LimitArguments;

/// Description of the arguments that name a recording.
const SOURCE: &str = "Path of a recording (.vram, or an .html export), PyTorch memory snapshot (.pickle, .json) or RMM \
    log (.csv), each also with .gz or .zst; or the URL that a live program printed, such as \
    http://127.0.0.1:7791/, to read what it has recorded so far";
/// Description of the argument `limit`.
const LIMIT: &str = "The most entries of each list in the result; left_out counts the others";
/// Description of the argument `limit_bytes`.
const LIMIT_BYTES: &str = "Memory limit that the recorded process ran under, such as 40GiB; recordings do not contain \
    it. By default it is inferred from out-of-memory errors";
/// Description of the arguments that name a moment.
const MOMENT: &str = "Moment to compare: peak (of the allocated bytes), end, the number of an event, step:N or \
    span:NAME (the peaks within a step, and within the first span with a name)";

/// A tool that a client can call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tool {
    Info,
    Table,
    Diagnose,
    Autopsy,
    Advise,
    Diff,
}

/// Arguments of `info`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct InfoArguments {
    #[schemars(description = SOURCE)]
    source: String,
    #[serde(default = "default_limit")]
    #[schemars(description = LIMIT, range(min = 1, max = MAX_LIMIT))]
    limit: usize,
}

/// Arguments of `table`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TableArguments {
    #[schemars(description = SOURCE)]
    source: String,
    /// What to group by. phase, line, op, module, category and site are the most useful
    #[schemars(schema_with = "group_by_schema")]
    by: String,
    /// Moment of the live bytes: peak (of the allocated bytes), end, or the number of an event
    #[serde(default = "default_at")]
    #[schemars(regex(pattern = "^(peak|end|[0-9]+)$"))]
    at: String,
    #[serde(default = "default_limit")]
    #[schemars(description = LIMIT, range(min = 1, max = MAX_LIMIT))]
    limit: usize,
}

/// Arguments of `diagnose` and of `autopsy`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FindingsArguments {
    #[schemars(description = SOURCE)]
    source: String,
    #[serde(default)]
    #[schemars(description = LIMIT_BYTES)]
    limit_bytes: Option<String>,
    #[serde(default = "default_limit")]
    #[schemars(description = LIMIT, range(min = 1, max = MAX_LIMIT))]
    limit: usize,
}

/// Arguments of `advise`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AdviseArguments {
    #[schemars(description = SOURCE)]
    source: String,
    /// Most bytes that the simulated allocator may reserve, such as 40GiB. By default the recorded
    /// limit, or the device's memory
    #[serde(default)]
    capacity: Option<String>,
    #[serde(default)]
    #[schemars(description = LIMIT_BYTES)]
    limit_bytes: Option<String>,
    #[serde(default = "default_limit")]
    #[schemars(description = LIMIT, range(min = 1, max = MAX_LIMIT))]
    limit: usize,
}

/// Arguments of `diff`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DiffArguments {
    #[schemars(description = SOURCE)]
    a: String,
    /// The recording to compare with a, named in the same way; may be a itself, for two of its
    /// moments or devices
    b: String,
    #[serde(default = "default_at")]
    #[schemars(description = MOMENT)]
    a_moment: String,
    #[serde(default = "default_at")]
    #[schemars(description = MOMENT)]
    b_moment: String,
    /// Device of a to compare; by default all
    #[serde(default)]
    a_device: Option<u16>,
    /// Device of b to compare; by default that of a
    #[serde(default)]
    b_device: Option<u16>,
    #[serde(default = "default_limit")]
    #[schemars(description = LIMIT, range(min = 1, max = MAX_LIMIT))]
    limit: usize,
}

/// Returns the number of rows of a table, if the client sets no `limit`.
fn default_limit() -> usize {
    DEFAULT_LIMIT
}

fn default_at() -> String {
    "peak".to_owned()
}

/// Returns the schema of the names of groupings.
fn group_by_schema(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": GroupBy::ALL.map(GroupBy::name) })
}

impl Tool {
    /// All tools, in the order in which clients list them.
    pub(super) const ALL: [Self; 6] =
        [Self::Info, Self::Table, Self::Diagnose, Self::Autopsy, Self::Advise, Self::Diff];

    /// Returns the tool's name, which is also the name of the command.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Table => "table",
            Self::Diagnose => "diagnose",
            Self::Autopsy => "autopsy",
            Self::Advise => "advise",
            Self::Diff => "diff",
        }
    }

    /// Returns the tool with a name.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tool| tool.name() == name)
    }

    /// Returns the tool's texts and schemas, which clients show.
    pub(super) fn description(self) -> ToolDescription {
        let (title, text) = match self {
            Self::Info => (
                "Summarize a recording",
                "Returns the format, the recorded program and its allocator settings, and for each device the memory \
                 at the end, the peaks with their events, fragmentation and the number of out-of-memory errors.",
            ),
            Self::Table => (
                "Show who holds memory",
                "Groups the live bytes at a moment (by default the peak) by source line, operation, module, phase or \
                 another key, largest first, with each group's own peak and allocations.",
            ),
            Self::Diagnose => (
                "Find memory problems",
                "Returns the memory problems of a recording, the worst first: leaks, growth, fragmentation, \
                 out-of-memory errors and others, each with its bytes, the line of the program that causes it, a \
                 summary and a remedy. An empty list means that none was found.",
            ),
            Self::Autopsy => (
                "Explain out-of-memory errors",
                "Returns for each out-of-memory error its cause in a sentence, what held memory by source line, what \
                 was free and why it could not be used, and remedies that were checked by simulation. Also names \
                 known defects of PyTorch's allocator that waste memory in this recording.",
            ),
            Self::Advise => (
                "Find better allocator settings",
                "Simulates allocator settings (PYTORCH_CUDA_ALLOC_CONF) on the recorded requests and returns them \
                 ranked, the best with what it saves, the least memory that the program needs and the smallest GPU. \
                 Takes seconds to minutes.",
            ),
            Self::Diff => (
                "Compare two recordings or moments",
                "Compares memory between two recordings, moments or devices: totals, categories, the first request \
                 that differs, and each call stack's change in bytes, largest first. a is before, b is after.",
            ),
        };
        let annotations = ToolAnnotations::new().read_only(true).idempotent(true).open_world(false);
        let tool = ToolDescription::new(self.name(), text, JsonObject::new()).with_title(title);
        let tool = tool.with_annotations(annotations);
        match self {
            Self::Info => with_schemas::<InfoArguments, info::Summary>(tool),
            Self::Table => with_schemas::<TableArguments, table::TableReport>(tool),
            Self::Diagnose => with_schemas::<FindingsArguments, DiagnosisReport>(tool),
            Self::Autopsy => with_schemas::<FindingsArguments, autopsy::AutopsyReport>(tool),
            Self::Advise => with_schemas::<AdviseArguments, advise::AdviceReport>(tool),
            Self::Diff => with_schemas::<DiffArguments, json::DiffReport<'static>>(tool),
        }
    }

    /// Runs the tool and returns its result.
    pub(super) fn run(self, arguments: JsonObject, sources: &Sources, operation: &Operation) -> Result<Value> {
        match self {
            Self::Info => run_info(parse(arguments)?, sources, operation),
            Self::Table => run_table(parse(arguments)?, sources, operation),
            Self::Diagnose => run_diagnose(parse(arguments)?, sources, operation),
            Self::Autopsy => run_autopsy(parse(arguments)?, sources, operation),
            Self::Advise => run_advise(parse(arguments)?, sources, operation),
            Self::Diff => run_diff(parse(arguments)?, sources, operation),
        }
    }
}

/// Adds the schemas of a tool's arguments `A` and of its report `R` to its description.
fn with_schemas<A: JsonSchema + 'static, R: JsonSchema + 'static>(tool: ToolDescription) -> ToolDescription {
    tool.with_input_schema::<A>().with_output_schema::<Output<R>>()
}

/// Parses a tool's arguments.
fn parse<T: DeserializeOwned>(arguments: JsonObject) -> Result<T> {
    serde_json::from_value(Value::Object(arguments))
        .map_err(|error| CommandError::new(format_args!("arguments: {error}; the input schema describes them")))
}

/// Parses the argument `name` with a size.
fn parse_size(name: &str, text: Option<&str>) -> Result<Option<ByteSize>> {
    let parse = |text: &str| text.parse().map_err(|error| CommandError::new(format_args!("{name}: {error}")));
    text.map(parse).transpose()
}

fn run_info(arguments: InfoArguments, sources: &Sources, operation: &Operation) -> Result<Value> {
    let limit = checked_limit(arguments.limit)?;
    let source = sources.resolve(&arguments.source)?;
    let (summary, _) = info::summary(source.name(), source.open(operation)?)?;
    Ok(bounded(&summary, limit, operation.messages()))
}

fn run_table(arguments: TableArguments, sources: &Sources, operation: &Operation) -> Result<Value> {
    let limit = checked_limit(arguments.limit)?;
    let by = GroupBy::from_name(&arguments.by).ok_or_else(|| {
        let names = GroupBy::ALL.map(GroupBy::name).join(", ");
        CommandError::new(format_args!("by: {:?} is not a grouping: use one of {names}", arguments.by))
    })?;
    let at = arguments.at.parse().map_err(|error| CommandError::new(format_args!("at: {error}")))?;
    let source = sources.resolve(&arguments.source)?;
    let recording = source.open(operation)?.into_recording()?;
    let report = table::TableReport::new(source.name(), &recording, by, at, operation)?;
    Ok(bounded(&report, limit, operation.messages()))
}

fn run_diagnose(arguments: FindingsArguments, sources: &Sources, operation: &Operation) -> Result<Value> {
    let limit = checked_limit(arguments.limit)?;
    let limit_bytes = parse_size("limit_bytes", arguments.limit_bytes.as_deref())?;
    let source = sources.resolve(&arguments.source)?;
    let recording = source.open(operation)?.into_recording()?;
    let diagnosed = diagnose::problems(source.name(), &recording, limit_bytes, operation)?.diagnosed;
    Ok(bounded(&DiagnosisReport::new(&recording, &diagnosed), limit, operation.messages()))
}

fn run_autopsy(arguments: FindingsArguments, sources: &Sources, operation: &Operation) -> Result<Value> {
    let limit = checked_limit(arguments.limit)?;
    let limit_bytes = parse_size("limit_bytes", arguments.limit_bytes.as_deref())?;
    let source = sources.resolve(&arguments.source)?;
    let recording = source.open(operation)?.into_recording()?;
    let examination = autopsy::Examination::new(source.name(), &recording, limit_bytes, operation)?;
    Ok(bounded(&examination.report(), limit, operation.messages()))
}

fn run_advise(arguments: AdviseArguments, sources: &Sources, operation: &Operation) -> Result<Value> {
    let limit = checked_limit(arguments.limit)?;
    let limits = LimitArguments {
        capacity: parse_size("capacity", arguments.capacity.as_deref())?,
        limit_bytes: parse_size("limit_bytes", arguments.limit_bytes.as_deref())?,
    };
    let source = sources.resolve(&arguments.source)?;
    let recording = source.open(operation)?.into_recording()?;
    let advised = advise::Advised::new(source.name(), &recording, &limits, operation)?;
    Ok(bounded(&advised.report(), limit, operation.messages()))
}

fn run_diff(arguments: DiffArguments, sources: &Sources, operation: &Operation) -> Result<Value> {
    let limit = checked_limit(arguments.limit)?;
    let resolved = PerRecording { a: sources.resolve(&arguments.a)?, b: sources.resolve(&arguments.b)? };
    let operand = |source: &AllowedSource, moment: &str| {
        let moment: Moment = moment.parse().map_err(CommandError::new)?;
        let text = source.name().display().to_string();
        Ok(Operand { path: source.name().to_owned(), moment, text })
    };
    let operands =
        PerRecording { a: operand(&resolved.a, &arguments.a_moment)?, b: operand(&resolved.b, &arguments.b_moment)? };
    let devices = match (arguments.a_device, arguments.b_device) {
        (None, None) => None,
        (Some(a), b) => Some(PerRecording { a: DeviceId(a), b: DeviceId(b.unwrap_or(a)) }),
        (None, Some(_)) => {
            return Err(CommandError::new("b_device needs a_device: the device of a to compare it with"));
        }
    };
    let source_at = |path: &Path| if path == resolved.a.name() { &resolved.a } else { &resolved.b };
    let comparison = compare_operands(&operands, devices, |path| source_at(path).open(operation), operation)?;
    let compared = Compared { operands, comparison, checks: Vec::new() };
    Ok(bounded(&json::DiffReport::new(&compared), limit, operation.messages()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_has_schemas_with_descriptions() {
        for tool in Tool::ALL {
            let description = tool.description();
            let input = Value::Object((*description.input_schema).clone());
            let properties = input["properties"].as_object().expect("the arguments have properties");
            assert!(!properties.is_empty(), "{input}");
            for (name, property) in properties {
                assert!(property["description"].is_string(), "{name} of {}: {property}", tool.name());
            }
            assert_eq!(input["additionalProperties"], false, "{input}");
            let output = description.output_schema.expect("every result has a schema");
            assert_eq!(output["type"], "object");
            let properties = output["properties"].as_object().expect("the result has properties");
            assert!(["left_out", "messages"].iter().all(|name| properties.contains_key(*name)), "{output:?}");
            assert!(properties.len() > 2, "{output:?}");
            let annotations = description.annotations.expect("the tool has annotations");
            assert_eq!(annotations.read_only_hint, Some(true));
        }
    }
}
