//! Joins the summaries of one machine's processes into one message.
//!
//! One of a user's processes on a machine is the *sender* of a run. The other processes hand their
//! summaries to it through a socket in a folder that only this user can read. If the sender ends,
//! or gives up because the broker does not acknowledge its messages, the first process that notices
//! becomes the sender. A process that notices a new sender hands over its last summaries again,
//! because the former sender may not have sent them. A process that finds no sender sends its last
//! summaries itself. Servers ignore repeated summaries.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File, FileType, Metadata, OpenOptions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use vramscope_insight::fleet::Summary;

use crate::address::FleetAddress;
use crate::summary_batch::{MAX_BATCH, SummaryBatch};

/// The largest datagram that is sent or accepted, in bytes.
const MAX_DATAGRAM: usize = 16 << 10;
/// Time for which a process that gave up does not become the sender again, so that another process
/// does.
const GIVE_UP_TIME: Duration = Duration::from_secs(5);
/// Number of handed-over summaries that a process keeps to hand over again: those of the last
/// 300 ms, more than a sender usually holds.
const MAX_HANDED_OVER: usize = 3;

/// A process's part in the exchange of summaries on its machine: it is the sender or hands its
/// summaries to the sender.
#[derive(Debug)]
pub(crate) struct HostExchange {
    /// The folder of the two files below, whose paths refer to it by its open descriptor.
    _folder: Option<File>,
    socket_path: PathBuf,
    lock_path: PathBuf,
    /// The connection to the sender, by which a process notices that the sender has ended.
    sender: Option<UnixDatagram>,
    /// The summaries that were handed over last; emptied when the process sends its own.
    handed_over: VecDeque<Summary>,
    /// The socket on which other processes' summaries arrive, while this process is the sender.
    receiving: Option<Receiving>,
    /// When the process last gave up being the sender.
    gave_up: Option<Instant>,
}

/// The socket and the lock of the sender. The operating system releases the lock when the process
/// ends, however it ends.
#[derive(Debug)]
struct Receiving {
    socket: UnixDatagram,
    _lock: File,
}

impl HostExchange {
    /// Creates the exchange of a run's processes on this machine. Returns `None` if there is no
    /// private folder for it: then each process sends its own summaries.
    pub(crate) fn new(address: &FleetAddress) -> Option<Self> {
        let folder = private_folder()?;
        let mut hasher = DefaultHasher::new();
        address.to_string().hash(&mut hasher);
        // Paths use the descriptor instead of the folder's name, because another user may create a
        // folder of this name later.
        let path = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
        let exchange = Self::in_folder(&path, &format!("{:016x}", hasher.finish()));
        Some(Self { _folder: Some(folder), ..exchange })
    }

    /// Creates an exchange whose files are in `folder` and have names that begin with `name`.
    fn in_folder(folder: &Path, name: &str) -> Self {
        let (socket_path, lock_path) = (folder.join(format!("{name}.sock")), folder.join(format!("{name}.lock")));
        let handed_over = VecDeque::new();
        Self { _folder: None, socket_path, lock_path, sender: None, handed_over, receiving: None, gave_up: None }
    }

    /// Takes the process's newest summary, and returns the summaries that the process must send to
    /// the broker now: its own first, with an empty identity. Returns none if the sender, another
    /// process, has taken the summary.
    pub(crate) fn exchange(&mut self, identity: &str, summary: Summary) -> Vec<(String, Summary)> {
        if self.receiving.is_none() {
            if self.hand_over(identity, &summary).is_ok() {
                self.handed_over.push_back(summary);
                if self.handed_over.len() > MAX_HANDED_OVER {
                    self.handed_over.pop_front();
                }
                return Vec::new();
            }
            if self.gave_up.is_none_or(|gave_up| gave_up.elapsed() >= GIVE_UP_TIME) {
                // An error means that another process is the sender, or that there can be none.
                self.receiving = self.become_sender().ok();
            }
        }
        self.own_and_received(summary)
    }

    /// Hands the summary to the sender, and if the sender is new, the last summaries before it.
    /// Fails if no process is the sender, or if the sender's queue is full.
    fn hand_over(&mut self, identity: &str, summary: &Summary) -> io::Result<()> {
        let send = |sender: &UnixDatagram, summary: &Summary| {
            let batch = SummaryBatch { summaries: vec![(identity.to_owned(), summary.clone())] };
            let bytes = batch.to_bytes();
            if bytes.len() > MAX_DATAGRAM {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            sender.send(&bytes).map(drop)
        };
        if let Some(sender) = &self.sender {
            match send(sender, summary) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                result => return result,
            }
        }
        self.sender = None;
        let sender = UnixDatagram::unbound()?;
        sender.set_nonblocking(true)?;
        check_own(&self.socket_path, FileType::is_socket)?;
        sender.connect(&self.socket_path)?;
        self.handed_over.iter().chain([summary]).try_for_each(|summary| send(&sender, summary))?;
        self.sender = Some(sender);
        Ok(())
    }

    /// Returns the summaries to send when the process ends, of which `summary` is its last one.
    pub(crate) fn end(mut self, summary: Summary) -> Vec<(String, Summary)> {
        if self.receiving.is_some() {
            // From now on no process can connect. Connected processes notice when the socket
            // closes, and hand over their last summaries again.
            let _ = fs::remove_file(&self.socket_path);
        }
        self.own_and_received(summary)
    }

    /// Returns the process's own summaries, of which `summary` is the newest, and those that others
    /// have handed over.
    fn own_and_received(&mut self, summary: Summary) -> Vec<(String, Summary)> {
        let own = self.handed_over.drain(..).chain([summary]).map(|summary| (String::new(), summary));
        let received = self.receiving.as_ref().map(Receiving::take).unwrap_or_default();
        own.chain(received).collect()
    }

    /// Stops being the sender, because the broker does not acknowledge this process's messages.
    /// Another process may have a better connection, or a valid key.
    pub(crate) fn give_up(&mut self) {
        (self.receiving, self.gave_up) = (None, Some(Instant::now()));
    }

    /// Makes this process the sender. Fails if another running process is the sender.
    fn become_sender(&self) -> io::Result<Receiving> {
        let lock = open_lock(&self.lock_path)?;
        lock.try_lock()?;
        // The socket's file stays after a sender has ended, so it is removed first. Neither call
        // follows a link.
        match fs::remove_file(&self.socket_path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = UnixDatagram::bind(&self.socket_path)?;
        socket.set_nonblocking(true)?;
        Ok(Receiving { socket, _lock: lock })
    }
}

impl Receiving {
    /// Returns the summaries that other processes have handed over since the last call, at most as
    /// many as fit in a message. Ignores invalid datagrams.
    fn take(&self) -> Vec<(String, Summary)> {
        let mut summaries = Vec::new();
        let mut bytes = [0; MAX_DATAGRAM + 1];
        while summaries.len() + MAX_HANDED_OVER + 1 < MAX_BATCH
            && let Ok(len) = self.socket.recv(&mut bytes)
        {
            let parsed = SummaryBatch::parse(&bytes[..len]).unwrap_or_default();
            let is_named = |(identity, _): &(String, Summary)| !identity.is_empty();
            summaries.extend(parsed.summaries.into_iter().take(1).filter(is_named));
        }
        summaries
    }
}

/// Returns a folder that only this user can read, and creates it if necessary; `None` if that is
/// not possible.
fn private_folder() -> Option<File> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_dir());
    match runtime {
        Some(runtime) => open_private(&runtime.join("vramscope")),
        None => open_private(&std::env::temp_dir().join(format!("vramscope-{}", own_uid()?))),
    }
}

/// Opens the folder, and creates it if necessary; `None` if another user has created or can read
/// it. The folder stays open: once a cleaner has deleted it, any user can create one of its name.
fn open_private(folder: &Path) -> Option<File> {
    // This usually fails, because the folder exists.
    let _ = DirBuilder::new().mode(0o700).create(folder);
    // The folder must not be opened through a link, which another user may have created.
    open_checked(folder, &fs::symlink_metadata(folder).ok()?)
}

/// Opens the folder that has this `status`. Returns `None` if it is not private, or if another user
/// has replaced it since the status was read, for example by a link to another private folder of
/// this user.
fn open_checked(folder: &Path, status: &Metadata) -> Option<File> {
    let user = own_uid()?;
    let is_private = |status: &Metadata| status.is_dir() && status.uid() == user && status.mode() & 0o077 == 0;
    if !is_private(status) {
        return None;
    }
    let opened = open_folder(folder).ok()?;
    let opened_status = opened.metadata().ok().filter(is_private)?;
    ((status.dev(), status.ino()) == (opened_status.dev(), opened_status.ino())).then_some(opened)
}

/// Opens a folder. Fails for anything else, such as a pipe that another user has created: opening a
/// pipe would block.
fn open_folder(folder: &Path) -> io::Result<File> {
    File::open(folder.join("."))
}

/// Opens the lock file, and creates it if necessary. Fails for a link, which could name any file,
/// and for anything else that is not a file of this user.
fn open_lock(path: &Path) -> io::Result<File> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        result => return result,
    }
    check_own(path, FileType::is_file)?;
    OpenOptions::new().write(true).open(path)
}

/// Returns an error if `path` is a link, has another file type, or belongs to another user. No
/// other user can replace the file after the check, because the folder is private. Another user may
/// have created a link before the folder became private.
fn check_own(path: &Path, is_type: impl Fn(&FileType) -> bool) -> io::Result<()> {
    let status = fs::symlink_metadata(path)?;
    if !is_type(&status.file_type()) || Some(status.uid()) != own_uid() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(())
}

/// Returns the id of this process's user.
fn own_uid() -> Option<u32> {
    Some(fs::metadata("/proc/self").ok()?.uid())
}

#[cfg(test)]
mod two_users;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    fn exchange(folder: &Path) -> HostExchange {
        HostExchange::in_folder(folder, "run")
    }

    /// Exchanges the summary with this number, and returns the numbers of those to send.
    fn send(exchange: &mut HostExchange, identity: &str, number: u64) -> Vec<(String, u64)> {
        let summaries = exchange.exchange(identity, Summary { number, ..Summary::default() });
        summaries.into_iter().map(|(identity, summary)| (identity, summary.number)).collect()
    }

    fn named(identity: &str, number: u64) -> (String, u64) {
        (identity.to_owned(), number)
    }

    #[test]
    fn first_process_sends_for_all_and_the_next_succeeds_it() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let [mut a, mut b, mut c] = std::array::from_fn(|_| exchange(folder.path()));
        assert_eq!(send(&mut a, "a", 0), [named("", 0)]);
        assert_eq!(send(&mut b, "b", 10), []);
        assert_eq!(send(&mut c, "c", 20), []);
        assert_eq!(send(&mut b, "b", 11), []);
        assert_eq!(send(&mut a, "a", 1), [named("", 1), named("b", 10), named("c", 20), named("b", 11)]);
        // Processes hand over again the summaries that the sender held when it ended.
        assert_eq!(send(&mut c, "c", 21), []);
        drop(a);
        assert_eq!(send(&mut c, "c", 22), [named("", 20), named("", 21), named("", 22)]);
        assert_eq!(send(&mut b, "b", 12), []);
        assert_eq!(send(&mut c, "c", 23), [named("", 23), named("b", 10), named("b", 11), named("b", 12)]);
        assert_eq!(send(&mut b, "b", 13), []);
        assert_eq!(send(&mut c, "c", 24), [named("", 24), named("b", 13)]);
        let mut late = exchange(folder.path());
        assert_eq!(send(&mut late, "a", 0), []);
    }

    #[test]
    fn sender_that_gives_up_hands_its_summaries_to_another() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let [mut a, mut b] = std::array::from_fn(|_| exchange(folder.path()));
        assert_eq!(send(&mut a, "a", 0), [named("", 0)]);
        assert_eq!(send(&mut b, "b", 10), []);
        a.give_up();
        // Without other processes, it sends its own summaries.
        assert_eq!(send(&mut a, "a", 1), [named("", 1)]);
        assert_eq!(send(&mut b, "b", 11), [named("", 10), named("", 11)]);
        assert_eq!(send(&mut a, "a", 2), []);
        assert_eq!(send(&mut b, "b", 12), [named("", 12), named("a", 2)]);
        b.give_up();
        assert_eq!(send(&mut b, "b", 13), [named("", 13)]);
        a.gave_up = Instant::now().checked_sub(GIVE_UP_TIME);
        assert_eq!(send(&mut a, "a", 3), [named("", 2), named("", 3)]);
        assert_eq!(send(&mut b, "b", 14), []);
    }

    #[test]
    fn processes_that_end_send_their_last_summaries() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let [mut a, mut b, mut c] = std::array::from_fn(|_| exchange(folder.path()));
        let end = |exchange: HostExchange, number| {
            let summaries = exchange.end(Summary { number, ..Summary::default() }).into_iter();
            summaries.map(|(identity, summary)| (identity, summary.number)).collect::<Vec<_>>()
        };
        send(&mut a, "a", 0);
        for number in 10..15 {
            assert_eq!(send(&mut b, "b", number), []);
        }
        // A process that is not the sender sends its last summaries itself, because the sender may
        // end at this moment.
        assert_eq!(end(b, 15), [12, 13, 14, 15].map(|number| named("", number)));
        assert_eq!(
            end(a, 1),
            std::iter::once(named("", 1)).chain((10..15).map(|number| named("b", number))).collect::<Vec<_>>()
        );
        assert_eq!(send(&mut c, "c", 20), [named("", 20)]);
    }

    #[test]
    fn foreign_bytes_are_ignored_and_no_sender_waits() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let [mut a, mut b] = std::array::from_fn(|_| exchange(folder.path()));
        send(&mut a, "a", 0);
        for bytes in [&b""[..], b"junk", &[1, 1, 0], &[0; MAX_DATAGRAM]] {
            let socket = UnixDatagram::unbound().expect("a socket can be made");
            socket.send_to(bytes, &b.socket_path).expect("the socket accepts it");
        }
        assert_eq!(send(&mut a, "a", 1), [named("", 1)]);
        // A sender that does not read: once its queue is full, each process sends its own.
        let sent: Vec<_> = (0..10_000).map(|number| send(&mut b, "b", number)).collect();
        assert_eq!(sent.last(), Some(&vec![named("", 9999)]));
        // It takes as many as fit in a message.
        assert!((2..=MAX_BATCH).contains(&send(&mut a, "a", 2).len()));
    }

    #[test]
    fn folder_is_private() {
        let folder = private_folder().expect("this user has a folder");
        assert_eq!(folder.metadata().expect("it exists").mode() & 0o777, 0o700);
    }

    #[test]
    fn folder_of_another_user_is_not_used() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let check = |name: &str, create: &dyn Fn(&Path), expected: bool| {
            let path = parent.path().join(name);
            create(&path);
            assert_eq!(open_private(&path).is_some(), expected, "{name}");
        };
        let create_folder = |path: &Path, mode| {
            DirBuilder::new().create(path).expect("the folder is writable");
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("the folder is ours");
        };
        check("new", &|_| (), true);
        check("own", &|path| create_folder(path, 0o700), true);
        check("open", &|path| create_folder(path, 0o755), false);
        check("file", &|path| fs::write(path, "").expect("the folder is writable"), false);
        check("link", &|path| symlink(parent.path().join("own"), path).expect("the folder is writable"), false);
        check("dangling", &|path| symlink("/nothing", path).expect("the folder is writable"), false);
        let foreign = |path: &Path| {
            create_folder(path, 0o700);
            // Only root can; the tests run as root in continuous integration.
            if chown(path, Some(65533), None).is_err() {
                fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("the folder is ours");
            }
        };
        check("foreign", &foreign, false);
    }

    /// If it were opened, the process would use a folder that another user has chosen.
    #[test]
    fn folder_that_is_replaced_after_the_check_is_not_opened() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let [path, moved, other] = ["folder", "moved", "other"].map(|name| parent.path().join(name));
        for folder in [&path, &other] {
            DirBuilder::new().mode(0o700).create(folder).expect("the folder is writable");
        }
        let status = fs::symlink_metadata(&path).expect("it exists");
        assert!(open_checked(&path, &status).is_some());
        fs::rename(&path, &moved).expect("the folder is ours");
        symlink(&other, &path).expect("the folder is writable");
        assert!(open_checked(&path, &status).is_none(), "a link to another private folder");
        fs::remove_file(&path).expect("the folder is ours");
        fs::rename(&other, &path).expect("the folder is ours");
        assert!(open_checked(&path, &status).is_none(), "another private folder");
    }

    #[test]
    fn link_in_place_of_the_socket_is_not_followed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut a = exchange(folder.path());
        let decoy_path = folder.path().join("decoy");
        let decoy = UnixDatagram::bind(&decoy_path).expect("the folder is writable");
        decoy.set_nonblocking(true).expect("a socket can be changed");
        symlink(&decoy_path, &a.socket_path).expect("the folder is writable");
        // It becomes the sender: its own socket replaces the link.
        assert_eq!(send(&mut a, "a", 0), [named("", 0)]);
        assert!(decoy.recv(&mut [0; 1]).is_err());
        assert_eq!(send(&mut exchange(folder.path()), "b", 10), []);
        assert_eq!(send(&mut a, "a", 1), [named("", 1), named("b", 10)]);
    }

    #[test]
    fn link_in_place_of_the_lock_is_not_followed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let [mut a, mut b] = std::array::from_fn(|_| exchange(folder.path()));
        let target = folder.path().join("target");
        symlink(&target, &a.lock_path).expect("the folder is writable");
        // Without a lock there is no sender: each process sends its own summaries.
        assert_eq!(send(&mut a, "a", 0), [named("", 0)]);
        assert_eq!(send(&mut b, "b", 10), [named("", 10)]);
        assert!(!target.exists(), "a new file");
        fs::write(&target, "text").expect("the folder is writable");
        assert_eq!(send(&mut a, "a", 1), [named("", 1)]);
        assert!(a.receiving.is_none() && !a.socket_path.exists());
    }

    #[test]
    fn pipe_in_place_of_a_folder_does_not_block() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo is installed").success());
        assert!(open_folder(&pipe).is_err());
        assert!(open_folder(folder.path()).is_ok());
    }

    #[test]
    fn folder_that_was_deleted_and_created_by_another_user_is_not_used() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let (path, moved) = (parent.path().join("folder"), parent.path().join("moved"));
        let folder = open_private(&path).expect("the folder is writable");
        let by_descriptor = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
        let [mut a, mut b] = std::array::from_fn(|_| exchange(&by_descriptor));
        fs::rename(&path, &moved).expect("the folder is ours");
        DirBuilder::new().create(&path).expect("the folder is writable");
        assert_eq!(send(&mut a, "a", 0), [named("", 0)]);
        assert_eq!(send(&mut b, "b", 10), []);
        assert_eq!(send(&mut a, "a", 1), [named("", 1), named("b", 10)]);
        assert_eq!(fs::read_dir(&path).expect("it exists").count(), 0);
    }
}
