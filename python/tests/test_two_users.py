"""Another user of the machine against ``vramscope run``, ``attach`` and the ranks of a job.

The tests need root, to become the other user. The other user may write to the temporary folder, as
on every machine, and connect to every socket. ``VRAMSCOPE_RACES=1000`` sets the number of free
races; ``crates/cli/src/attach/process/two_users.rs`` has those against ``attach``.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

from harness import BINARY, LIMIT, ROOT, ProgramTest, pythons

#: The user that attacks, and an interpreter that this user can run.
ATTACKER = 65533
ATTACKER_PYTHON = "/usr/bin/python3"
RACES = int(os.environ.get("VRAMSCOPE_RACES", "10"))

#: A program that waits outside of Python, as a long call of a library does.
WAITING = """
import os

print("ready", flush=True)
os.read(0, 1)
for _ in range(1000): pass
print("awake", flush=True)
os.read(0, 1)
"""
#: Creates each folder anew that is deleted from the folders in its arguments, and whatever it may
#: in those that exist; every file that a process would run prints WON.
ATTACK = """
import os, sys, time
os.umask(0)
stop, shared, *folders = sys.argv[1:]
payload = "import sys; print('WON', file=sys.stderr, flush=True)\\n"
files = "sitecustomize.py", "usercustomize.py", "start.py", "run.py", "target/run.py", "site/sitecustomize.py", \\
    "vramscope/site/sitecustomize.py", "vramscope/_site/sitecustomize.py", "vramscope/_imports.py", \\
    "vramscope/__init__.py"
known = set(folders)
print("ready", flush=True)
is_last = False
while not is_last:
    # The last round begins after the test's request to stop.
    is_last = os.path.exists(stop)
    for parent in shared, *folders:
        try:
            known.update(entry.path for entry in os.scandir(parent) if entry.is_dir())
        except OSError:
            pass
    for path in list(known):
        for name in files:
            file = os.path.join(path, name)
            try:
                os.makedirs(os.path.dirname(file), 0o777, exist_ok=True)
                open(file, "w").write(payload)
            except OSError:
                continue
            print(path, flush=True)
    time.sleep(0.0005)
"""


#: Skips tests that cannot become another user.
needs_two_users = unittest.skipUnless(
    os.getuid() == 0 and os.path.exists(ATTACKER_PYTHON), "two users need root and the system's Python"
)


class AttackedTest(ProgramTest):
    """A test with folders that another user attacks."""

    def setUp(self):
        super().setUp()
        # Like /tmp; the other folders of the tests are this user's.
        self.shared = tempfile.mkdtemp(dir="/tmp")
        self.addCleanup(shutil.rmtree, self.shared, ignore_errors=True)
        os.chmod(self.shared, 0o1777)
        # Below no folder that others can write.
        self.private = tempfile.mkdtemp(dir=os.path.join(ROOT, "target"))
        self.addCleanup(shutil.rmtree, self.private, ignore_errors=True)
        os.chmod(self.private, 0o755)
        self.data = os.path.join(self.private, "data")

    def start_as_attacker(self, program, *arguments):
        """Starts a Python program as the other user."""
        process = subprocess.Popen(
            [ATTACKER_PYTHON, "-c", program, *arguments], cwd="/", user=ATTACKER, group=ATTACKER, extra_groups=[],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def start_attack(self, *folders):
        """Starts to attack the shared folder and others, and returns the process."""
        # Of an attack before this one.
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(self.shared, "stop"))
        attack = self.start_as_attacker(ATTACK, os.path.join(self.shared, "stop"), self.shared, *folders)
        self.assertEqual(attack.stdout.readline(), "ready\n")
        return attack

    def stop_attack(self, attack):
        """Stops an attack after another round, and returns the folders that it has created anew."""
        open(os.path.join(self.shared, "stop"), "w").close()
        output, errors = attack.communicate(timeout=LIMIT)
        self.assertEqual(errors, "")
        return sorted(set(output.split()))

    def wait_for(self, path):
        end = time.monotonic() + LIMIT
        while not os.path.exists(path):
            self.assertLess(time.monotonic(), end, path)
            time.sleep(0.01)


@needs_two_users
class TwoUsersTest(AttackedTest):
    """What ``run`` and ``attach`` place in folders."""

    def test_attack_takes_a_folder_that_is_deleted(self):
        folder = tempfile.mkdtemp(dir=self.shared)
        attack = self.start_attack(folder)
        os.rmdir(folder)
        self.assertIn(folder, self.stop_attack(attack))

    def test_program_that_outlives_run_imports_nothing_of_another_user(self):
        self.write_program("print('program', flush=True)")
        for python in pythons():
            with self.subTest(python=python):
                go, done = (os.path.join(self.folder, name) for name in ("go", "done"))
                wait = f"while [ ! -e {go} ]; do sleep 0.02; done"
                script = f"({wait}; {python} program.py > {done}.part 2>&1; mv {done}.part {done}) &"
                attack = self.start_attack(self.data)
                command = subprocess.run(
                    [BINARY, "run", "--listen", "127.0.0.1:0", "--no-open", "sh", "-c", f"{script} exit 0"],
                    cwd=self.folder, env=self.variables(TMPDIR=self.shared, XDG_DATA_HOME=self.data), timeout=LIMIT,
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )
                self.assertEqual(command.returncode, 0)
                recreated = self.stop_attack(attack)
                open(go, "w").close()
                self.wait_for(done)
                with open(done) as file:
                    self.assertEqual(file.read(), "program\n")
                self.assertEqual(recreated, [])
                for path in go, done:
                    os.remove(path)

    def test_another_user_wins_no_race_against_run(self):
        self.write_program("print('program')")
        attack = self.start_attack(self.data, os.path.join(self.data, "vramscope"), self.private)
        for race in range(RACES):
            if race % 2:
                shutil.rmtree(self.data, ignore_errors=True)
            python = pythons()[race % len(pythons())]
            done = subprocess.run(
                [BINARY, "run", "--listen", "127.0.0.1:0", "--no-open", python, "program.py"], cwd=self.folder,
                env=self.variables(TMPDIR=self.shared, XDG_DATA_HOME=self.data), capture_output=True, text=True,
                timeout=LIMIT,
            )
            self.assertEqual((done.returncode, done.stdout), (0, "program\n"), done.stderr)
            self.assertNotIn("WON", done.stderr)
        self.assertEqual(self.stop_attack(attack), [])

    def test_late_call_of_detach_runs_nothing_of_another_user(self):
        for python in pythons():
            with self.subTest(python=python):
                job = subprocess.Popen(
                    [python, "-c", WAITING], env=self.variables(packages=[]), text=True, stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                )
                self.addCleanup(job.kill)
                self.assertEqual(job.stdout.readline(), "ready\n")
                attack = self.start_attack()
                done = subprocess.run(
                    [BINARY, "detach", str(job.pid), "--timeout", "1s"], capture_output=True, text=True, timeout=LIMIT,
                    env=os.environ | {"TMPDIR": self.shared},
                )
                if "is not supported" in done.stderr or "older" in done.stderr or "no permission" in done.stderr:
                    self.stop_attack(attack)
                    continue
                self.assertIn("did not answer within 1 s", done.stderr)
                recreated = self.stop_attack(attack)
                job.stdin.write("\n")
                job.stdin.flush()
                self.assertEqual(job.stdout.readline(), "awake\n")
                _, errors = job.communicate("\n", timeout=LIMIT)
                self.assertEqual((recreated, errors), ([], ""))


@needs_two_users
class TwoUsersRanksTest(AttackedTest):
    """The socket of a job's ranks, whose name any user can take."""

    RANKS = """
    from vramscope import _ranks

    rank = _ranks.Rank(int(os.environ["RANK"]), int(os.environ["RANK"]), "job of the test")
    name = "\\0" + sys.argv[1]
    try:
        shared = _ranks._Server(name, "127.0.0.1:0", None) if rank.rank == 0 else _ranks._Connection(name)
    except OSError as error:
        print(error, flush=True)
    else:
        print("shared", flush=True)
        sys.stdin.read()
    """
    #: Takes a socket's name and offers an address to each client.
    SQUATTER = """
import socket, sys
server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
server.bind("\\0" + sys.argv[1])
server.listen(8)
print("ready", flush=True)
while True:
    connection, _ = server.accept()
    try:
        socket.send_fds(connection, [b"ws://127.0.0.1:1/?token=stolen"], [0])
    except OSError:
        pass
"""
    #: Asks a socket for the address, again and again.
    THIEF = """
import socket, sys
for _ in range(int(sys.argv[2])):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect("\\0" + sys.argv[1])
        try:
            text = connection.recv(4096)
        except OSError:
            text = b""
        if text:
            print("WON", text)
print("asked")
"""

    def rank(self, number, name):
        path = self.write_program(self.RANKS, f"rank{number}.py")
        process = subprocess.Popen(
            [sys.executable, path, name], cwd=self.folder, env=self.variables(RANK=str(number)), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def test_name_taken_by_another_user_is_refused(self):
        name = f"vramscope-test-{os.getpid()}"
        squatter = self.start_as_attacker(self.SQUATTER, name)
        self.assertEqual(squatter.stdout.readline(), "ready\n")
        expected = "another user has taken the name of this job's socket\n"
        self.assertEqual(self.rank(0, name).stdout.readline(), expected)
        expected = f"the user with id {ATTACKER} listens in place of local rank 0\n"
        self.assertEqual(self.rank(1, name).stdout.readline(), expected)

    def test_another_user_gets_no_address(self):
        name = f"vramscope-test-{os.getpid()}-own"
        self.assertEqual(self.rank(0, name).stdout.readline(), "shared\n")
        thief = self.start_as_attacker(self.THIEF, name, str(max(RACES, 100)))
        # A rank connects meanwhile.
        self.assertEqual(self.rank(1, name).stdout.readline(), "shared\n")
        self.assertEqual(thief.communicate(timeout=LIMIT), ("asked\n", ""))
