"""Serves recordings with the command ``vramscope view``, in a process for each file."""

import atexit
import os
import secrets
import subprocess
import tempfile

from . import _command
from ._call_lock import CallLock
from ._messages import raise_if_of_handler

_lock = CallLock()
#: The running servers by the path of their file.
_servers = {}


class ViewError(RuntimeError):
    """A recording that cannot be shown."""


class _Server:
    """A process that serves one file until this process ends."""

    def __init__(self, path, version):
        self.version = version
        self._owner = os.getpid()
        program = _command.find_required(ViewError)
        arguments = ["view", "--no-open", "--listen", "127.0.0.1:0", "--until-stdin-closes", "--allow-host", "*"]
        # Its own token: the notebook's file contains it, and it is invalid when the process has
        # ended.
        variables = os.environ | {"VRAMSCOPE_TOKEN": secrets.token_urlsafe(16)}
        with tempfile.TemporaryFile() as messages:
            # Its own session: interrupting the kernel interrupts the kernel's process group.
            self._process = subprocess.Popen(
                [program, *arguments, "--", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=messages,
                env=variables, start_new_session=True,
            )
            try:
                line = self._process.stdout.readline().decode().strip()
                self.url = line.removeprefix("listening: ")
                if self.url == line:
                    self._process.wait()
                    messages.seek(0)
                    raise ViewError(messages.read().decode(errors="replace").strip() or f"cannot serve {path}")
            except BaseException:
                # Also an interrupt: a large snapshot is converted first.
                self.stop()
                raise
        atexit.register(self.stop)

    def is_running(self):
        return self._process.poll() is None

    def wait(self):
        """Waits until the process has ended."""
        self._process.wait()

    def stop(self):
        """Ends the process, if this process started it."""
        if os.getpid() == self._owner:
            atexit.unregister(self.stop)
            self._process.kill()
            self._process.wait()
            self._process.stdin.close()
            self._process.stdout.close()


def serve(path):
    """Serves a recording or snapshot until this process ends. Returns the server, with its ``url``.

    A file that has not changed keeps its server.
    """
    path = os.path.realpath(os.path.expanduser(os.fspath(path)))
    try:
        status = os.stat(path)
    except OSError as error:
        raise_if_of_handler(error)
        raise ViewError(f"cannot open {path}: {error.strerror}") from None
    version = (status.st_mtime_ns, status.st_size)

    def start_or_use():
        server = _servers.get(path)
        if server is None or server.version != version or not server.is_running():
            replaced, server = server, _Server(path, version)
            _servers[path] = server
            if replaced is not None:
                replaced.stop()
        return server

    return _lock.run(start_or_use)
