//! The rows of views, for scripts.

use serde::Deserialize;
use vramscope_insight::group::GroupBy;
use vramscope_trace::{Count, DeviceState, MemoryState, Percent, Replay};

use crate::jobs::Job;
use crate::link::PaneLink;
use crate::model::AllDevices;
use crate::ui::Node;
use crate::view::{Context, Table, Topic, ViewContent};
use crate::views::ViewId;

use super::session::{Session, SessionReport};

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
/// The name by which scripts request the parts of the devices' memory as rows.
const OWNERS: &str = "owners";
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

    /// Converts the script's options to those of a pane that shows the view called `view`; an error
    /// names an unknown grouping.
    fn pane(&self, view: &str) -> Result<PaneLink, String> {
        let by = self.by.as_deref();
        let by = by.map(|name| GroupBy::from_name(name).ok_or_else(|| format!("there is no grouping by {name:?}")));
        let sort = self.sort.as_deref().map(|sort| match sort.strip_prefix('-') {
            Some(column) => (column.to_owned(), false),
            None => (sort.to_owned(), true),
        });
        Ok(PaneLink {
            by: by.transpose()?,
            mode: self.mode.clone(),
            sort,
            filter: self.filter.clone().unwrap_or_default(),
            number: self.number,
            ..PaneLink::new(view)
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
        if view == OWNERS {
            let rows = self.owner_rows(options.event)?;
            let limit = options.limit.map_or(usize::MAX, |limit| limit as usize);
            return serde_json::to_string(&rows[..rows.len().min(limit)]).map_err(|error| error.to_string());
        }
        let id = ViewId::for_rows(view).ok_or_else(|| format!("there are no rows called {view:?}"))?;
        let pane = options.pane(view)?;
        self.read_history_for(id)?;
        let limit = options.limit.unwrap_or(MAX_ROWS).min(MAX_ROWS);
        let table = self.with_options(id, Some(&pane), limit, |session| session.table(view, id, &options))?;
        serde_json::to_string(&table.objects()).map_err(|error| error.to_string())
    }

    /// Calls `compute` while a view has other options, and the limit for the rows of scripts.
    fn with_options<R>(
        &mut self,
        view: ViewId,
        pane: Option<&PaneLink>,
        limit: u64,
        compute: impl FnOnce(&mut Self) -> R,
    ) -> R {
        let options = self.views.get_mut(view).options();
        let before = options.pane_link(view.name());
        if let Some(pane) = pane {
            options.open(pane);
        }
        options.rows().limit = Some(limit);
        let result = compute(self);
        let options = self.views.get_mut(view).options();
        options.open(&before);
        options.rows().limit = None;
        result
    }

    /// Computes the rows of a view that scripts request by `name`.
    fn table(&mut self, name: &str, view: ViewId, options: &RowsOptions) -> Result<Table, String> {
        let recording = self.model.recording();
        let event = options.event.map(|event| event.clamp(recording.first_event(), recording.end_event()));
        let mut replay = Replay::new();
        let state = match event.filter(|event| *event != self.model.state().event()) {
            Some(event) => Some(replay.seek(recording, event).map_err(|error| error.to_string())?),
            None => None,
        };
        let content = loop {
            self.analysis.shared.is_unfinished = false;
            let content = self.content_at(name, view, options, state);
            if !self.analysis.shared.is_unfinished {
                break content;
            }
        };
        let ViewContent { table, content, .. } = content;
        table.ok_or_else(|| match content.first() {
            Some(Node::Element(element)) => element.text_content(),
            _ => format!("{name:?} has no rows"),
        })
    }

    /// Computes the content of a view for scripts, at the moment on the screen or in `state`.
    fn content_at(
        &mut self,
        name: &str,
        view: ViewId,
        options: &RowsOptions,
        state: Option<&MemoryState>,
    ) -> ViewContent {
        let content = self.with_view(view, |view, context, shared| {
            let empty = DeviceState::default();
            let mut context = Context {
                range: (options.from.unwrap_or(context.range.0), options.to.unwrap_or(context.range.1)),
                has_range: context.has_range || options.from.is_some() || options.to.is_some(),
                step_span: options.span.as_deref().or(context.step_span),
                ..*context
            };
            if let Some(state) = state {
                context.state = state.device(context.device).unwrap_or(&empty);
                context.all_devices = AllDevices::Known(state);
                (context.moment, context.time_ns) = (state.event(), state.time_ns());
            }
            match view.rows(name, &context, shared) {
                Some(table) => ViewContent { table: Some(table), ..ViewContent::default() },
                None => view.content(&context, shared),
            }
        });
        // A script's call waits until all views are loaded; a user's does not.
        let Some(content) = content else { return ViewContent::message("the view is being loaded: try again") };
        self.or_unknown(view, content)
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
        let kind = ViewId::for_rows(view);
        if kind == Some(ViewId::about(Topic::Settings)) {
            return Ok(matches!(self.wanted_job(), None | Some(Job::Findings)));
        }
        if let Some(event) = options.event {
            let missing = self.model.recording().missing(event);
            if !missing.is_empty() {
                self.analysis.shared.missing = missing;
                return Ok(false);
            }
        }
        let reads_events_itself = kind == Some(ViewId::about(Topic::Events));
        if !kind.is_some_and(|kind| kind.info().needs_history) {
            return Ok(true);
        }
        self.want_history();
        if self.work(EVENTS_PER_PART).map_err(|error| error.to_string())? {
            return Ok(false);
        }
        // Events are read on their own.
        Ok(reads_events_itself || self.reading_progress().is_none())
    }

    /// Reads the rest of the recording if the rows of `view` need it.
    ///
    /// # Errors
    /// If the recording cannot be read, or parts of it are not loaded.
    fn read_history_for(&mut self, view: ViewId) -> Result<(), String> {
        if !view.info().needs_history {
            return Ok(());
        }
        self.want_history();
        while self.work(EVENTS_PER_STEP).map_err(|error| error.to_string())? {}
        // Events are read on their own.
        match self.reading_progress().filter(|_| view != ViewId::about(Topic::Events)) {
            Some(progress) => Err(format!("the recording is being loaded ({}): try again", Percent(progress))),
            None => Ok(()),
        }
    }

    /// Copies the table of a view as text with tab-separated columns.
    ///
    /// # Errors
    /// If the view has no table, or its part of the recording is not loaded.
    pub(super) fn copy_table(&mut self, view: ViewId, report: &mut SessionReport) -> Result<(), String> {
        self.read_history_for(view)?;
        let compute = |session: &mut Self| session.table(view.name(), view, &RowsOptions::default());
        let mut table = self.with_options(view, None, MAX_COPIED_ROWS, compute)?;
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
