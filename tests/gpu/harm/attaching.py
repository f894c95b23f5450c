"""Attaches the command to a program and detaches it, again and again."""

import os
import select
import signal
import subprocess
import threading
import time

#: Longest wait for the command to attach or to end, in seconds.
LIMIT = 30
#: How the command detaches, in turns.
DETACH_METHODS = ("Ctrl-C", "detach", "SIGKILL")


class Attacher(threading.Thread):
    """Attaches and detaches until the program ends. ``job.turn()`` waits for the phases."""

    def __init__(self, command, package, folder, record_folder):
        super().__init__(daemon=True)
        self._command = [command, "attach", "--package", package, "--no-open", "--listen", "127.0.0.1:0"]
        self._detach = [command, "detach"]
        self._folder, self._record_folder = folder, record_folder
        self._ended = threading.Event()
        #: The cycles that were completed.
        self.cycles = 0
        #: What failed while the program ran.
        self.errors = []
        self.recordings = []

    def stop(self):
        """Ends the thread after the program has ended."""
        self._ended.set()
        self.join(LIMIT)

    def run(self):
        while not self._ended.is_set():
            pid = self._target_process()
            if pid is None or not _is_running(pid):
                self._ended.wait(0.01)
                continue
            self._cycle(pid)

    def _target_process(self):
        try:
            with open(os.path.join(self._folder, "target")) as file:
                return file.read()
        except FileNotFoundError:
            return None

    def _is_at_work(self, pid):
        """Returns true if the process runs its program; at its end it also ends its recording."""
        return _is_running(pid) and not os.path.exists(os.path.join(self._folder, "ended"))

    def _end_phase(self):
        with open(os.path.join(self._folder, "phases"), "ab") as file:
            file.write(b".")

    def _turns(self):
        try:
            return os.path.getsize(os.path.join(self._folder, "turns"))
        except FileNotFoundError:
            return 0

    def _cycle(self, pid):
        method = DETACH_METHODS[self.cycles % len(DETACH_METHODS)]
        path = os.path.join(self._record_folder, f"attached{self.cycles}.vram")
        process = subprocess.Popen(
            [*self._command, "--record", path, pid], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        messages = _read_until(process, b"attached to process")
        if b"attached to process" not in messages:
            process.kill()
            process.wait()
            if self._is_at_work(pid) and not self._ended.is_set():
                self.errors.append(f"attach: {messages.decode(errors='replace').strip()[-300:] or 'no message'}")
                # Otherwise the program waits for a command that cannot attach.
                self._end_phase()
                self._ended.wait(0.2)
            return
        self.recordings.append(path)
        turns = self._turns()
        self._end_phase()
        # In every second cycle, the command detaches while the program works.
        deadline = time.monotonic() + 5
        while self.cycles % 2 == 0 and self._turns() == turns and time.monotonic() < deadline:
            if self._ended.wait(0.005):
                break
        self._detach_by(method, process, pid)
        self.cycles += 1
        self._end_phase()

    def _detach_by(self, method, process, pid):
        if method == "SIGKILL":
            process.kill()
        elif method == "detach":
            done = subprocess.run([*self._detach, pid], capture_output=True, text=True, timeout=LIMIT)
            if done.returncode != 0 and self._is_at_work(pid):
                self.errors.append(f"detach: {done.stderr.strip()[-300:]}")
        if method != "SIGKILL":
            process.send_signal(signal.SIGINT)
        try:
            _, messages = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self.errors.append(f"attach does not end within {LIMIT} s ({method})")
            return
        if method != "SIGKILL" and process.returncode != 0 and self._is_at_work(pid):
            self.errors.append(f"attach ended with {process.returncode}: {messages.decode(errors='replace')[-300:]}")


def _is_running(pid):
    """Returns true if a process exists and has not ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _read_until(process, text):
    """Reads what a process prints to stderr until it contains a text, or the process ends."""
    found = b""
    deadline = time.monotonic() + LIMIT
    while text not in found and time.monotonic() < deadline:
        if not select.select([process.stderr], [], [], 0.1)[0]:
            continue
        part = os.read(process.stderr.fileno(), 4096)
        if not part:
            break
        found += part
    return found
