"""One page for the ranks of a job on a machine, where no ``vramscope run`` started them.

Local rank 0 starts a server (``vramscope run`` with an empty program) and gives its address to the
other ranks through a Unix socket, whose name is derived from the job. Each rank also gets the
writing end of the server's standard input: the server ends when the last rank has.
"""

import atexit
import contextlib
import hashlib
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time

from . import _command, _watch
from ._messages import print_message, raise_if_of_handler

#: How long a rank waits for local rank 0 of its machine, in seconds.
JOIN_TIMEOUT = 10.0
#: How long local rank 0 waits for the server to start, in seconds.
START_TIMEOUT = 30.0
#: How long local rank 0 waits at its end for the server, in seconds. The server continues then.
STOP_TIMEOUT = 10.0
#: The longest address of a server.
MAX_URL_BYTES = 4096
#: Environment variables with the number of ranks, the rank, and the rank on the machine: of
#: torchrun, Slurm and Open MPI.
VARIABLES = (
    ("WORLD_SIZE", "RANK", "LOCAL_RANK"),
    ("SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
)
#: What the server runs: it prints the address to push to, and ends with its standard input.
SERVER_PROGRAM = 'echo "$VRAMSCOPE_PUSH"; exec cat'

#: The server, or the connection to local rank 0, of this process.
_shared = None


class Rank:
    """A process of a job: its rank, its rank on the machine, and the job's name."""

    def __init__(self, rank, local_rank, job):
        self.rank, self.local_rank, self.job = rank, local_rank, job


def rank_of_process(environment=os.environ):
    """Returns the ``Rank`` of this process; None if it is not one of several."""

    def number(name):
        text = environment.get(name, "").strip()
        return int(text) if text.isdigit() else None

    found = [tuple(map(number, names)) for names in VARIABLES]
    if number("NODE_RANK") == 0:
        # Lightning's own launcher sets no RANK.
        found.append((number("WORLD_SIZE"), number("LOCAL_RANK"), number("LOCAL_RANK")))
    for size, rank, local_rank in found:
        if None not in (size, rank, local_rank):
            return Rank(rank, local_rank, _job(environment)) if size > 1 else None
    return None


def watch(listen=None, record=None, stacks="python"):
    """Starts a session as ``vramscope.watch`` does, or returns the one in progress.

    The ranks of a job share a page on each machine. ``{rank}`` in ``record`` stands for the rank:
    each rank then writes a file of its own. Without it, the page's server writes one for all.
    """
    rank = rank_of_process()
    path = os.fspath(record) if record is not None else os.environ.get("VRAMSCOPE_RECORD") or None
    has_own_file = path is not None and "{rank}" in path
    if has_own_file:
        path = path.replace("{rank}", str(rank.rank if rank else 0))
    if rank is None:
        return _watch.watch(listen, path, stacks)
    if _watch._current is not None:
        # VRAMSCOPE_RECORD was that session's.
        own = path if has_own_file else _file_of(rank, path)
        return _watch.watch(listen, own if record is not None else None, stacks)
    os.environ.pop("VRAMSCOPE_RECORD", None)
    if _shared is not None or not os.environ.get("VRAMSCOPE_PUSH"):
        try:
            os.environ["VRAMSCOPE_PUSH"] = _join(rank, listen, None if has_own_file else path)
        except OSError as error:
            raise_if_of_handler(error)
            print_message(f"rank {rank.rank} has a page of its own: {error}")
        else:
            # Only the server listens.
            os.environ.pop("VRAMSCOPE_LISTEN", None)
            return _watch.watch(None, path if has_own_file else None, stacks)
    # Without a server of their own, the ranks have no file in common.
    return _watch.watch(listen, path if has_own_file else _file_of(rank, path), stacks)


def _file_of(rank, path):
    """Returns the name of a rank's own file: ``run-rank3.vram`` for ``run.vram``."""
    if path is None:
        return None
    stem, extension = os.path.splitext(path)
    return f"{stem}-rank{rank.rank}{extension}"


def _job(environment):
    """Returns a text that only the ranks of one job on this machine have in common."""
    if environment.get("MASTER_PORT"):
        return f"{environment.get('MASTER_ADDR')}:{environment['MASTER_PORT']}"
    if environment.get("SLURM_JOB_ID"):
        return f"slurm {environment['SLURM_JOB_ID']}.{environment.get('SLURM_STEP_ID')}"
    return f"children of {os.getppid()}"


def _join(rank, listen, record):
    """Returns the address to push to: of the server that local rank 0 starts."""
    global _shared
    if _shared is None:
        digest = hashlib.sha256(rank.job.encode()).hexdigest()[:32]
        # A name in Linux's abstract namespace: it ends with the process.
        name = f"\0vramscope-{os.getuid()}-{digest}"
        if rank.local_rank == 0:
            listen = listen or os.environ.get("VRAMSCOPE_LISTEN") or _watch.DEFAULT_LISTEN
            # Local rank 0 of another machine may write to the same folder.
            _shared = _Server(name, listen, record if rank.rank == 0 else _file_of(rank, record))
        else:
            _shared = _Connection(name)
    return _shared.url


def _user(connection):
    """Returns the id of the user of the process at the other end."""
    size = struct.calcsize("iII")
    return struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[1]


def _is_own_user(connection):
    """Returns True if the process at the other end is of the same user."""
    return _user(connection) == os.getuid()


def _is_held_by_another_user(name):
    """Returns True if a process of another user listens at a socket: any user can take any name."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(1)
        try:
            connection.connect(name)
            return not _is_own_user(connection)
        except OSError as error:
            raise_if_of_handler(error)
            return False


class _Connection:
    """What a rank got from local rank 0: the address, and a file that keeps the server running."""

    def __init__(self, name):
        end = time.monotonic() + JOIN_TIMEOUT
        while True:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(JOIN_TIMEOUT)
                try:
                    connection.connect(name)
                except OSError as error:
                    raise_if_of_handler(error)
                else:
                    self._receive(connection)
                    return
            if time.monotonic() > end:
                raise OSError("local rank 0 serves no page")
            time.sleep(0.05)

    def _receive(self, connection):
        if not _is_own_user(connection):
            raise OSError(f"the user with id {_user(connection)} listens in place of local rank 0")
        message, files, _, _ = socket.recv_fds(connection, MAX_URL_BYTES, 1)
        if not message or not files:
            raise OSError("local rank 0 cannot serve the page")
        self.url = message.decode()
        self._keep_alive = files[0]
        os.set_inheritable(self._keep_alive, False)
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self):
        """Closes the file in a forked child, once: its children may use the number for another."""
        if self._keep_alive is not None:
            os.close(self._keep_alive)
            self._keep_alive = None


class _Server:
    """The page's server, a child of local rank 0, and the socket that gives its address."""

    def __init__(self, name, listen, record):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._bind(name)
        try:
            self._process, self.url = self._start(listen, record)
        except BaseException:
            # Also what a signal handler raises.
            self._socket.close()
            raise
        # A forked child must keep neither the name nor the server.
        os.register_at_fork(after_in_child=self._forget)
        threading.Thread(target=self._accept, name="vramscope-ranks", daemon=True).start()
        # Before a session is started, so that the session ends first.
        atexit.register(self._stop)

    def _bind(self, name):
        """Takes the name; a process that was restarted may have to wait for the one before."""
        end = time.monotonic() + JOIN_TIMEOUT / 2
        while True:
            try:
                self._socket.bind(name)
                break
            except OSError as error:
                raise_if_of_handler(error)
                if _is_held_by_another_user(name):
                    self._socket.close()
                    raise OSError("another user has taken the name of this job's socket") from None
                if time.monotonic() > end:
                    self._socket.close()
                    raise OSError("another job on this machine has the same address and port") from None
                time.sleep(0.05)
        self._socket.listen(256)

    @staticmethod
    def _start(listen, record):
        """Starts the server. Returns its process and the address to push to."""
        arguments = [_program(), "run", "--no-open", "--listen", listen]
        if record is not None:
            arguments += ["--record", record]
        # A session of its own: Ctrl-C ends the ranks first.
        process = subprocess.Popen(
            [*arguments, "sh", "-c", SERVER_PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN)
        if not poll.poll(START_TIMEOUT * 1000):
            process.kill()
            process.wait()
            raise OSError("the page's server does not start")
        url = process.stdout.readline().decode().strip()
        if not url:
            raise OSError(f"the page's server ended with status {process.wait()}")
        return process, url

    def _accept(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            if not _is_own_user(connection):
                connection.close()
                continue
            # A closed file: this rank has ended.
            with contextlib.suppress(OSError, ValueError), connection:
                socket.send_fds(connection, [self.url.encode()], [self._process.stdin.fileno()])

    def _forget(self):
        """Leaves the server to the parent, in a forked child."""
        atexit.unregister(self._stop)
        for file in self._socket, self._process.stdin, self._process.stdout:
            file.close()

    def _stop(self):
        """Waits until the other ranks have ended, and the server with them."""
        self._process.stdin.close()
        # Other ranks may wait for this one if it failed; its launcher then has to notice that.
        if getattr(sys, "last_value", None) is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT)


def _program():
    """Returns the path of the command ``vramscope``."""
    path = _command.find()
    if path is None:
        raise OSError("the command vramscope is not installed beside the package")
    return path
