//! Controls: the commands that a program offers to the page.

use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, TryLockError};

use jiff::Timestamp;
use vramscope_trace::{ByteSize, DeviceId};

use crate::hub::Hub;
use crate::memory::MemoryDevice;
use crate::observer;
use crate::pool::DevicePool;
use crate::recorder::RecorderHandle;

/// The result of a command of the page: a message for the user, whether it succeeded (`Ok`) or
/// failed (`Err`).
pub type CommandResult = Result<String, String>;

/// A function of the program that carries out the command `record` or `empty-cache`.
type Action = Arc<dyn Fn() -> CommandResult + Send + Sync>;
/// A function of the program that carries out the command `mark`; its argument is the mark's name.
type NamedAction = Arc<dyn Fn(&str) -> CommandResult + Send + Sync>;

/// The commands that the program offers to the page. A command is not offered if its field is
/// `None` or empty.
#[derive(Clone, Default)]
struct Commands {
    record: Option<Action>,
    mark: Option<NamedAction>,
    /// One for each pool.
    empty_cache: Vec<Action>,
}

/// A command that a user of the page gives to the program: write a file, add a mark with this name,
/// or empty the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command<'a> {
    Record,
    Mark(&'a str),
    EmptyCache,
}

/// How a command of the page ended: succeeded or failed, with a message for the user, or not run
/// because another command was running or the program does not offer it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CommandOutcome {
    /// The command succeeded, with this message.
    Succeeded(String),
    /// The command failed, for this reason.
    Failed(String),
    /// Another command is still running.
    Busy,
    /// The program does not offer the command.
    NotOffered,
}

/// The commands that a program offers to the page; empty at first.
///
/// Clones share the commands, so more can be offered while the server runs. Commands run on a
/// thread of the server, one at a time, and may take long.
#[derive(Clone, Default)]
pub struct Controls {
    commands: Arc<RwLock<Commands>>,
    /// Locked while a command runs.
    busy: Arc<Mutex<()>>,
}

impl Controls {
    /// Offers the command `record`, which calls `record` to write everything recorded so far to a
    /// file. Replaces an earlier offer.
    pub fn offer_record(&self, record: impl Fn() -> CommandResult + Send + Sync + 'static) {
        self.offer(|commands| commands.record = Some(Arc::new(record)));
    }

    /// Offers the command `mark`, which calls `mark` with a name to add a mark to the recording.
    /// Replaces an earlier offer.
    pub fn offer_mark(&self, mark: impl Fn(&str) -> CommandResult + Send + Sync + 'static) {
        self.offer(|commands| commands.mark = Some(Arc::new(mark)));
    }

    /// Offers the command `empty-cache`, which calls `empty_cache` to release unused segments. If
    /// it is offered several times, the command calls all the functions.
    pub fn offer_empty_cache(&self, empty_cache: impl Fn() -> CommandResult + Send + Sync + 'static) {
        self.offer(|commands| commands.empty_cache.push(Arc::new(empty_cache)));
    }

    /// Offers the commands `record` and `mark`.
    ///
    /// `record` writes what `hub` holds to a new file in `folder`, named after the current time.
    /// `mark` adds a mark on `device`. `recorder` must be a handle of the recorder that publishes
    /// to `hub`.
    pub fn offer_recording(&self, hub: &Hub, recorder: &RecorderHandle, device: DeviceId, folder: impl Into<PathBuf>) {
        let handle = recorder.clone();
        self.offer_file(hub, folder.into(), move || handle.flush());
        let (hub, handle) = (hub.clone(), recorder.clone());
        self.offer_mark(move |name| {
            if hub.is_ended() {
                return Err("the recording has ended".to_owned());
            }
            handle.clone().mark(device, name);
            Ok("added the mark to the recording".to_owned())
        });
    }

    /// Offers the command `record`, which calls `flush` to bring `hub` up to date and then writes
    /// what `hub` holds to a new file in `folder`.
    pub(crate) fn offer_file(&self, hub: &Hub, folder: PathBuf, flush: impl Fn() + Send + Sync + 'static) {
        let hub = hub.clone();
        self.offer_record(move || {
            flush();
            write_recording(&hub, &folder, Timestamp::now())
        });
    }

    /// Offers the command `empty-cache` for a pool. The command fails once the pool has been
    /// dropped.
    pub fn offer_empty_cache_of<D: MemoryDevice>(&self, pool: &DevicePool<D>) {
        let pool = pool.downgrade();
        self.offer_empty_cache(move || {
            let pool = pool.upgrade().ok_or("the cache cannot be emptied: the program has dropped its pool")?;
            let reserved_bytes = || pool.stats().reserved_bytes.all.current;
            let before = reserved_bytes();
            pool.empty_cache().map_err(|error| error.to_string())?;
            let released = ByteSize(before.saturating_sub(reserved_bytes()));
            Ok(format!("{released} released to the device"))
        });
    }

    /// Changes the offered commands with `change`, for all clones of these controls.
    fn offer(&self, change: impl FnOnce(&mut Commands)) {
        change(&mut self.commands.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns a copy of the offered commands, so that they run without a lock on the list.
    fn commands(&self) -> Commands {
        self.commands.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the names of the offered commands, as in the URLs `/commands/NAME`.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        let Commands { record, mark, empty_cache } = self.commands();
        let offered =
            [(record.is_some(), "record"), (mark.is_some(), "mark"), (!empty_cache.is_empty(), "empty-cache")];
        offered.into_iter().filter(|(is_offered, _)| *is_offered).map(|(_, name)| name).collect()
    }

    /// Runs a command and returns its outcome. Returns at once if another command is still running
    /// or the program does not offer the command.
    pub(crate) fn run(&self, command: Command<'_>) -> CommandOutcome {
        let Commands { record, mark, empty_cache } = self.commands();
        let outcome = match command {
            Command::Record => record.map(|record| self.run_unless_busy(|| record())),
            Command::Mark(name) => mark.map(|mark| self.run_unless_busy(|| mark(name))),
            Command::EmptyCache => (!empty_cache.is_empty()).then(|| self.run_unless_busy(|| run_all(&empty_cache))),
        };
        outcome.unwrap_or(CommandOutcome::NotOffered)
    }

    /// Runs `action`, or returns [`CommandOutcome::Busy`] at once if another command is still
    /// running.
    fn run_unless_busy(&self, action: impl FnOnce() -> CommandResult) -> CommandOutcome {
        let _busy = match self.busy.try_lock() {
            Err(TryLockError::WouldBlock) => return CommandOutcome::Busy,
            // A command that panicked has ended.
            Err(TryLockError::Poisoned(busy)) => busy.into_inner(),
            Ok(busy) => busy,
        };
        action().map_or_else(CommandOutcome::Failed, CommandOutcome::Succeeded)
    }
}

/// Runs all actions, even if some fail, and joins their messages with semicolons. Fails if any
/// action fails.
fn run_all(actions: &[Action]) -> CommandResult {
    let results: Vec<CommandResult> = actions.iter().map(|action| action()).collect();
    let succeeded = results.iter().all(Result::is_ok);
    let messages: Vec<String> = results.into_iter().map(|result| result.unwrap_or_else(|reason| reason)).collect();
    if succeeded { Ok(messages.join("; ")) } else { Err(messages.join("; ")) }
}

/// Writes what `hub` holds to a new file in `folder`, named after the time `now`. The message
/// contains the path and the size.
fn write_recording(hub: &Hub, folder: &Path, now: Timestamp) -> CommandResult {
    let (path, bytes) = create_file(folder, &file_timestamp(now))
        .and_then(|path| observer::write(hub, &path).map(|bytes| (path, bytes)))
        .map_err(|error| format!("cannot write the recording: {error}"))?;
    Ok(format!("wrote {} to {}", ByteSize(bytes), path.display()))
}

/// Creates a file `vramscope-TIMESTAMP.vram` in `folder` and returns its path. If it exists, tries
/// the endings `-2` to `-99` and then fails; an existing file is never overwritten.
fn create_file(folder: &Path, timestamp: &str) -> io::Result<PathBuf> {
    let mut names = iter::once(format!("vramscope-{timestamp}.vram"))
        .chain((2..100).map(|n| format!("vramscope-{timestamp}-{n}.vram")));
    loop {
        let path = names.next().map(|name| folder.join(name)).ok_or(io::ErrorKind::AlreadyExists)?;
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(_) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
        }
    }
}

/// Formats a time in UTC as `20261231T235959Z`.
fn file_timestamp(time: Timestamp) -> String {
    time.strftime("%Y%m%dT%H%M%SZ").to_string()
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
    fn only_offered_commands_run() {
        let controls = Controls::default();
        assert_eq!(controls.names(), [""; 0]);
        assert_eq!(controls.run(Command::Record), CommandOutcome::NotOffered);
        let clone = controls.clone();
        clone.offer_mark(|name| Ok(format!("marked {name}")));
        clone.offer_empty_cache(|| Err("the device was dropped".to_owned()));
        assert_eq!(controls.names(), ["mark", "empty-cache"]);
        assert_eq!(controls.run(Command::Mark("a")), CommandOutcome::Succeeded("marked a".to_owned()));
        assert_eq!(controls.run(Command::EmptyCache), CommandOutcome::Failed("the device was dropped".to_owned()));
        assert_eq!(controls.run(Command::Record), CommandOutcome::NotOffered);
    }

    #[test]
    fn one_command_runs_at_a_time() {
        let controls = Controls::default();
        let inner = controls.clone();
        controls.offer_mark(|_| panic!("test panic"));
        controls.offer_record(move || Ok(format!("{:?}", inner.run(Command::Mark("a")))));
        assert_eq!(controls.run(Command::Record), CommandOutcome::Succeeded("Busy".to_owned()));
        let panicking = controls.clone();
        assert!(std::thread::spawn(move || panicking.run(Command::Mark("a"))).join().is_err());
        assert_eq!(controls.run(Command::Record), CommandOutcome::Succeeded("Busy".to_owned()));
    }

    #[test]
    fn file_timestamps_are_in_utc() {
        let check = |seconds: i64, expected: &str| {
            assert_eq!(file_timestamp(Timestamp::from_second(seconds).expect("a valid time")), expected);
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
    fn existing_recordings_are_not_overwritten() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let hub = Hub::default();
        for name in ["vramscope-19700101T000000Z.vram", "vramscope-19700101T000000Z-2.vram"] {
            let message = write_recording(&hub, folder.path(), Timestamp::UNIX_EPOCH).expect("the folder is writable");
            assert!(message.ends_with(&folder.path().join(name).display().to_string()), "{message}");
        }
        let error = write_recording(&hub, &folder.path().join("no"), Timestamp::UNIX_EPOCH)
            .expect_err("the folder does not exist");
        assert!(error.starts_with("cannot write the recording: ") && error.contains("vramscope-1970"), "{error}");
    }
}
