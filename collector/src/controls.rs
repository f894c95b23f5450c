//! What a program lets those who watch it do, beside watching.

use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, TryLockError};
use std::time::{SystemTime, UNIX_EPOCH};

use vramscope_trace::DeviceId;

use crate::hub::Hub;
use crate::memory::MemoryDevice;
use crate::observer;
use crate::pool::DevicePool;
use crate::recorder::RecorderHandle;

/// What became of a command: a sentence for the person who gave it, whether it was done or not.
pub type Done = Result<String, String>;

type Act = Arc<dyn Fn() -> Done + Send + Sync>;
type ActOn = Arc<dyn Fn(&str) -> Done + Send + Sync>;

#[derive(Clone, Default)]
struct Offers {
    record: Option<Act>,
    mark: Option<ActOn>,
    /// One for each pool.
    empty_cache: Vec<Act>,
}

/// A command from the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command<'a> {
    Record,
    Mark(&'a str),
    EmptyCache,
}

/// What became of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Obeyed {
    /// It was done.
    Yes(String),
    /// It was not, for this reason.
    No(String),
    /// Another one is being obeyed.
    Busy,
    /// The program does not do that.
    NotOffered,
}

/// What a program offers to the page: nothing at first. Clones are the same, so that it may offer more while it is watched.
///
/// What is offered runs on a thread of the server, one command at a time, and may take as long as it likes.
#[derive(Clone, Default)]
pub struct Controls {
    offers: Arc<RwLock<Offers>>,
    /// Held while a command is obeyed.
    busy: Arc<Mutex<()>>,
}

impl Controls {
    /// Offers to write everything so far to a file.
    pub fn offer_record(&self, record: impl Fn() -> Done + Send + Sync + 'static) {
        self.offer(|offers| offers.record = Some(Arc::new(record)));
    }

    /// Offers to put a mark of any name into the recording.
    pub fn offer_mark(&self, mark: impl Fn(&str) -> Done + Send + Sync + 'static) {
        self.offer(|offers| offers.mark = Some(Arc::new(mark)));
    }

    /// Offers to give every unused segment back to the device; where that is offered more than once, all of it is done.
    pub fn offer_empty_cache(&self, empty_cache: impl Fn() -> Done + Send + Sync + 'static) {
        self.offer(|offers| offers.empty_cache.push(Arc::new(empty_cache)));
    }

    /// Offers to write what `hub` holds to a new file in `folder`, whose name says when that was, and to put marks among the events of
    /// `device`. `recorder` is a handle of the recorder that publishes to the hub.
    pub fn offer_recording(&self, hub: &Hub, recorder: &RecorderHandle, device: DeviceId, folder: impl Into<PathBuf>) {
        let handle = recorder.clone();
        self.offer_file(hub, folder.into(), move || handle.flush());
        let (hub, handle) = (hub.clone(), recorder.clone());
        self.offer_mark(move |name| {
            if hub.is_ended() {
                return Err("the recording has ended".to_owned());
            }
            handle.clone().mark(device, name);
            Ok("the mark is in the recording".to_owned())
        });
    }

    /// Offers to write what `hub` holds to a new file in `folder`, once `flush` has seen to it that it holds everything.
    pub(crate) fn offer_file(&self, hub: &Hub, folder: PathBuf, flush: impl Fn() + Send + Sync + 'static) {
        let hub = hub.clone();
        self.offer_record(move || {
            flush();
            record(&hub, &folder, SystemTime::now())
        });
    }

    /// Offers to empty the cache of a pool, for as long as there is the pool.
    pub fn offer_empty_cache_of<D: MemoryDevice>(&self, pool: &DevicePool<D>) {
        let pool = pool.downgrade();
        self.offer_empty_cache(move || {
            let pool = pool.upgrade().ok_or("the program has no such pool any more")?;
            let reserved_bytes = || pool.stats().reserved_bytes.all.current;
            let before = reserved_bytes();
            pool.empty_cache().map_err(|error| error.to_string())?;
            let given_bytes = before.saturating_sub(reserved_bytes());
            Ok(format!("{} went back to the device", size(given_bytes)))
        });
    }

    fn offer(&self, change: impl FnOnce(&mut Offers)) {
        change(&mut self.offers.write().unwrap_or_else(PoisonError::into_inner));
    }

    fn offers(&self) -> Offers {
        self.offers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The commands that are offered, by their names in an address.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        let Offers { record, mark, empty_cache } = self.offers();
        let offered =
            [(record.is_some(), "record"), (mark.is_some(), "mark"), (!empty_cache.is_empty(), "empty-cache")];
        offered.into_iter().filter(|(is_offered, _)| *is_offered).map(|(_, name)| name).collect()
    }

    /// Does as it is told, unless another command is still being obeyed.
    pub(crate) fn obey(&self, command: Command<'_>) -> Obeyed {
        let Offers { record, mark, empty_cache } = self.offers();
        let done = match command {
            Command::Record => record.map(|record| self.alone(|| record())),
            Command::Mark(name) => mark.map(|mark| self.alone(|| mark(name))),
            Command::EmptyCache => (!empty_cache.is_empty()).then(|| self.alone(|| all(&empty_cache))),
        };
        done.unwrap_or(Obeyed::NotOffered)
    }

    fn alone(&self, act: impl FnOnce() -> Done) -> Obeyed {
        let _busy = match self.busy.try_lock() {
            Err(TryLockError::WouldBlock) => return Obeyed::Busy,
            // One that panicked is obeyed no longer.
            Err(TryLockError::Poisoned(busy)) => busy.into_inner(),
            Ok(busy) => busy,
        };
        act().map_or_else(Obeyed::No, Obeyed::Yes)
    }
}

/// Does one after the other, whatever becomes of it.
fn all(acts: &[Act]) -> Done {
    let done: Vec<Done> = acts.iter().map(|act| act()).collect();
    let is_done = done.iter().all(Result::is_ok);
    let said: Vec<String> = done.into_iter().map(|done| done.unwrap_or_else(|why| why)).collect();
    if is_done { Ok(said.join("; ")) } else { Err(said.join("; ")) }
}

/// Writes what `hub` holds to a file of its own.
fn record(hub: &Hub, folder: &Path, now: SystemTime) -> Done {
    let (path, bytes) = unused_file(folder, &utc(now))
        .and_then(|path| observer::write(hub, &path).map(|bytes| (path, bytes)))
        .map_err(|error| format!("the recording was not written: {error}"))?;
    Ok(format!("{} are in {}", size(bytes), path.display()))
}

fn size(bytes: u64) -> String {
    if bytes < 1 << 20 {
        format!("{:.1} KiB", bytes as f64 / f64::from(1 << 10))
    } else {
        format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
    }
}

/// A file that there was not before, in the name of a moment.
fn unused_file(folder: &Path, moment: &str) -> io::Result<PathBuf> {
    let mut names =
        iter::once(format!("vramscope-{moment}.vram")).chain((2..100).map(|n| format!("vramscope-{moment}-{n}.vram")));
    loop {
        let path = names.next().map(|name| folder.join(name)).ok_or(io::ErrorKind::AlreadyExists)?;
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(_) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
        }
    }
}

/// A moment as `20261231T235959Z`.
fn utc(now: SystemTime) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that the day of a leap year is the last, and are counted in cycles of 400 from the year 0.
    let (days, cycle) = ((days + 719_468) % 146_097, (days + 719_468) / 146_097);
    let year_of_cycle = (days - days / 1460 + days / 36_524 - days / 146_096) / 365;
    let day_of_year = days - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = cycle * 400 + year_of_cycle + u64::from(month < 3);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

impl fmt::Debug for Controls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Controls").field(&self.names()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_offered_is_done_and_nothing_else() {
        let controls = Controls::default();
        assert_eq!(controls.names(), [""; 0]);
        assert_eq!(controls.obey(Command::Record), Obeyed::NotOffered);
        let theirs = controls.clone();
        theirs.offer_mark(|name| Ok(format!("marked {name}")));
        theirs.offer_empty_cache(|| Err("the device is gone".to_owned()));
        assert_eq!(controls.names(), ["mark", "empty-cache"]);
        assert_eq!(controls.obey(Command::Mark("a")), Obeyed::Yes("marked a".to_owned()));
        assert_eq!(controls.obey(Command::EmptyCache), Obeyed::No("the device is gone".to_owned()));
        assert_eq!(controls.obey(Command::Record), Obeyed::NotOffered);
    }

    #[test]
    fn one_command_is_obeyed_at_a_time() {
        let controls = Controls::default();
        let inner = controls.clone();
        controls.offer_mark(|_| panic!("as it may"));
        controls.offer_record(move || Ok(format!("{:?}", inner.obey(Command::Mark("a")))));
        assert_eq!(controls.obey(Command::Record), Obeyed::Yes("Busy".to_owned()));
        let panicking = controls.clone();
        assert!(std::thread::spawn(move || panicking.obey(Command::Mark("a"))).join().is_err());
        assert_eq!(controls.obey(Command::Record), Obeyed::Yes("Busy".to_owned()));
    }

    #[test]
    fn moments_are_told_as_the_world_does() {
        let check = |seconds: u64, expected: &str| {
            assert_eq!(utc(UNIX_EPOCH + std::time::Duration::from_secs(seconds)), expected);
        };
        check(0, "19700101T000000Z");
        check(951_782_400, "20000229T000000Z");
        check(951_868_799, "20000229T235959Z");
        check(1_709_164_800, "20240229T000000Z");
        check(1_735_689_599, "20241231T235959Z");
        check(1_740_787_200, "20250301T000000Z");
        check(4_102_444_800, "21000101T000000Z");
        check(4_107_542_400, "21000301T000000Z");
    }

    #[test]
    fn a_recording_is_written_beside_those_from_before() {
        let folder = tempfile::tempdir().expect("a folder");
        let hub = Hub::default();
        for name in ["vramscope-19700101T000000Z.vram", "vramscope-19700101T000000Z-2.vram"] {
            let done = record(&hub, folder.path(), UNIX_EPOCH).expect("written");
            assert!(done.ends_with(&folder.path().join(name).display().to_string()), "{done}");
        }
        let error = record(&hub, &folder.path().join("no"), UNIX_EPOCH).expect_err("there is no such folder");
        assert!(error.starts_with("the recording was not written: ") && error.contains("vramscope-1970"), "{error}");
    }
}
