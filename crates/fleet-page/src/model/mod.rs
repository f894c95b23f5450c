//! The ranks on the page, the user's choices and the selection.

use serde::{Deserialize, Serialize};
use serde_json::json;
use vramscope_insight::fleet::{
    EventsState, FleetView, MarkedMetric, ProcessIdentity, RankRow, ViewDecoder, WireError,
};

use crate::arrange::{Group, arrange};
use crate::frame_times::percentile_95;
use crate::layout::{Direction, Layout};
use crate::metric::Scale;
use crate::scene::Scene;
use crate::settings::{GroupBy, Settings, SortBy};

/// Minimum time in nanoseconds, by the broker's clock, between two rearrangements of cells that are
/// sorted by a metric.
const SORT_INTERVAL_NS: u64 = 1_000_000_000;

/// A text message of the server: the greeting at the start of a connection, or the reason why a
/// command failed.
#[derive(Deserialize)]
#[serde(untagged)]
enum ServerMessage {
    Greeting { run: String, allowed: bool },
    Failure { error: String },
}

/// The state of the page: the ranks, the user's settings and selection, and the connection.
#[derive(Debug, Default)]
pub struct FleetModel {
    decoder: ViewDecoder,
    /// True until the first message of a connection: the view is that of the connection before.
    is_stale: bool,
    run: String,
    may_command: bool,
    is_connected: bool,
    ticks: u64,
    settings: Settings,
    /// Width and height of the area with the cells.
    area: (f32, f32),
    groups: Vec<Group>,
    layout: Layout,
    /// The time of the view by which the cells were arranged.
    arranged_ns: u64,
    selected: Option<ProcessIdentity>,
    /// The index of the row under the pointer.
    hovered: Option<usize>,
    /// The rank that is shown on the main page once its events arrive.
    opening: Option<Opening>,
}

/// A rank that will be shown on the main page once the server has read its events.
#[derive(Debug)]
struct Opening {
    identity: ProcessIdentity,
    /// True if the server has read its events since.
    was_read: bool,
}

/// The state of the page that `window.vramscopeFleet.state()` returns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PageState {
    /// The name of the run.
    pub run: String,
    /// Number of ranks.
    pub ranks: usize,
    /// The ranks that differ, the most different first.
    pub outliers: Vec<StateOutlier>,
    /// The selected rank.
    pub selected: Option<u32>,
    /// The rank that is being opened.
    pub opening: Option<u32>,
    /// True while the server is connected.
    pub connected: bool,
    /// Number of views that have arrived.
    pub ticks: u64,
    /// Number of summaries, of all ranks, that are missing.
    pub lost_summaries: u64,
    /// Lag that 95% of the ranks do not exceed, in milliseconds.
    pub lag_p95_ms: f64,
    /// Time from one drawn frame to the next frame of the browser, in milliseconds: 95% are not
    /// longer.
    pub frame_ms_p95: f64,
    /// Time in which the page's own code made a frame, in milliseconds: 95% are not longer.
    pub draw_ms_p95: f64,
}

/// A rank that differs in a metric from the other ranks of its group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StateOutlier {
    /// The rank.
    pub rank: Option<u32>,
    /// The process's identity.
    pub identity: String,
    /// The metric in which it differs.
    pub metric: MarkedMetric,
    /// How far it is from the median, in units of the group's spread.
    pub distance: f64,
}

impl FleetModel {
    /// Creates a model without ranks.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Returns the newest view of the ranks that the server has sent.
    #[must_use]
    pub fn view(&self) -> &FleetView {
        self.decoder.view()
    }

    /// Returns the name of the run; empty before the first connection.
    #[must_use]
    pub fn run(&self) -> &str {
        &self.run
    }

    /// Returns true if the server accepts commands from this page.
    #[must_use]
    pub fn may_command(&self) -> bool {
        self.may_command
    }

    /// Returns true while the server is connected.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// Returns the user's settings: metric, grouping and order.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// Returns the property by which ranks are grouped: the user's choice, or the default for these
    /// ranks.
    #[must_use]
    pub fn group_by(&self) -> GroupBy {
        self.settings.group_by.unwrap_or_else(|| GroupBy::default_of(&self.view().ranks))
    }

    /// Returns the color scale of the chosen metric for the ranks in the view.
    #[must_use]
    pub fn scale(&self) -> Scale {
        Scale::of(self.settings.metric, &self.view().ranks)
    }

    /// Handles that the page has connected to the server; the first message will replace the view.
    pub fn connect(&mut self) {
        (self.is_connected, self.is_stale) = (true, true);
    }

    /// Handles that the connection is lost. The last view stays on the page.
    pub fn disconnect(&mut self) {
        self.is_connected = false;
        self.opening = None;
    }

    /// Handles a text message of the server. If it says that a command has failed, returns the
    /// reason.
    pub fn receive_text(&mut self, text: &str) -> Option<String> {
        match serde_json::from_str(text).ok()? {
            ServerMessage::Greeting { run, allowed } => {
                (self.run, self.may_command) = (run, allowed);
                None
            }
            ServerMessage::Failure { error } => {
                self.opening = None;
                Some(error)
            }
        }
    }

    /// Handles a binary message of the server: decodes the view of the ranks and updates the cells.
    ///
    /// # Errors
    /// If the message is damaged or of another version. The caller must then reconnect.
    pub fn receive_view(&mut self, message: &[u8]) -> Result<(), WireError> {
        if std::mem::take(&mut self.is_stale) {
            self.forget();
        }
        let is_full = self.decoder.decode(message).inspect_err(|_| self.forget())?;
        self.ticks += 1;
        let age_ns = self.view().time_unix_ns.saturating_sub(self.arranged_ns);
        // Cells are not moved away from the pointer.
        let is_due = self.settings.sort_by == SortBy::Metric && self.hovered.is_none() && age_ns >= SORT_INTERVAL_NS;
        if is_full || is_due {
            self.arrange();
        }
        Ok(())
    }

    /// Discards the view of the ranks.
    fn forget(&mut self) {
        self.decoder = ViewDecoder::default();
        self.arrange();
    }

    /// Sets the user's settings and rearranges the cells.
    pub fn set_settings(&mut self, settings: Settings) {
        self.settings = settings;
        self.arrange();
    }

    /// Sets the size of the area with the cells, in CSS pixels, and rearranges the cells if it has
    /// changed.
    pub fn resize(&mut self, width: f32, height: f32) {
        if self.area != (width, height) {
            self.area = (width, height);
            self.place();
        }
    }

    /// Groups and sorts the ranks, and computes the positions of their cells.
    fn arrange(&mut self) {
        let Settings { metric, sort_by, .. } = self.settings;
        self.groups = arrange(&self.view().ranks, self.group_by(), sort_by, metric);
        self.arranged_ns = self.view().time_unix_ns;
        self.hovered = None;
        self.place();
    }

    /// Computes the positions of the groups' cells in the area.
    fn place(&mut self) {
        let (width, height) = self.area;
        self.layout = Layout::new(&self.groups, width, height);
    }

    /// Returns the picture of all cells and titles as data.
    #[must_use]
    pub fn scene(&self) -> Scene {
        let rows = &self.view().ranks;
        let mut scene = Scene::new(rows, &self.groups, &self.layout, self.settings.metric, self.scale());
        scene.selected = self.selected_cell();
        scene.hovered = self.hovered.and_then(|row| self.layout.cell_of(row));
        scene
    }

    /// Returns the index of a process's row in the view; `None` if the view lacks the process.
    fn row_of(&self, identity: &ProcessIdentity) -> Option<usize> {
        self.view().ranks.iter().position(|row| row.identity == *identity)
    }

    /// Returns the index of the selected rank's cell; `None` if no rank is selected.
    fn selected_cell(&self) -> Option<usize> {
        self.layout.cell_of(self.row_of(self.selected.as_ref()?)?)
    }

    /// Returns the selected rank; `None` if none is selected, or the view lacks it.
    #[must_use]
    pub fn selected(&self) -> Option<&RankRow> {
        Some(&self.view().ranks[self.row_of(self.selected.as_ref()?)?])
    }

    /// Returns the rank whose details are shown: the one under the pointer, else the selected one,
    /// else `None`.
    #[must_use]
    pub fn shown(&self) -> Option<&RankRow> {
        self.hovered.and_then(|row| self.view().ranks.get(row)).or_else(|| self.selected())
    }

    /// Returns the upper and the lower edge of the selected cell, in CSS pixels from the area's
    /// upper edge, to scroll to it; `None` if no rank is selected.
    #[must_use]
    pub fn selected_span(&self) -> Option<(f32, f32)> {
        let cell = self.layout.cells[self.selected_cell()?];
        Some((cell.y, cell.y + self.layout.pitch))
    }

    /// Handles that the pointer is at a point of the area, or has left it (`None`). Returns true if
    /// another cell, or none, is under it now.
    pub fn hover(&mut self, point: Option<(f32, f32)>) -> bool {
        let cell = point.and_then(|(x, y)| self.layout.cell_at(x, y));
        let hovered = cell.map(|cell| self.layout.cells[cell].row);
        std::mem::replace(&mut self.hovered, hovered) != hovered
    }

    /// Selects the rank at a point of the area. Returns false if no cell is there.
    pub fn select_at(&mut self, x: f32, y: f32) -> bool {
        let Some(cell) = self.layout.cell_at(x, y) else { return false };
        self.select_row(self.layout.cells[cell].row);
        true
    }

    /// Selects the process with this identity, if there is one.
    pub fn select(&mut self, identity: &str) {
        if let Some(row) = self.view().ranks.iter().position(|row| row.identity.0 == identity) {
            self.select_row(row);
        }
    }

    /// Selects the rank in row `row` of the view.
    fn select_row(&mut self, row: usize) {
        self.selected = self.view().ranks.get(row).map(|row| row.identity.clone());
    }

    /// Moves the selection to the next cell in the direction of a key.
    pub fn move_selection(&mut self, direction: Direction) {
        self.hovered = None;
        if let Some(cell) = self.layout.neighbor(self.selected_cell(), direction) {
            self.select_row(self.layout.cells[cell].row);
        }
    }

    /// Selects the next marked rank (one that differs from its group), in descending order of the
    /// difference; after the last, the first.
    pub fn select_next_outlier(&mut self) {
        let outliers = self.view().outliers();
        let current = outliers.iter().position(|row| Some(&row.identity) == self.selected.as_ref());
        let next = current.map_or(0, |index| index + 1) % outliers.len().max(1);
        if let Some(identity) = outliers.get(next).map(|row| row.identity.clone()) {
            (self.selected, self.hovered) = (Some(identity), None);
        }
    }

    /// Begins to open the selected rank on the main page. Returns the command for the server;
    /// `None` if no rank is selected, the server accepts no commands from this page, or the rank
    /// has ended and the main page can show it without a command.
    pub fn open_selected(&mut self) -> Option<String> {
        let row = self.selected().filter(|_| self.may_command)?;
        let command = (!is_complete(row)).then(|| open_command(row));
        self.opening = Some(Opening { identity: row.identity.clone(), was_read: false });
        command
    }

    /// Returns the command that opens a rank again, if the server has stopped reading the rank that
    /// is being opened before the main page could show it; else `None`. The server answers with the
    /// reason.
    pub fn open_again(&mut self) -> Option<String> {
        let row = self.opening()?;
        let (is_read, is_complete, command) = (row.events != EventsState::Closed, is_complete(row), open_command(row));
        let was_read = &mut self.opening.as_mut()?.was_read;
        (std::mem::replace(was_read, is_read) && !is_read && !is_complete).then_some(command)
    }

    /// Cancels the opening of a rank.
    pub fn cancel_opening(&mut self) {
        self.opening = None;
    }

    /// Returns the rank that is being opened; `None` if there is none.
    #[must_use]
    pub fn opening(&self) -> Option<&RankRow> {
        Some(&self.view().ranks[self.row_of(&self.opening.as_ref()?.identity)?])
    }

    /// Returns the device of the rank that is being opened, once the main page can show it; `None`
    /// before.
    #[must_use]
    pub fn opened_device(&self) -> Option<u16> {
        self.opening().filter(|row| row.events != EventsState::Closed || is_complete(row))?.device
    }

    /// Returns the command that makes the server start or stop reading the events of the selected
    /// rank; `None` if no rank is selected, or the server accepts no commands from this page.
    #[must_use]
    pub fn switch_events(&self) -> Option<String> {
        let row = self.selected().filter(|_| self.may_command)?;
        let command = if row.events == EventsState::Closed { "open" } else { "close" };
        Some(json!({ command: row.identity.0 }).to_string())
    }

    /// Returns the page's state for scripts; the arguments are the 95th percentiles of frame times,
    /// in milliseconds.
    #[must_use]
    pub fn state(&self, frame_ms_p95: f64, draw_ms_p95: f64) -> PageState {
        let rows = &self.view().ranks;
        let outlier = |row: &&RankRow| {
            let outlier = row.outlier?;
            let (metric, distance) = (outlier.metric, outlier.distance);
            Some(StateOutlier { rank: row.rank, identity: row.identity.0.clone(), metric, distance })
        };
        PageState {
            run: self.run.clone(),
            ranks: rows.len(),
            outliers: self.view().outliers().iter().filter_map(outlier).collect(),
            selected: self.selected().and_then(|row| row.rank),
            opening: self.opening().and_then(|row| row.rank),
            connected: self.is_connected,
            ticks: self.ticks,
            lost_summaries: rows.iter().map(|row| row.lost_summaries).sum(),
            lag_p95_ms: lag_p95_ms(rows),
            frame_ms_p95,
            draw_ms_p95,
        }
    }
}

/// Returns true if a rank has ended and the server's recording contains its events.
fn is_complete(row: &RankRow) -> bool {
    row.has_ended && row.device.is_some()
}

/// Returns the command that makes the server read a rank's events.
fn open_command(row: &RankRow) -> String {
    json!({ "open": row.identity.0 }).to_string()
}

/// Returns the 95th percentile of the running ranks' lag, in milliseconds; 0 without running ranks.
pub(crate) fn lag_p95_ms(rows: &[RankRow]) -> f64 {
    let lags = rows.iter().filter(|row| !row.has_ended).map(|row| row.lag_ns as f64 / 1e6);
    percentile_95(&mut lags.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests;
