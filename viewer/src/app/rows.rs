//! The rows of views, for scripts.

use serde::Deserialize;
use vramscope_insight::group::GroupBy;
use vramscope_trace::{Count, Percent};

use crate::jobs::Job;
use crate::model::AllDevices;
use crate::view::context::{Context, ViewContent, ViewOptions};
use crate::view::table::Table;
use crate::views::{self, ViewCaches, ViewKind};

use super::core::{Session, SessionReport};

/// The options of `window.vramscope.rows(view, options)`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct RowsOptions {
    /// The moment, as an event number; that on the screen without.
    event: Option<u64>,
    /// First event number of the range.
    from: Option<u64>,
    /// Last event number of the range.
    to: Option<u64>,
    /// Grouping of the rows.
    by: Option<String>,
    /// The view's variant.
    mode: Option<String>,
    /// A filter, as typed in the view's field.
    filter: Option<String>,
    /// Name of the column to sort by; a minus sign before it sorts in ascending order.
    sort: Option<String>,
    /// Name of the span that marks a step.
    span: Option<String>,
    /// A number that the view's controls set.
    number: Option<u64>,
    /// Maximum number of rows.
    limit: Option<u64>,
}

/// The name by which scripts request the findings (problems in the recording) as rows; no pane
/// shows them.
const FINDINGS: &str = "findings";
/// The name by which scripts request the verdict, what to say first, as one row.
const VERDICT: &str = "verdict";
/// Number of events that one step reads when the rest of the recording is read at once for a view's
/// rows.
const EVENTS_PER_STEP: u64 = 1 << 20;
/// Number of events that one call of [`Session::prepare_rows`] reads while a script waits for rows.
const EVENTS_PER_PART: u64 = 1 << 16;
/// Maximum number of rows of a table that are copied to the clipboard.
const MAX_COPIED_ROWS: u64 = 100_000;
/// Maximum number of rows that scripts get if they do not state a limit.
const MAX_ROWS: u64 = 1_000_000;

impl RowsOptions {
    /// Parses the options of a call in JSON; an empty text or `null` means the defaults.
    fn parse(view: &str, options: &str) -> Result<Self, String> {
        match options {
            "" | "null" => Ok(Self::default()),
            text => serde_json::from_str(text).map_err(|error| format!("rows({view:?}): {error}")),
        }
    }

    /// Converts the script's options to options of the view; an error names an unknown grouping or
    /// option.
    fn view_options(&self) -> Result<ViewOptions, String> {
        let by = match self.by.as_deref() {
            Some(name) => Some(GroupBy::from_name(name).ok_or_else(|| format!("there is no grouping by {name:?}"))?),
            None => None,
        };
        let sort = self.sort.as_deref().map(|sort| match sort.strip_prefix('-') {
            Some(column) => (column.to_owned(), false),
            None => (sort.to_owned(), true),
        });
        let filter = self.filter.clone().unwrap_or_default();
        let limit = Some(self.limit.unwrap_or(MAX_ROWS).min(MAX_ROWS));
        Ok(ViewOptions {
            by,
            mode: self.mode.clone(),
            sort,
            filter,
            limit,
            number: self.number,
            ..ViewOptions::default()
        })
    }
}

impl Session {
    /// Returns the rows of a view as JSON: a list of objects. `options` is an object in JSON.
    ///
    /// # Errors
    /// If the view or an option does not exist, or a needed part is not loaded.
    pub fn rows(&mut self, view: &str, options: &str) -> Result<String, String> {
        let options = RowsOptions::parse(view, options)?;
        if view == FINDINGS || view == VERDICT {
            let findings = &self.jobs().findings;
            let list = match view {
                FINDINGS => serde_json::to_string(&findings.list),
                _ => serde_json::to_string(&[&findings.verdict]),
            };
            return findings.error.clone().map_or(list.map_err(|error| error.to_string()), Err);
        }
        let view_options = options.view_options()?;
        self.read_history_for(view)?;
        let table = self.with_context(ViewKind::About, |context, _, caches| {
            let mut replay = vramscope_trace::Replay::new();
            let recording = context.recording;
            let event = options
                .event
                .map_or(context.moment, |event| event.clamp(recording.first_event(), recording.end_event()));
            let range = (options.from.unwrap_or(context.range.0), options.to.unwrap_or(context.range.1));
            let has_range = context.has_range || options.from.is_some() || options.to.is_some();
            let step_span = options.span.as_deref().or(context.step_span);
            let at_moment = Context { range, has_range, step_span, ..*context };
            if event == context.moment {
                return table(view, &at_moment, &view_options, caches);
            }
            let state = replay.seek(recording, event).map_err(|error| error.to_string())?;
            let empty = vramscope_trace::DeviceState::default();
            let context = Context {
                state: state.device(context.device).unwrap_or(&empty),
                all_devices: AllDevices::Known(state),
                moment: event,
                time_ns: state.time_ns(),
                ..at_moment
            };
            table(view, &context, &view_options, caches)
        })?;
        serde_json::to_string(&table.objects()).map_err(|error| error.to_string())
    }

    /// Reads a part of the events that the rows of `view` need. Returns true once everything is
    /// read; before, the caller supplies [`needed_fetches`](Self::needed_fetches) and calls this
    /// again.
    ///
    /// # Errors
    /// If the options are invalid, or the recording cannot be read.
    pub fn prepare_rows(&mut self, view: &str, options: &str) -> Result<bool, String> {
        let options = RowsOptions::parse(view, options)?;
        if view == FINDINGS || view == VERDICT {
            return Ok(self.has_findings());
        }
        let kind = ViewKind::for_rows(view);
        if kind == Some(ViewKind::WhatIf) {
            return Ok(matches!(self.wanted_job(), None | Some(Job::Findings)));
        }
        if let Some(event) = options.event {
            let missing = self.model.recording().missing(event);
            if !missing.is_empty() {
                self.analysis.caches.shared.missing = missing;
                return Ok(false);
            }
        }
        if !kind.is_some_and(ViewKind::needs_history) {
            return Ok(true);
        }
        self.want_history();
        if self.work(EVENTS_PER_PART).map_err(|error| error.to_string())? {
            return Ok(false);
        }
        // Events are read on their own.
        Ok(kind == Some(ViewKind::Events) || self.reading_progress().is_none())
    }

    /// Reads the rest of the recording if the rows of `view` need it.
    ///
    /// # Errors
    /// If the recording cannot be read, or parts of it are not loaded.
    fn read_history_for(&mut self, view: &str) -> Result<(), String> {
        let Some(kind) = ViewKind::for_rows(view).filter(|kind| kind.needs_history()) else { return Ok(()) };
        self.want_history();
        while self.work(EVENTS_PER_STEP).map_err(|error| error.to_string())? {}
        // Events are read on their own.
        match self.reading_progress().filter(|_| kind != ViewKind::Events) {
            Some(progress) => Err(format!("the recording is being loaded ({}): try again", Percent(progress))),
            None => Ok(()),
        }
    }

    /// Copies the table of a view as text with tab-separated columns.
    ///
    /// # Errors
    /// If the view has no table, or its part of the recording is not loaded.
    pub(super) fn copy_table(&mut self, view: ViewKind, report: &mut SessionReport) -> Result<(), String> {
        self.read_history_for(view.name())?;
        let mut table = self.with_context(view, |context, options, caches| {
            let options = ViewOptions { limit: Some(MAX_COPIED_ROWS), ..options.clone() };
            table(view.name(), context, &options, caches)
        })?;
        let rows = table.window.map_or(table.rows.len() as u64, |(rows, _)| rows);
        table.rows.truncate(usize::try_from(MAX_COPIED_ROWS).unwrap_or(usize::MAX));
        if rows > MAX_COPIED_ROWS {
            let (copied, rows) = (Count(MAX_COPIED_ROWS), Count(rows).of("row", "rows"));
            report.messages.push(format!("copied the first {copied} of {rows}: use a filter to copy others"));
        }
        report.clipboard = Some(table.to_tsv());
        Ok(())
    }
}

/// Computes the table of the view called `view`, with at most the number of rows in the options.
fn table(view: &str, context: &Context<'_>, options: &ViewOptions, caches: &mut ViewCaches) -> Result<Table, String> {
    if view == "blocks" {
        let by = options.by.unwrap_or(GroupBy::Site);
        let grouping = caches.shared.groupings.get(by, context.recording);
        return Ok(views::sites::blocks_table(context, grouping, options.limit));
    }
    let kind = ViewKind::for_rows(view).ok_or_else(|| format!("there are no rows called {view:?}"))?;
    let ViewContent { table, content, .. } = loop {
        caches.shared.is_unfinished = false;
        let content = views::content(kind, context, options, caches);
        if !caches.shared.is_unfinished {
            break content;
        }
    };
    table.ok_or_else(|| match content.first() {
        Some(crate::ui::Node::Element(element)) => element.text_content(),
        _ => format!("{view:?} has no rows"),
    })
}
