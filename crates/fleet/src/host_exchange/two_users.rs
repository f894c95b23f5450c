//! Another user of the machine against the folder of a host's socket, in a temporary folder that
//! all users can write. The test needs root, to become the other user.
//!
//! `VRAMSCOPE_RACES=1000` sets the number of free races.

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::*;

/// Id of the user that attacks.
const ATTACKER_UID: u32 = 65533;
/// Python interpreter that every user can run.
const ATTACKER_PYTHON: &str = "/usr/bin/python3";
/// Number of races if `VRAMSCOPE_RACES` is not set.
const DEFAULT_RACES: u32 = 30;
/// Identity in the summaries of this user's second process.
const IDENTITY: &str = "1";
/// Identity in the summaries of the attacker.
const ATTACKER_IDENTITY: &str = "bad";

/// The attacker's program. Creates the folder, or a link in its place, whenever it is missing;
/// sends to each socket in it, and listens on sockets of its own. Prints a line that begins with
/// WON for each success.
const ATTACK: &str = r#"
import fcntl, os, shutil, socket, sys
parent, summary = sys.argv[1], bytes.fromhex(sys.argv[2])
folder, own, private = (f"{parent}/{name}" for name in ("folder", "own", "private"))
user = os.getuid()
os.umask(0)
os.mkdir(own)
created = 0
print("ready", flush=True)

def datagram_socket():
    found = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    found.setblocking(False)
    return found

def create():
    if created % 4 == 0:
        os.symlink(own, folder)
    elif created % 4 == 1:
        os.symlink(private, folder)
    else:
        os.mkdir(folder, 0o700 if created % 4 == 2 else 0o777)

def send():
    with datagram_socket() as sender:
        sender.sendto(summary, f"{folder}/run.sock")
    print("WON: sent to a socket", flush=True)

def listen():
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if os.fstat(descriptor).st_uid != user:
            print("WON: opened a folder of another user", flush=True)
            return
        path = f"/proc/self/fd/{descriptor}"
        with open(f"{path}/run.lock", "w") as lock, datagram_socket() as receiver:
            if created % 3:
                receiver.bind(f"{path}/run.sock")
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for _ in range(created % 200):
                try:
                    print("WON: received", receiver.recv(4096), flush=True)
                except BlockingIOError:
                    pass
        if any(entry.stat(follow_symlinks=False).st_uid != user for entry in os.scandir(path)):
            print("WON: a file of another user", flush=True)
        for entry in os.scandir(path):
            os.remove(entry.path)
    finally:
        os.close(descriptor)

def remove():
    if os.lstat(folder).st_uid == user:
        os.remove(folder) if os.path.islink(folder) else os.rmdir(folder)

while not os.path.exists(f"{parent}/stop"):
    for step in create, send, listen, remove:
        try:
            step()
            created += step == create
        except OSError:
            pass
print(created)
"#;

/// A process of the attacking user. Dropping it kills the process.
struct Attacker(Child);

impl Drop for Attacker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn summary(number: u64) -> Summary {
    Summary { number, ..Summary::default() }
}

/// Lets two exchanges of this user use the folder, by its descriptor. Returns the identities of the
/// summaries that the first one receives.
fn exchange_in(folder: &File) -> Vec<String> {
    let path = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
    let [mut sender, mut other] = std::array::from_fn(|_| HostExchange::in_folder(&path, "run"));
    let mut identities = Vec::new();
    for number in 0..2 {
        let sent = sender.exchange("", summary(number));
        identities.extend(sent.into_iter().map(|(identity, _)| identity).filter(|identity| !identity.is_empty()));
        other.exchange(IDENTITY, summary(number));
    }
    identities
}

#[test]
fn another_user_wins_no_race() {
    if own_uid() != Some(0) || !Path::new(ATTACKER_PYTHON).exists() {
        println!("SKIPPED: two users need root and {ATTACKER_PYTHON}");
        return;
    }
    let races =
        std::env::var("VRAMSCOPE_RACES").ok().and_then(|text| text.parse::<u32>().ok()).unwrap_or(DEFAULT_RACES);
    let shared = tempfile::tempdir().expect("a temporary folder");
    fs::set_permissions(shared.path(), Permissions::from_mode(0o1777)).expect("the folder is ours");
    let [folder, private, stop] = ["folder", "private", "stop"].map(|name| shared.path().join(name));
    DirBuilder::new().mode(0o700).create(&private).expect("the folder is writable");

    let bytes = SummaryBatch { summaries: vec![(ATTACKER_IDENTITY.to_owned(), summary(9))] }.to_bytes();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut command = Command::new(ATTACKER_PYTHON);
    command.args(["-c", ATTACK]).arg(shared.path()).arg(hex).uid(ATTACKER_UID).gid(ATTACKER_UID).current_dir("/");
    let mut attacker = Attacker(command.stdout(Stdio::piped()).spawn().expect("the system's Python starts"));
    let mut output = BufReader::new(attacker.0.stdout.take().expect("stdout is piped"));
    let mut line = String::new();
    output.read_line(&mut line).expect("stdout is text");
    assert_eq!(line, "ready\n");

    let (mut used, mut received) = (0, Vec::new());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        // Deletes the folder again and again, as a cleaner of temporary folders does.
        scope.spawn(|| {
            for pause_us in (0..).map(|turn| turn * 7919 % 1000) {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let _ = fs::remove_dir_all(&folder);
                thread::sleep(Duration::from_micros(pause_us));
            }
        });
        for pause_us in (0..races).map(|race| u64::from(race) * 104_729 % 1000) {
            // Pauses, so that the other user has a chance in each race even on few cores.
            thread::sleep(Duration::from_micros(pause_us));
            if let Some(folder) = open_private(&folder) {
                used += 1;
                received.extend(exchange_in(&folder));
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    File::create(&stop).expect("the folder is writable");
    let mut printed = String::new();
    output.read_to_string(&mut printed).expect("stdout is text");
    let (wins, created): (Vec<_>, Vec<_>) = printed.lines().partition(|line| line.starts_with("WON"));
    let (own, foreign): (Vec<_>, Vec<_>) = received.into_iter().partition(|identity| identity == IDENTITY);
    let in_private = fs::read_dir(&private).expect("it exists").count();
    println!(
        "{races} races: in {used} the folder was this user's, {} summaries were handed over, \
         the other user created it {} times, and won {} times",
        own.len(),
        created.join(" "),
        wins.len() + foreign.len() + in_private
    );
    assert_eq!((wins, foreign, in_private), (Vec::<&str>::new(), Vec::<String>::new(), 0));
}
