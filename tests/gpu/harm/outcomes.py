"""Runs a program of the harm matrix once, and compares two runs."""

import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

from attaching import Attacher

HERE = os.path.dirname(os.path.abspath(__file__))
#: How the programs are watched. `plain` is the run without vramscope.
MODES = ("run", "watch", "attach", "on_oom", "pool")
#: Most host memory that vramscope may use, in bytes.
HOST_BYTES = 100_000_000
#: Parts of output that differ from run to run: addresses, folders, and times with processes.
VARYING = re.compile(
    r"\b0x[0-9a-f]{6,}\b|/tmp/\S+|\b([VDIWEF]\d{4}|\d{4}-\d\d-\d\d) \d\d:\d\d:\d\d[.,]?\d*( \d+)?(:\d+)?"
)


def _break_stderr():
    """Makes standard error a pipe that nothing reads."""
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(reading)
    os.close(writing)


#: What changes the process before the command starts, by program.
PREPARATIONS = {"broken_stderr": _break_stderr}
#: What the command of a program starts with. Of `vramscope run` itself, descriptor 2 would become
#: that of /dev/null.
WRAPPERS = {"closed_stderr": ["sh", "-c", 'exec "$@" 2>&-', "sh"]}


class Run:
    """One run of a program: the command, its environment, and a folder of its own."""

    def __init__(self, tool, program, mode, folder, device, limit):
        self.tool, self.program, self.mode, self.limit = tool, program, mode, limit
        self.folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        variables = {name: value for name, value in os.environ.items() if not name.startswith("VRAMSCOPE_")}
        self.environment = variables | {
            "HARM_FOLDER": folder, "HARM_MODE": mode, "HARM_DEVICE": device,
            "PYTHONPATH": os.pathsep.join([tool.package, HERE]), "PYTHONDONTWRITEBYTECODE": "1",
            # cuBLAS results are reproducible only with a workspace of fixed size.
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            # Each run compiles by itself, as a program's first one does.
            "TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "inductor"), "TORCHINDUCTOR_COMPILE_THREADS": "2",
            "TRITON_CACHE_DIR": os.path.join(folder, "triton"), "HF_HUB_OFFLINE": "1",
            # Several programs run at once.
            "OMP_NUM_THREADS": "2",
            "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0],
        }
        self.command = [*WRAPPERS.get(program, ()), sys.executable, os.path.join(HERE, "job.py"), program]
        #: Where recordings are written.
        self.record_folder = folder

    def start(self, **options):
        """Starts the program in a process group of its own."""
        command = self.command
        if self.mode == "run":
            record = os.path.join(self.record_folder, "run.vram")
            command = [self.tool.command, "run", "--listen", "127.0.0.1:0", "--record", record, *command]
        options.setdefault("preexec_fn", PREPARATIONS.get(self.program))
        out, err = (open(os.path.join(self.folder, name), "w") for name in ("stdout", "stderr"))
        with out, err:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=self.environment, cwd=self.folder,
                start_new_session=True, **options,
            )

    def outcome(self, **options):
        """Runs the program; returns what can be compared."""
        begin = time.monotonic()
        process = self.start(**options)
        attacher = None
        if self.mode == "attach":
            attacher = Attacher(self.tool.command, self.tool.package, self.folder, self.record_folder)
            attacher.start()
        stacks = ""
        try:
            code = process.wait(self.limit)
        except subprocess.TimeoutExpired:
            code, stacks = "hang", dump_stacks(process.pid, self.folder)
        kill_group(process)
        if attacher:
            attacher.stop()
        peaks = {}
        for path in sorted(glob.glob(os.path.join(self.folder, "peaks-*.json"))):
            with open(path) as file:
                peaks[os.path.basename(path)[len("peaks-"):-len(".json")]] = json.load(file)
        messages, stderr = split_messages(self.read("stderr"))
        return {
            "exit": code,
            "stdout": [cleaned(line) for line in self.read("stdout").splitlines()],
            "stderr": [cleaned(line) for line in stderr],
            "counters": {role: found["counters"] for role, found in peaks.items()},
            "host_bytes": {role: found["host_bytes"] for role, found in peaks.items()},
            "stacks": stacks,
            "messages": messages,
            "cycles": attacher.cycles if attacher else None,
            "attach_errors": attacher.errors if attacher else [],
            "events": self.count_events(attacher.recordings if attacher else None),
            "seconds": round(time.monotonic() - begin, 1),
        }

    def read(self, name):
        with open(os.path.join(self.folder, name), errors="replace") as file:
            return file.read()

    def count_events(self, recordings):
        """Returns the number of events in the run's recordings; None if there are no recordings."""
        paths = recordings if recordings is not None else glob.glob(os.path.join(self.folder, "*.vram"))
        counts = []
        for path in filter(os.path.exists, paths):
            done = subprocess.run([self.tool.command, "info", path, "--json"], capture_output=True, text=True)
            if done.returncode == 0:
                counts += [device["events"] for device in json.loads(done.stdout)["devices"]]
        return sum(counts) if counts else None


def split_messages(text):
    """Returns vramscope's messages, and the other lines of stderr."""
    lines = text.splitlines()
    is_message = [line.startswith("vramscope:") for line in lines]
    return tuple([line for line, own in zip(lines, is_message) if own == wanted] for wanted in (True, False))


def cleaned(line):
    return VARYING.sub("…", line)


def processes_of_group(group):
    """Returns the processes of a group."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file:
                if int(file.read().rpartition(")")[2].split()[2]) == group:
                    found.append(int(pid))
        except OSError:
            pass
    return found


def dump_stacks(group, folder):
    """Returns the stacks of a hung program: Python's, and what each thread waits for."""
    texts = []
    for pid in processes_of_group(group):
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            name = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
        texts.append(f"process {pid}: {name[-120:]}")
        for task in sorted(os.listdir(f"/proc/{pid}/task"), key=int):
            words = []
            for what in ("comm", "wchan", "syscall"):
                try:
                    with open(f"/proc/{pid}/task/{task}/{what}") as file:
                        words.append(file.read().strip())
                except OSError:
                    words.append("?")
            texts.append(f"  thread {task}: {' '.join(words)}")
        # The command itself has no handler, and would end.
        if "job.py" in name and " run " not in name or "multiprocessing" in name:
            os.kill(pid, signal.SIGUSR1)
    time.sleep(1)
    for path in glob.glob(os.path.join(folder, "stacks-*.txt")):
        with open(path, errors="replace") as file:
            texts.append(f"{os.path.basename(path)}:\n{file.read()}")
    return "\n".join(texts)


def kill_group(process):
    """Ends what is left of a program's process group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def first_difference(expected, found):
    """Returns the first pair of lines that differ."""
    number = next((n for n, pair in enumerate(zip(expected, found)) if pair[0] != pair[1]), None)
    number = min(len(expected), len(found)) if number is None else number
    a, b = (repr(lines[number][:240]) if number < len(lines) else "no more lines" for lines in (expected, found))
    return f"line {number + 1} is {a} without vramscope, {b} with it"


def compare(plain, again, found):
    """Returns the differences of a run from one without vramscope. Of two runs without it, what
    differs is not compared."""
    if found["exit"] == "hang":
        return [f"hangs: {' | '.join(found['stacks'].splitlines()[:40])}"]
    differences = []
    if found["exit"] != plain["exit"]:
        last = " | ".join(found["stderr"][-3:])
        differences.append(f"exit code {plain['exit']} without vramscope, {found['exit']} with it: {last[-400:]}")
    for key in ("stdout", "stderr"):
        if plain[key] == again[key] != found[key]:
            differences.append(f"{key}: {first_difference(plain[key], found[key])}")
    # Also counters that only one run has: of a process that uses CUDA only because of vramscope.
    for role, name in sorted(_counter_names(plain) | _counter_names(found)):
        value, other, own = (run["counters"].get(role, {}).get(name) for run in (plain, again, found))
        if value == other != own:
            differences.append(f"{name} of {role}: {value} without vramscope, {own} with it")
    for role, value in plain["host_bytes"].items():
        least = min(value, again["host_bytes"].get(role, value))
        grown = found["host_bytes"].get(role, 0) - least
        if grown > HOST_BYTES:
            differences.append(f"host memory of {role}: {grown / 1e6:.0f} MB more")
    return differences + found["attach_errors"][:2]


def unsteady(plain, again):
    """Returns what differs between two runs without vramscope."""
    found = [key for key in ("exit", "stdout", "stderr") if plain[key] != again[key]]
    for role, name in sorted(_counter_names(plain) | _counter_names(again)):
        if plain["counters"].get(role, {}).get(name) != again["counters"].get(role, {}).get(name):
            found.append(f"{name} of {role}")
    return found


def _counter_names(outcome):
    """Returns each counter as the process's part of the program and the name."""
    return {(role, name) for role, counters in outcome["counters"].items() for name in counters}
