//! Watches what is shown of a run: by a server in this process, or on the page in a browser.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use vramscope_fleet::Follower;
use vramscope_insight::fleet::FleetView;

use crate::browser::{Browser, Window};
use crate::http;
use crate::program::Program;

/// Longest wait until the page has started.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// What is shown at a moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown {
    /// The number of the view; a new one has another number.
    pub(super) tick: u64,
    /// Number of ranks.
    pub(super) ranks: usize,
    /// The ranks that are marked, the most different first.
    pub(super) outliers: Vec<u32>,
    /// Lag in milliseconds: of each rank, or what 95% of the ranks do not exceed.
    pub(super) lags_ms: Vec<u64>,
}

/// Something that shows a run.
pub(super) trait Watch {
    /// Returns what is shown now.
    fn look(&mut self) -> Shown;
    /// Returns how many summaries of all ranks have arrived, and how many are missing.
    fn totals(&self) -> [u64; 2];
    /// Returns the identities of the processes that the server shows.
    fn identities(&self) -> BTreeSet<String>;
    /// Returns the process id of the server, unless it is this process.
    fn server(&self) -> Option<u32>;
    /// Returns the times that 95% of the page's frames do not exceed, in milliseconds: from one
    /// frame to the next, and drawing. `None` without a page.
    fn frames_ms(&self) -> Option<[f64; 2]>;
}

/// Watches a server in this process.
pub(super) struct FollowerWatch {
    follower: Follower,
    seen: Option<Arc<FleetView>>,
    tick: u64,
}

impl FollowerWatch {
    pub(super) fn new(follower: Follower) -> Self {
        Self { follower, seen: None, tick: 0 }
    }
}

impl Watch for FollowerWatch {
    fn look(&mut self) -> Shown {
        let view = self.follower.view();
        if self.seen.as_ref().is_none_or(|seen| !Arc::ptr_eq(seen, &view)) {
            self.tick += 1;
            self.seen = Some(Arc::clone(&view));
        }
        Shown {
            tick: self.tick,
            ranks: view.ranks.len(),
            outliers: view.outliers().iter().filter_map(|row| row.rank).collect(),
            lags_ms: view.ranks.iter().map(|row| row.lag_ns / 1_000_000).collect(),
        }
    }

    fn totals(&self) -> [u64; 2] {
        let view = self.follower.view();
        let sum = |get: fn(&vramscope_insight::fleet::RankRow) -> u64| view.ranks.iter().map(get).sum();
        [sum(|row| row.summaries), sum(|row| row.lost_summaries)]
    }

    fn identities(&self) -> BTreeSet<String> {
        self.follower.view().ranks.iter().map(|row| row.identity.0.clone()).collect()
    }

    fn server(&self) -> Option<u32> {
        None
    }

    fn frames_ms(&self) -> Option<[f64; 2]> {
        None
    }
}

/// What `window.vramscopeFleet.state()` returns, as far as it is used here.
#[derive(Debug, Deserialize)]
struct PageState {
    ranks: usize,
    outliers: Vec<PageOutlier>,
    ticks: u64,
    lag_p95_ms: f64,
    frame_ms_p95: f64,
    draw_ms_p95: f64,
}

#[derive(Debug, Deserialize)]
struct PageOutlier {
    rank: Option<u32>,
}

/// What `/fleet.json` has, as far as it is used here.
#[derive(Debug, Deserialize)]
struct FleetJson {
    ranks: Vec<RankJson>,
}

#[derive(Debug, Deserialize)]
struct RankJson {
    identity: String,
    summaries: u64,
    lost_summaries: u64,
}

/// Watches the fleet page of a server in headless Chromium.
pub(super) struct PageWatch {
    browser: Browser,
    server: Program,
}

impl PageWatch {
    /// Starts a server for the run at `url`, and opens its page.
    pub(super) fn start(url: &str) -> Self {
        let server = Program::start(["serve", "--from", url]);
        let browser = Browser::start(Window { width: 1440, height: 900, ..Window::default() });
        browser.open(&server.url_of("/fleet/"));
        let deadline = Instant::now() + PAGE_TIMEOUT;
        let is_ready = "return window.vramscopeFleet?.ready.then(() => true) ?? false";
        while browser.run(is_ready, &[]) != true {
            assert!(Instant::now() < deadline, "the page does not start");
            thread::sleep(Duration::from_millis(50));
        }
        Self { browser, server }
    }

    /// Returns what the server knows of all ranks.
    fn fleet(&self) -> FleetJson {
        let response = http::request(self.server.url(), "GET", "/fleet.json", "").expect("the server answers");
        serde_json::from_slice(&response.body).expect("the server sends JSON")
    }

    fn state(&self) -> PageState {
        let state = self.browser.run("return window.vramscopeFleet.state()", &[]);
        serde_json::from_value(state).expect("the page's state has these fields")
    }
}

impl Watch for PageWatch {
    fn look(&mut self) -> Shown {
        let state = self.state();
        Shown {
            tick: state.ticks,
            ranks: state.ranks,
            outliers: state.outliers.iter().filter_map(|outlier| outlier.rank).collect(),
            lags_ms: vec![state.lag_p95_ms as u64],
        }
    }

    fn totals(&self) -> [u64; 2] {
        let fleet = self.fleet();
        let sum = |get: fn(&RankJson) -> u64| fleet.ranks.iter().map(get).sum();
        [sum(|rank| rank.summaries), sum(|rank| rank.lost_summaries)]
    }

    fn identities(&self) -> BTreeSet<String> {
        self.fleet().ranks.into_iter().map(|rank| rank.identity).collect()
    }

    fn server(&self) -> Option<u32> {
        Some(self.server.pid())
    }

    fn frames_ms(&self) -> Option<[f64; 2]> {
        let state = self.state();
        Some([state.frame_ms_p95, state.draw_ms_p95])
    }
}
