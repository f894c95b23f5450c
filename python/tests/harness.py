"""Runs programs with the extension module and the stand-in for PyTorch (``tests/standin``).

A process can attach one tracker, so each program runs in a process of its own. Environment
variables:

- ``VRAMSCOPE_INSTALLED``: set to 1 to test the package and the command that are installed in this
  interpreter's environment, instead of those of the checkout.
- ``VRAMSCOPE_NATIVE``: the extension module, ``target/debug/libvramscope_hook.so`` by default.
- ``VRAMSCOPE_BINARY``: the command that reads recordings, ``target/debug/vramscope`` by default.
"""

import atexit
import contextlib
import csv
import functools
import glob
import importlib.util
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
IS_INSTALLED = os.environ.get("VRAMSCOPE_INSTALLED") == "1"
NATIVE = os.environ.get("VRAMSCOPE_NATIVE", os.path.join(ROOT, "target/debug/libvramscope_hook.so"))
BUILT_BINARY = os.path.join(ROOT, "target/debug/vramscope")
INSTALLED_BINARY = os.path.join(os.path.dirname(sys.executable), "vramscope")
BINARY = INSTALLED_BINARY if IS_INSTALLED else os.environ.get("VRAMSCOPE_BINARY", BUILT_BINARY)
STANDIN = os.path.join(ROOT, "tests/standin")

#: How long a program may run, in seconds: ends a test that hangs, also on a loaded machine.
LIMIT = 300
#: Kinds of events, in the order of PyTorch's actions.
ACTIONS = (
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap",
    "snapshot", "oom",
)

#: What each program begins with. Programs wait without a limit: ``LIMIT`` ends one that hangs.
PRELUDE = f"VRAMSCOPE = {BINARY!r}\n" + """
import os
import sys
import time

def wait_until(condition):
    while not condition():
        time.sleep(0.01)

def wait_until_live(session):
    wait_until(lambda: session.status != "waiting")
    assert session.status == "live", session.status

def wait_for_call(owner, name):
    '''Waits until another thread has called the function once more, from begin to end.'''
    function, calls = getattr(owner, name), []

    def call(*arguments):
        try:
            return function(*arguments)
        finally:
            calls.append(arguments)

    setattr(owner, name, call)
    wait_until(lambda: calls)
    setattr(owner, name, function)

def events_so_far(session):
    '''Returns what a session has recorded so far, as `ProgramTest.events` does.'''
    import csv
    import subprocess

    session.save("so_far.vram")
    export = [VRAMSCOPE, "export", "so_far.vram", "--to", "csv", "-o", "so_far.csv"]
    subprocess.run(export, check=True, capture_output=True)
    with open("so_far.csv", newline="") as file:
        return list(csv.DictReader(file))

def train(steps=3, device="cuda"):
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.Linear(64, 256, device=device), nn.ReLU(), nn.Linear(256, 8, device=device)
            )

        def forward(self, x):
            return self.body(x)

    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(steps):
        loss = net(torch.empty(32, 64, device=device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return net, optimizer

def snapshots():
    '''Returns the number of snapshots in the log of device 0. How many a session takes depends on the
    time that they take.'''
    import torch

    return sum(action == 7 for action, *_ in torch._library.log(0))

def write_log():
    '''Writes the allocator's log and counters beside the recording.'''
    import json
    import torch

    devices = range(torch.cuda.device_count())
    with open("log.json", "w") as file:
        logs = [torch._library.log(device) for device in devices]
        json.dump({"logs": logs, "stats": [torch.cuda.memory_stats(device) for device in devices]}, file)
"""

_folder = tempfile.mkdtemp(prefix="standin-")
atexit.register(shutil.rmtree, _folder, ignore_errors=True)


@functools.cache
def package():
    """Returns a folder with a copy of the package and the extension module; None if the installed
    package is tested."""
    if IS_INSTALLED:
        return None
    folder = os.path.join(_folder, "package")
    source = os.path.join(ROOT, "python/vramscope")
    shutil.copytree(source, os.path.join(folder, "vramscope"), ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy(NATIVE, os.path.join(folder, "vramscope", "_native.abi3.so"))
    return folder


def installed_folder():
    """Returns the folder with the installed package."""
    return os.path.dirname(*importlib.util.find_spec("vramscope").submodule_search_locations)


def pythons():
    """Returns this machine's interpreters of Python 3.8 and later: the system's and pyenv's."""
    root = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    found = {"/usr/bin/python3", *glob.glob(os.path.join(root, "versions/3.*/bin/python"))}
    found.update(filter(None, os.environ.get("VRAMSCOPE_TEST_PYTHONS", "").split(os.pathsep)))
    old = re.compile(r"/versions/3\.[0-7]\.")
    return sorted(path for path in found if os.path.exists(path) and not old.search(path))


@functools.cache
def layouts():
    """Returns the options for the compiler for each minor version of PyTorch."""
    with open(os.path.join(ROOT, "crates/hook/src/torch/layouts.rs")) as file:
        parts = re.findall(r"TorchLayout \{\n(        minor: .*?)\n    \}", file.read(), re.DOTALL)
    found = {}
    for part in parts:
        fields = dict(re.findall(r"(\w+): (.*),", part))
        options = [f"-D_GLIBCXX_USE_CXX11_ABI={int(fields['cxx11_abi'] == 'true')}"]
        for name in ("attach_slot", "entry_size", "time", "mempool", "compile_context", "user_metadata", "actions"):
            number = re.search(r"\d+", fields[name])
            options += [f"-DLAYOUT_{name.upper()}={number[0]}"] if number else []
        if "CachingDeviceAllocator10TraceEntry" in fields["attach_symbol"]:
            options.append("-DLAYOUT_SHARED_ENTRY")
        found[int(fields["minor"])] = options
    return found


@functools.cache
def library(minor, *options):
    """Returns the path of the stand-in's library with the layout of a version."""
    return compiled("c10_cuda.cpp", "libc10_cuda.so", "-O2", "-fvisibility=hidden", *layouts()[minor], *options)


def compiled(source, name, *options):
    """Compiles a source of the stand-in to a library with a name, unless an earlier run has done
    so, and returns its path."""
    command = ["g++", "-std=c++17", "-shared", "-fPIC", "-pthread", *options, os.path.join(STANDIN, source)]
    digest = hashlib.sha256(repr(command).encode())
    for path in sorted(glob.glob(os.path.join(STANDIN, "*.*"))):
        with open(path, "rb") as file:
            digest.update(file.read())
    path = os.path.join(ROOT, "target/standin", digest.hexdigest()[:16], name)
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # Another run may compile it at the same time.
        part = f"{path}.{os.getpid()}"
        subprocess.run([*command, "-o", part], check=True)
        os.replace(part, path)
    return path


class ProgramTest(unittest.TestCase):
    """A test that runs programs in a folder of its own."""

    maxDiff = None
    #: True for tests that start first, because they take much longer than others.
    is_long = False

    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=_folder)

    def write_program(self, code, name="program.py"):
        """Writes a program, which begins with ``PRELUDE``, and returns its path."""
        path = os.path.join(self.folder, name)
        with open(path, "w") as file:
            file.write(PRELUDE + textwrap.dedent(code))
        return path

    def variables(self, version="2.11.0+standin", layout=11, options=(), packages=None, **environment):
        """Returns the environment of a program. ``packages`` are the folders of its packages: that
        of vramscope unless the test names others."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith("VRAMSCOPE_")}
        folders = [package()] if packages is None else packages
        return variables | {
            "PYTHONPATH": os.pathsep.join(filter(None, [*folders, STANDIN])),
            "PYTHONDONTWRITEBYTECODE": "1",
            # The commands `python3` and `vramscope` are those that are tested.
            "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.path.dirname(BINARY), os.environ["PATH"]]),
            "STANDIN_LIBRARY": library(layout, *options),
            "STANDIN_TORCH_VERSION": version,
            **environment,
        }

    def run_program(self, code, *arguments, status=0, **environment):
        """Runs a program, checks its exit status, and returns its standard output and errors."""
        return self.run_command(sys.executable, *arguments, self.write_program(code), status=status, **environment)

    def run_everywhere(self, code):
        """Runs a program with each supported Python of this machine."""
        path = self.write_program(code)
        # The package is installed for one of them only.
        packages = [installed_folder()] if IS_INSTALLED else None
        for python in pythons():
            check = "import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 15))"
            if subprocess.run([python, "-c", check]).returncode == 0:
                with self.subTest(python=python):
                    self.run_command(python, path, packages=packages)

    def run_command(self, *command, status=0, **environment):
        """Runs a command, checks its exit status, and returns its standard output and errors. Ends
        it, and the processes that it has started, if it hangs."""
        process = self.start(*command, **environment)
        try:
            output, errors = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate(timeout=LIMIT)
            self.fail(f"{command} runs for more than {LIMIT} s: {output}{errors}")
        self.assertEqual(process.returncode, status, f"{output}{errors}")
        return output, errors

    def start(self, *command, **environment):
        """Starts a command in a process group of its own, which ends at the latest with the test,
        and returns the process."""
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, cwd=self.folder, env=self.variables(**environment), stdout=pipe, stderr=pipe, text=True,
            start_new_session=True,
        )
        self.addCleanup(self._end, process)
        return process

    @staticmethod
    def _end(process):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=LIMIT)

    def vramscope(self, *arguments):
        """Runs the ``vramscope`` command and returns what it prints."""
        done = subprocess.run([BINARY, *arguments], cwd=self.folder, capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(done.returncode, 0, f"{arguments}: {done.stdout}{done.stderr}")
        return done.stdout

    def info(self, name="run.vram"):
        return json.loads(self.vramscope("info", name, "--json"))

    def events(self, name="run.vram"):
        """Returns the events of a recording as dictionaries of texts."""
        self.vramscope("export", name, "--to", "csv", "-o", "events.csv")
        with open(os.path.join(self.folder, "events.csv"), newline="") as file:
            return list(csv.DictReader(file))

    def marks(self, name="run.vram"):
        """Returns the names of the marks on device 0, without those of snapshots."""
        rows = [row for row in self.events(name) if row["kind"] in ("mark", "annotation") and row["device"] == "0"]
        return [row["name"] for row in rows if row["name"] != "snapshot"]

    def assert_recording_equals_log(self, name="run.vram", starts_after_snapshot=1):
        """Compares a recording with the log from a snapshot on, event for event, and its
        end with the counters. Returns the number of events."""
        with open(os.path.join(self.folder, "log.json")) as file:
            log = json.load(file)
        rows = self.events(name)
        self.assertEqual([row for row in rows if row["kind"] == "gap"], [], "events are missing")
        count = 0
        for device, (entries, stats) in enumerate(zip(log["logs"], log["stats"])):
            snapshots = [number for number, entry in enumerate(entries) if ACTIONS[entry[0]] == "snapshot"]
            start = snapshots[starts_after_snapshot - 1] + 1
            expected = [self._as_row(entry) for entry in entries[start:] if ACTIONS[entry[0]] != "snapshot"]
            found = [
                tuple(row[name] for name in ("kind", "address", "size", "requested", "stream", "device_free"))
                for row in rows
                if row["device"] == str(device) and row["kind"] in ACTIONS
            ]
            for index, (row, entry) in enumerate(zip(found, expected)):
                found[index] = tuple("" if known is None else text for text, known in zip(row, entry))
                expected[index] = tuple(known or "" for known in entry)
            for index, (row, entry) in enumerate(zip(found, expected)):
                self.assertEqual(row, entry, f"event {index + 1} of {len(found)} of device {device}")
            self.assertEqual(len(found), len(expected))
            count += len(found)
            shown = self.info(name)["devices"][device]
            for key in ("allocated_bytes", "reserved_bytes", "requested_bytes"):
                self.assertEqual(shown[key], stats[f"{key}.all.current"], key)
        return count

    @staticmethod
    def _as_row(entry):
        """Returns kind, address, size, requested bytes, stream and free bytes as a recording shows
        them: empty if it has none, None if an entry of the log does not say."""
        action, address, size, stream, _ = entry
        action, address, size, stream = ACTIONS[action], hex(address), str(size), str(stream)
        if action == "alloc":
            return action, address, None, size, stream, ""
        if action == "oom":
            return action, "", "", size, stream, str(entry[1])
        if action == "segment_alloc":
            return action, address, size, "", stream, ""
        # A free and a segment's end are identified by the address.
        return action, address, None, None, None, ""
