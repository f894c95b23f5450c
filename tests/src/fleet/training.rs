//! Ranks that train at a steady rate.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::pushing_rank::PushingRank;

/// Interval at which each rank makes events.
const INTERVAL: Duration = Duration::from_millis(100);

/// Ranks that push all their events to a broker, and make them in a thread of their own.
pub(super) struct Training {
    ranks: Arc<Mutex<Vec<PushingRank>>>,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Training {
    /// Starts ranks that make `rate` events a second each and push them to the run at `url`.
    pub(super) fn start(url: &str, ranks: u32, rate: u64) -> Self {
        let url = format!("{url}?push=all");
        let ranks: Vec<PushingRank> = (0..ranks).map(|rank| PushingRank::start(rank, &url)).collect();
        let (ranks, stopped) = (Arc::new(Mutex::new(ranks)), Arc::new(AtomicBool::new(false)));
        let (shared, is_stopped) = (Arc::clone(&ranks), Arc::clone(&stopped));
        let thread = thread::spawn(move || {
            let start = Instant::now();
            let mut ticks: u32 = 0;
            while !is_stopped.load(Ordering::Relaxed) {
                ticks += 1;
                // A late tick is made up for, so that the rate holds.
                thread::sleep((INTERVAL * ticks).saturating_sub(start.elapsed()));
                let wanted = (start.elapsed().as_secs_f64() * rate as f64) as u64;
                for rank in shared.lock().unwrap_or_else(PoisonError::into_inner).iter_mut() {
                    rank.program.run(wanted.saturating_sub(rank.program.events()));
                }
            }
        });
        Self { ranks, stopped, thread: Some(thread) }
    }

    /// Returns the ranks, which make no events while they are locked.
    pub(super) fn ranks(&self) -> MutexGuard<'_, Vec<PushingRank>> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of events so far.
    pub(super) fn events(&self) -> u64 {
        self.ranks().iter().map(|rank| rank.program.events()).sum()
    }

    /// Stops making events. The ranks stay connected.
    pub(super) fn stop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the training does not panic");
        }
    }
}

impl Drop for Training {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}
