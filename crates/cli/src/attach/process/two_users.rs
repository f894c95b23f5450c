//! Tests that another user of the machine cannot attack `attach` through its folders, in a
//! temporary folder that all users can write. The tests need root, to become two other users.
//!
//! `VRAMSCOPE_RACES=1000` sets the number of free races for each interpreter.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::stat::Mode;
use nix::unistd::{geteuid, mkfifo};
use tempfile::TempDir;

use super::remote_exec::Threads;
use super::script::ScriptFolder;
use super::stop::with_stopped_threads;
use super::tests::Program;
use super::{PythonProcess, Request};
use crate::attach::test_pythons;
use crate::attach::wait::Wait;
use crate::error::Result;

/// Id of the user of the processes that are attached to, and id of the user that attacks.
const TARGET_UID: u32 = 65532;
const ATTACKER_UID: u32 = 65533;
/// An interpreter that every user can run.
const ATTACKER_PYTHON: &str = "/usr/bin/python3";
/// Number of races for each interpreter if `VRAMSCOPE_RACES` is not set.
const DEFAULT_RACES: u32 = 30;

/// Script that the attacking user places in the folder of a request.
const PAYLOAD: &str = "open(WON, 'a').write('program\\n')\n";

/// A program that tries each attack on a folder and its files once, and prints those that succeed.
const ATTACK: &str = r#"
import os, sys
parent = sys.argv[1]
def attempt(what, function, *arguments):
    try:
        function(*arguments)
    except OSError:
        return
    print(what, *arguments)
count = 0
for name in os.listdir(parent):
    if name.startswith("vramscope-"):
        count += 1
        path = f"{parent}/{name}"
        attempt("list", os.listdir, path)
        attempt("list", os.listdir, f"{path}/target")
        names = "run.py", "reply", "started", "asked", "opened", "withdrawn", "new"
        for file in "start.py", "new", *(f"target/{name}" for name in names):
            if file != "start.py":
                attempt("read", open, f"{path}/{file}")
            attempt("write", os.open, f"{path}/{file}", os.O_WRONLY | os.O_CREAT)
            attempt("link", os.symlink, "/etc/passwd", f"{path}/{file}")
            attempt("rename", os.rename, f"{path}/{file}", f"{parent}/taken")
            attempt("remove", os.remove, f"{path}/{file}")
        for folder in f"{path}/target", path:
            attempt("chmod", os.chmod, folder, 0o777)
            attempt("rename", os.rename, folder, f"{parent}/taken")
            attempt("remove", os.rmdir, folder)
print("attacked", count)
"#;

/// A program that creates a folder with the payload in place of a deleted folder.
const RECREATE: &str = r#"
import os, sys
WON, path, payload = sys.argv[1:]
os.umask(0)
for folder in path, f"{path}/target":
    os.mkdir(folder, 0o777)
for file in "start.py", "target/run.py":
    with open(f"{path}/{file}", "w") as script:
        script.write(f"WON = {WON!r}\n{payload}")
print("recreated")
"#;

/// A program that recreates every deleted folder and reads every existing one, until the file
/// `stop` exists.
const RACE: &str = r#"
import os, shutil, sys
WON, parent, payload = sys.argv[1:]
os.umask(0)
known = set()
recreated = 0
print("ready", flush=True)
while not os.path.exists(f"{parent}/stop"):
    known.update(name for name in os.listdir(parent) if name.startswith("vramscope-"))
    for name in list(known):
        path = f"{parent}/{name}"
        for secret in f"{path}/target/run.py", f"{path}/target/reply":
            try:
                text = open(secret).read()
            except OSError:
                continue
            if not text.startswith("WON"):
                open(WON, "a").write(f"read {secret}\n")
        try:
            os.mkdir(path, 0o777)
        except OSError:
            continue
        recreated += 1
        os.mkdir(f"{path}/target", 0o777)
        for file in "start.py", "target/run.py":
            with open(f"{path}/{file}", "w") as script:
                script.write(f"WON = {WON!r}\n{payload}")
        if len(known) > 20:
            for old in sorted(known)[:10]:
                shutil.rmtree(f"{parent}/{old}", ignore_errors=True)
                known.discard(old)
print(recreated)
"#;

/// Returns true if the tests can become other users; prints that they do not run otherwise.
fn can_become_users() -> bool {
    let can = geteuid().is_root() && Path::new(ATTACKER_PYTHON).exists();
    if !can {
        println!("SKIPPED: two users need root and {ATTACKER_PYTHON}");
    }
    can
}

/// A temporary folder like `/tmp`, and the file that an attack writes once it has succeeded.
struct SharedFolder(TempDir);

impl SharedFolder {
    fn create() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).expect("the folder is ours");
        let shared = Self(folder);
        File::create(shared.won()).expect("the folder is writable");
        fs::set_permissions(shared.won(), fs::Permissions::from_mode(0o666)).expect("the file is ours");
        shared
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns the path of the file that an attack writes once it has succeeded.
    fn won(&self) -> PathBuf {
        self.path().join("won")
    }

    /// Returns the text that successful attacks have written.
    fn wins(&self) -> String {
        fs::read_to_string(self.won()).expect("the file exists")
    }

    /// Starts a Python program as the attacking user.
    fn start_attack(&self, program: &str, arguments: &[&str]) -> Child {
        let mut command = Command::new(ATTACKER_PYTHON);
        command.args(["-c", program]).args(arguments).uid(ATTACKER_UID).gid(ATTACKER_UID).current_dir("/");
        command.stdout(Stdio::piped()).spawn().expect("the system's Python starts")
    }

    /// Runs [`ATTACK`] and checks that no attack succeeds.
    fn attack(&self, step: &str) {
        let parent = self.path().to_str().expect("the name is text");
        let output = self.start_attack(ATTACK, &[parent]).wait_with_output().expect("the attack ends");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "attacked 1\n", "{step}");
    }

    /// Creates a folder with the payload at `path` as the attacking user.
    fn recreate(&self, path: &Path) {
        let won = self.won();
        let arguments = [won.to_str(), path.to_str(), Some(PAYLOAD)].map(|text| text.expect("the name is text"));
        let output = self.start_attack(RECREATE, &arguments).wait_with_output().expect("the attack ends");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "recreated\n");
    }
}

/// A process of the attacking user. Dropping it kills the process.
struct Attacker(Child);

impl Drop for Attacker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a program as the user `uid`. The program first imports the modules that a request needs,
/// while it may still read the interpreter's folder.
fn start_target(python: &Path, uid: u32, program: &str) -> Program {
    let program = format!(
        "import hashlib, os, stat, sys, threading, time\nos.setgid({uid}); os.setuid({uid})\n\
         print('changed', flush=True)\n{program}"
    );
    let mut target = Program::start(python, &program);
    assert_eq!(read_line(&mut target), "changed");
    target
}

/// Reads a line of a program's output.
fn read_line(target: &mut Program) -> String {
    let mut line = String::new();
    target.stdout.read_line(&mut line).expect("stdout is text");
    line.trim_end().to_owned()
}

/// Waits until a condition holds; fails after a minute.
fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Calls `f` while this thread's process is the tracer of the `process`.
fn while_stopped<R: Send>(process: &PythonProcess, f: impl FnOnce() -> R + Send) -> R {
    let (mut f, mut result) = (Some(f), None);
    wait_until("the process stops", || {
        let call = || {
            result = f.take().map(|f| f());
            Ok(())
        };
        with_stopped_threads(&process.process, call).is_ok()
    });
    result.expect("it was called")
}

/// Runs a program in the process from a folder in `parent`.
fn run_in(parent: &Path, process: &PythonProcess, code: &str, timeout: Duration) -> Result<String> {
    let folder = ScriptFolder::create_in(parent, &process.process, code).expect("the folder is writable");
    run_from(folder, process, timeout)
}

/// Runs the program of a folder in the process.
fn run_from(folder: ScriptFolder, process: &PythonProcess, timeout: Duration) -> Result<String> {
    process.run_from(folder, &Wait { timeout, on_message: &|message| println!("{message}"), is_cancelled: &|| false })
}

/// Longest wait for a program that answers.
const LONG: Duration = Duration::from_secs(30);

/// A program for Python 3.14 with three threads. The main thread and a second thread wait for the
/// files `main` and `second` before they open a debugger's script. The third thread ends once it
/// has opened the script and `main` exists.
const WAITING_BEFORE_SCRIPTS: &str = "\
def wait_for(name):
    while not os.path.exists(f'{folder}/{name}'): time.sleep(0.01)
def wait_before_script(event, arguments):
    name = threading.current_thread().name
    if event == 'cpython.remote_debugger_script' and name != 'third':
        print(name, flush=True)
        wait_for(name)
def second():
    while True: time.sleep(0.01)
def third():
    wait_for('main')
threading.current_thread().name = 'main'
for function in [second, third][:count]:
    threading.Thread(target=function, name=function.__name__, daemon=True).start()
sys.addaudithook(wait_before_script)
print('started', flush=True)
wait_for('main')
for thread in threading.enumerate():
    if thread.name == 'third': thread.join()
for _ in range(20): time.sleep(0.01)
print('awake', flush=True)
while True: time.sleep(0.01)";

/// A program that waits in a system call, outside of Python, for a line of input. It then runs
/// pending calls and prints `awake`.
const WAITING: &str = "\
os.read(0, 1)
for _ in range(20): time.sleep(0.01)
print('awake', flush=True)
while True: time.sleep(0.01)";

/// Makes a program with [`WAITING`] continue, and waits until it has run the queued call.
fn wake(target: &mut Program) {
    target.send_line();
    assert_eq!(read_line(target), "awake");
}

#[test]
fn no_step_lets_another_user_use_the_folder() {
    if !can_become_users() {
        return;
    }
    for python in test_pythons::supported() {
        let shared = SharedFolder::create();
        let target = start_target(&python, TARGET_UID, "while True: time.sleep(0.02)");
        let process = target.find();
        let mut folder = ScriptFolder::create_empty(shared.path(), &process.process).expect("a folder");
        shared.attack("an empty folder");
        folder.write_program("reply = 'never'").expect("the folder is writable");
        shared.attack("a folder with the program");
        drop(folder);
        let go = shared.path().join("go");
        let code = format!("import os, time\nwhile not os.path.exists({go:?}): time.sleep(0.01)\nreply = 'answered'");
        let folder = ScriptFolder::create_in(shared.path(), &process.process, &code).expect("a folder");
        let path = folder.path().to_owned();
        shared.attack("a folder of the process's user");
        let reply = thread::scope(|scope| {
            let running = scope.spawn(|| run_from(folder, &process, LONG));
            wait_until("the program starts", || path.join("target/started").exists());
            shared.attack("a program that runs");
            File::create(&go).expect("the folder is writable");
            running.join().expect("no panic")
        });
        assert_eq!(reply.expect("the program answers"), "answered", "{}", python.display());
        assert!(!path.exists());
        shared.recreate(&path);
        let reply = run_in(shared.path(), &process, "reply = 'next'", LONG);
        assert_eq!(reply.expect("the program answers"), "next", "{}", python.display());
        assert_eq!((shared.wins().as_str(), target.end().as_str()), ("", ""), "{}", python.display());
    }
}

#[test]
fn canceled_request_does_not_run_a_file_of_another_user() {
    if !can_become_users() {
        return;
    }
    for python in test_pythons::supported() {
        let shared = SharedFolder::create();
        let mut target = start_target(&python, TARGET_UID, WAITING);
        target.wait_until_reading();
        let process = target.find();
        let folder = ScriptFolder::create_in(shared.path(), &process.process, "reply = 'late'").expect("a folder");
        let path = folder.path().to_owned();
        let error = run_from(folder, &process, Duration::from_millis(1200)).expect_err("the program waits").to_string();
        assert!(error.contains("did not answer within") && !error.contains("withdrawn"), "{error}");
        assert!(!path.exists());
        shared.recreate(&path);
        wake(&mut target);
        let reply = run_in(shared.path(), &process, "reply = 'now'", LONG);
        assert_eq!(reply.expect("the program answers"), "now", "{}", python.display());
        assert_eq!((shared.wins().as_str(), target.end().as_str()), ("", ""), "{}", python.display());
    }
}

#[test]
fn folder_of_a_request_that_cannot_be_withdrawn_is_kept() {
    if !can_become_users() {
        return;
    }
    // A process of another user, and a process of this command's user.
    let cases = test_pythons::supported().into_iter().flat_map(|python| [(python.clone(), TARGET_UID), (python, 0)]);
    for (python, uid) in cases {
        let shared = SharedFolder::create();
        let mut target = start_target(&python, uid, WAITING);
        target.wait_until_reading();
        let process = target.find();
        let ran = shared.path().join("ran");
        let folder = ScriptFolder::create_in(shared.path(), &process.process, &format!("open({ran:?}, 'w')"));
        let folder = folder.expect("a folder");
        let path = folder.path().to_owned();
        let mut request = Request::new(&process, folder);
        let wait = Wait { timeout: LONG, on_message: &|_| (), is_cancelled: &|| false };
        request.start(&wait).expect("the request is queued");
        // Another debugger traces the process from now on.
        let advice = while_stopped(&process, || {
            let advice = request.end(Duration::ZERO).expect_err("the process is traced");
            shared.attack("a folder that was kept");
            advice
        });
        assert!(advice.contains("could not be withdrawn") && advice.contains("leave the folder"), "{advice}");
        wake(&mut target);
        // The process removes its user's files.
        let removed = if uid == 0 { path.clone() } else { path.join("target/run.py") };
        wait_until("the process removes the folder", || !removed.exists());
        assert!(!ran.exists(), "{}", python.display());
        assert_eq!((shared.wins().as_str(), target.end().as_str()), ("", ""), "{}", python.display());
    }
}

#[test]
fn folder_is_kept_while_a_thread_is_about_to_open_the_script() {
    if !can_become_users() {
        return;
    }
    let pythons = test_pythons::supported();
    let cases = [(TARGET_UID, 1), (TARGET_UID, 2), (0, 1), (0, 2)];
    for (python, (uid, count)) in pythons.iter().flat_map(|python| cases.map(|case| (python, case))) {
        let shared = SharedFolder::create();
        let program = format!("folder, count = {:?}, {count}\n{WAITING_BEFORE_SCRIPTS}", shared.path());
        let mut target = start_target(python, uid, &program);
        let process = target.find();
        if process.python_minor() < 14 {
            continue;
        }
        assert_eq!(read_line(&mut target), "started");
        let folder = ScriptFolder::create_in(shared.path(), &process.process, "reply = 'late'").expect("a folder");
        let path = folder.path().to_owned();
        let mut request = Request::new(&process, folder);
        wait_until("the main thread is asked", || request.ask(Threads::Main).is_ok());
        assert_eq!(read_line(&mut target), "main");
        // The main thread already has a request and gets no second one.
        wait_until("the other threads are asked", || request.ask(Threads::All).is_ok());
        assert_eq!(read_line(&mut target), "second");
        request.folder.withdraw();
        File::create(shared.path().join("main")).expect("the folder is writable");
        assert_eq!(read_line(&mut target), "awake");
        let opened = path.join("target/opened");
        wait_until("threads open the script", || fs::metadata(&opened).is_ok_and(|status| status.len() == count));
        let withdrawn = request.withdraw_until(Instant::now() + LONG);
        withdrawn.expect("the process can be stopped");
        // The wait does not stop the process, which only one tracer can.
        let opened = while_stopped(&process, || request.wait_until_opened(Instant::now()));
        assert_eq!(opened, Err("a thread of the process has not run the file start.py yet".to_owned()));
        let advice = request.end(Duration::ZERO).expect_err("a thread is about to open the script");
        assert!(path.exists(), "{}", python.display());
        assert!(advice.contains("a thread of the process has not run the file start.py yet"), "{advice}");
        File::create(shared.path().join("second")).expect("the folder is writable");
        let removed = if uid == 0 { path } else { path.join("target/run.py") };
        wait_until("the process removes the folder", || !removed.exists());
        assert_eq!((shared.wins().as_str(), target.end().as_str()), ("", ""), "{}", python.display());
    }
}

#[test]
fn user_of_the_process_cannot_mislead_the_command() {
    if !can_become_users() {
        return;
    }
    let shared = SharedFolder::create();
    let target = start_target(Path::new("python3"), TARGET_UID, "while True: time.sleep(0.02)");
    let process = target.find();
    let secret = shared.path().join("secret");
    fs::write(&secret, "done\nsecret").expect("the folder is writable");
    let check = |create: &dyn Fn(&Path), expected: &str| {
        let folder = ScriptFolder::create_in(shared.path(), &process.process, "").expect("a folder");
        assert!(folder.result().expect("no reply").is_none());
        create(&folder.path().join("target/reply"));
        let result = folder.result().map(|result| result.map(|text| text.unwrap_or_default()));
        let found = match &result {
            Ok(text) => text.clone().unwrap_or_default(),
            Err(error) => error.to_string(),
        };
        assert!(found.contains(expected), "{found:.200}");
    };
    let own = |path: &Path| chown(path, Some(TARGET_UID), None).expect("root may");
    check(&|reply| mkfifo(reply, Mode::S_IRWXU).expect("the folder is writable"), "it is not a regular file");
    check(&|reply| symlink(&secret, reply).expect("the folder is writable"), "it is not a regular file");
    check(&|reply| symlink("/dev/zero", reply).expect("the folder is writable"), "it is not a regular file");
    check(&|reply| fs::create_dir(reply).expect("the folder is writable"), "it is not a regular file");
    check(&|reply| fs::hard_link(&secret, reply).expect("the folder is writable"), "belongs to the user with id 0");
    let text = |bytes: Vec<u8>| {
        move |reply: &Path| {
            fs::write(reply, &bytes).expect("the folder is writable");
            own(reply);
        }
    };
    check(&text(b"done\nan answer".to_vec()), "an answer");
    check(&text(b"done\n\xff".to_vec()), "\u{fffd}");
    check(&text(b"done\n".repeat(1 << 20)), "done");

    // With a link in place of `started`, the command changes no file outside of its folder.
    let folder = ScriptFolder::create_in(shared.path(), &process.process, "").expect("a folder");
    symlink("/nothing", folder.path().join("target/started")).expect("the folder is writable");
    assert!(folder.has_started());
    folder.withdraw();
    assert_eq!(fs::metadata(&secret).expect("the file exists").uid(), 0);
    assert_eq!(fs::read(&secret).expect("the file exists"), b"done\nsecret");
}

#[test]
fn another_user_never_wins_a_race_for_the_folder() {
    if !can_become_users() {
        return;
    }
    let races = std::env::var("VRAMSCOPE_RACES").ok().and_then(|text| text.parse().ok()).unwrap_or(DEFAULT_RACES);
    for python in test_pythons::supported() {
        let shared = SharedFolder::create();
        let won = shared.won();
        let arguments = [won.to_str(), shared.path().to_str(), Some(PAYLOAD)].map(|text| text.expect("it is text"));
        let mut attacker = Attacker(shared.start_attack(RACE, &arguments));
        let mut output = BufReader::new(attacker.0.stdout.take().expect("stdout is piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("stdout is text");
        assert_eq!(line, "ready\n");
        // Requests are given up before, while and after the program starts.
        let target = start_target(&python, TARGET_UID, "while True: time.sleep(0.01)");
        let process = target.find();
        let mut answered = 0;
        for race in 0..races {
            let timeout = Duration::from_micros(u64::from(race * 7919 % 40) * 500);
            answered += u32::from(run_in(shared.path(), &process, "reply = 'done'", timeout).is_ok());
        }
        let reply = run_in(shared.path(), &process, "reply = 'now'", LONG);
        assert_eq!(reply.expect("the program answers"), "now", "{}", python.display());
        File::create(shared.path().join("stop")).expect("the folder is writable");
        let mut recreated = String::new();
        output.read_line(&mut recreated).expect("stdout is text");
        attacker.0.wait().expect("the attack ends");
        println!("{}: {races} races, {answered} answered, {} recreated", python.display(), recreated.trim());
        assert_eq!((shared.wins().as_str(), target.end().as_str()), ("", ""), "{}", python.display());
    }
}
