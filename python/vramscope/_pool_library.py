"""Loads the library with vramscope's pool: the package's own, which has its C functions, too."""

import ctypes
import json
import os

from . import _native
from ._messages import raise_if_of_handler

#: Environment variable with the path of another library with the pool.
LIBRARY_VARIABLE = "VRAMSCOPE_POOL_LIBRARY"
#: Bytes for an error message or the page's address.
TEXT_BYTES = 1 << 12

_OOM_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
#: Arguments and result of each function.
_FUNCTIONS = {
    "vramscope_after_fork": ([], None),
    "vramscope_attach_out_of_memory_observer": ([_OOM_CALLBACK], None),
    "vramscope_close": ([], ctypes.c_int),
    "vramscope_complete_allocator": ([ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t], ctypes.c_int),
    "vramscope_configure": ([ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t], ctypes.c_int),
    "vramscope_empty_cache": ([], None),
    "vramscope_free_bytes": ([ctypes.c_void_p, ctypes.c_size_t], None),
    "vramscope_mark": ([ctypes.c_char_p], None),
    "vramscope_mark_stage": ([ctypes.c_char_p, ctypes.c_int], None),
    "vramscope_memory_fraction": ([ctypes.c_int], ctypes.c_double),
    "vramscope_memory_stats_json": ([ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t], ctypes.c_size_t),
    "vramscope_reset_stats": ([ctypes.c_int, ctypes.c_int], None),
    "vramscope_save": ([ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t], ctypes.c_int),
    "vramscope_scope_begin": ([ctypes.c_char_p, ctypes.c_char_p], None),
    "vramscope_scope_end": ([], None),
    "vramscope_set_recording": ([ctypes.c_int], None),
    "vramscope_snapshot": ([ctypes.c_int, ctypes.POINTER(ctypes.c_void_p)], ctypes.c_ssize_t),
    "vramscope_start": (
        [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t],
        ctypes.c_int,
    ),
    "vramscope_stop": ([], ctypes.c_int),
}


class PoolError(RuntimeError):
    """PyTorch cannot be put on vramscope's pool, or the pool cannot do what was asked."""


def find_library():
    """Returns the library's path: that of the environment variable, or else of this package's."""
    return os.path.abspath(os.environ.get(LIBRARY_VARIABLE) or _native.__file__)


class PoolLibrary:
    """The library's functions, with Python's types."""

    def __init__(self, path):
        self.path = path
        try:
            self._library = ctypes.CDLL(path)
            for name, (arguments, result) in _FUNCTIONS.items():
                function = getattr(self._library, name)
                function.argtypes, function.restype = arguments, result
        except OSError as error:
            raise_if_of_handler(error)
            raise PoolError(f"cannot load {path}: {error}") from None
        except AttributeError as error:
            raise PoolError(f"{path} is of another version of vramscope: {error}") from None
        #: Callbacks of observers, which must exist as long as the library.
        self._callbacks = []

    def address(self, name):
        """Returns the address of a function."""
        return ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value

    def after_fork(self):
        """Prepares the library for a forked child."""
        self._library.vramscope_after_fork()

    def configure(self, conf):
        """Chooses the settings; raises ``ValueError`` with the place of a mistake."""
        status, reason = self._call_with_text("vramscope_configure", _bytes(conf))
        if status:
            # The environment's variable is named in the reason.
            raise ValueError(f"conf: {reason}" if conf is not None else reason)

    def complete_allocator(self, minor):
        """Supplies what PyTorch's class lacks; returns why that is not possible, or ""."""
        return self._call_with_text("vramscope_complete_allocator", minor)[1]

    def memory_stats(self, device):
        """Returns the counters of a device, by PyTorch's names."""
        function = self._library.vramscope_memory_stats_json
        length = function(device, None, 0)
        # Counters may have more digits in the second call.
        capacity = length + 4096
        text = ctypes.create_string_buffer(capacity)
        function(device, text, capacity)
        return json.loads(text.value or b"{}")

    def reset_peaks(self, device):
        """Sets the peaks of a device's counters to the current values."""
        self._library.vramscope_reset_stats(device, 0)

    def reset_totals(self, device):
        """Sets the totals of a device's counters to 0."""
        self._library.vramscope_reset_stats(device, 1)

    def memory_fraction(self, device):
        """Returns the share of a device's memory that the pool may reserve."""
        return self._library.vramscope_memory_fraction(device)

    def empty_cache(self):
        """Releases the cached segments of all devices."""
        self._library.vramscope_empty_cache()

    def snapshot(self, with_history):
        """Returns a snapshot in PyTorch's format, as a pickle."""
        pointer = ctypes.c_void_p()
        length = self._library.vramscope_snapshot(int(with_history), ctypes.byref(pointer))
        try:
            content = ctypes.string_at(pointer, abs(length))
        finally:
            self._library.vramscope_free_bytes(pointer, abs(length))
        if length < 0:
            raise PoolError(f"no snapshot can be taken: {content.decode()}")
        return content

    def attach_out_of_memory_observer(self, observer):
        """Calls ``observer(device, requested, total, free)`` at every out-of-memory."""
        callback = _OOM_CALLBACK(observer)
        self._callbacks.append(callback)
        self._library.vramscope_attach_out_of_memory_observer(callback)

    def start(self, listen, record):
        """Starts a recording. Returns True, and False if one is in progress, with the address of
        the page; raises ``PoolError`` if it cannot be started."""
        status, text = self._call_with_text("vramscope_start", _bytes(listen), _bytes(record))
        if status == 1:
            raise PoolError(text)
        return status == 0, text or None

    def mark(self, name, stage=None):
        """Records a mark, or with ``stage`` the ``"begin"`` or ``"end"`` of a span."""
        stages = {None: 0, "begin": 1, "end": 2}
        self._library.vramscope_mark_stage(_bytes(name), stages[stage])

    def begin_scope(self, name, category=None):
        """Begins a scope on this thread."""
        self._library.vramscope_scope_begin(_bytes(name), _bytes(category))

    def end_scope(self):
        """Ends the innermost scope of this thread."""
        self._library.vramscope_scope_end()

    def set_recording(self, enabled):
        """Pauses or resumes the recording."""
        self._library.vramscope_set_recording(int(enabled))

    def save(self, path):
        """Writes the newest part of the recording to a file."""
        status, reason = self._call_with_text("vramscope_save", os.fsencode(path))
        if status:
            raise PoolError(f"{os.fspath(path)}: {reason}")

    def stop(self):
        """Ends the recording; returns False if its file is incomplete."""
        return self._library.vramscope_stop() == 0

    def close(self):
        """Ends the recording and its page; returns False if its file is incomplete."""
        return self._library.vramscope_close() == 0

    def _call_with_text(self, name, *arguments):
        """Calls a function that returns a text through its last arguments; returns both results."""
        text = ctypes.create_string_buffer(TEXT_BYTES)
        status = getattr(self._library, name)(*arguments, text, TEXT_BYTES)
        return status, text.value.decode(errors="replace")


def _bytes(text):
    """Returns a text as C expects it; None for None."""
    if text is None:
        return None
    # A path may have bytes that are not Unicode.
    return os.fsencode(text)
