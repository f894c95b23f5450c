"""Follows PyTorch's allocator: what of it only Python can do.

The allocator can be followed once PyTorch has initialized CUDA, which the program does at a time of
its choosing. A thread then checks what the tracker sees, takes snapshots when the library asks for
one, and names the program's modules.
"""

import sys
import threading
import time

from . import _dynamo, _interpreter, _metadata, _native, _regions, _spans
from ._call_lock import BusyError, CallLock
from ._cuda_start import call_when_initialized, forget
from ._imports import call_after_import, forget_import
from ._labels import Labels
from ._messages import print_message, raise_if_of_handler
from ._modules import names_in
from ._phases import PhaseSpans
from ._pinned_memory import PinnedMemory
from ._polling import Polling
from ._snapshot import device_list, take_snapshot
from ._tracker_check import TrackerCheck

#: Minor versions of PyTorch 2 whose layouts the library knows.
SUPPORTED_MINORS = range(6, 16)
#: How long the thread waits for a device to be used, and for events to check, in seconds.
CONTEXT_INTERVAL = 0.02
#: What a recording lacks if autograd's operations cannot be read.
NO_BACKWARD_STACKS = "the backward pass has no call stacks"
#: The longest wait for the recording's beginning in another thread, in seconds.
BEGIN_TIMEOUT = 5.0
#: How long the thread waits for a request of the library, in seconds.
REQUEST_INTERVAL = 0.2


#: Why nothing is recorded in a forked child.
FORKED = "this process was forked after CUDA was used, so CUDA does not work in it"


def is_forked_from_cuda():
    """Returns True if this process was forked after PyTorch had used CUDA."""
    check = getattr(getattr(sys.modules.get("torch"), "_C", None), "_cuda_isInBadFork", None)
    return check is not None and check()


class Following:
    """Follows the allocator for a session, in the background."""

    def __init__(self, session, stacks):
        self._session = session
        #: The call stacks that the program asked for.
        self.stacks = stacks
        #: False if call stacks cannot be read.
        self._has_interpreter = True
        #: True once the tracker has been attached.
        self.is_attached = False
        self.labels = Labels(session)
        self._phases = PhaseSpans(session)
        self._stopped = threading.Event()
        self._thread = None
        #: Set if snapshots are recorded instead of events.
        self._polling = None
        #: Reads autograd's operations; None if they cannot be read.
        self._autograd = None
        self._has_unnamed_modules = False
        #: True once steps, spans and categories are recorded.
        self._takes_notes = False
        #: True while events wait for the first use of a device.
        self._is_waiting = False
        self._check = TrackerCheck(session)
        #: Held while the recording begins.
        self._beginning = CallLock()
        self.status = "waiting"

    def start(self):
        """Starts as soon as PyTorch is imported and has initialized CUDA."""
        call_after_import("torch", self._torch_is_imported)

    def stop(self):
        """Stops to follow. Waits for the thread, unless this is that thread. Raises ``BusyError``
        in a signal handler that has interrupted the beginning of the recording."""
        self._beginning.check()
        self._begin_late()
        self._stopped.set()
        self._remove_hooks()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            try:
                thread.join(timeout=5)
            except RuntimeError as error:
                raise_if_of_handler(error)
                # A signal handler has interrupted the start of the thread.
            # The thread may have added hooks meanwhile.
            self._remove_hooks()

    def abandon(self):
        """Ends, in a forked child, what belongs to its parent, without a thread or a lock of it."""
        self._stopped = threading.Event()
        self._stopped.set()
        self._thread = None
        self._is_waiting = False
        self._remove_hooks()

    def _remove_hooks(self):
        # Both would keep the session until the program imports PyTorch and initializes CUDA.
        forget_import(self._torch_is_imported)
        forget("session", self._cuda_is_initialized)
        self.labels.remove()
        self._phases.remove()
        _spans.remove()
        _metadata.remove()
        _regions.remove()

    def annotate(self, model, optimizer=None):
        """Labels a model's blocks, names its modules, and records its passes as spans."""
        _native.name_modules(names_in(model))
        self.labels.annotate(model, optimizer)
        self._phases.add(model)

    def pause(self):
        """Stops to record until ``resume``. The tracker returns at once meanwhile."""
        self._beginning.run(lambda: self._session.set_mode("off"))

    def resume(self):
        """Continues to record, from the allocator's state now on."""

        def continue_from_state():
            self._session.set_mode(self._mode())
            self._record_snapshot(sys.modules["torch"])

        self._beginning.run(continue_from_state)

    def change_stacks(self, stacks):
        """Records other call stacks from now on: ``"python"``, ``"all"`` or None."""
        self.stacks = stacks
        self.labels.labels_gradients = self._with_stacks
        if self.is_attached:
            self._session.set_mode(self._mode())

    @property
    def _with_stacks(self):
        return self.stacks is not None and self._has_interpreter

    def _mode(self):
        """Returns what the tracker does while it records."""
        if not self._with_stacks:
            return "events"
        return "all stacks" if self.stacks == "all" else "stacks"

    def begin_at_failure(self, device, segment_bytes):
        """Begins the recording of a program that runs out of memory before the thread has noticed
        its first use of a device. The recording ends with the failure, and the tracker is checked
        by it: the failure must have been reported. Where snapshots are recorded instead of events,
        the recording ends with one of now."""

        def begin():
            if self._polling is not None and not self._stopped.is_set():
                self._record_polled()
            is_followed = self.is_attached and self._polling is None and not self._stopped.is_set()
            if is_followed and not self._check.has_passed:
                self._session.check_failure(device, segment_bytes)
            if is_followed and self._is_waiting:
                self._begin()

        self._beginning.run(begin, BEGIN_TIMEOUT)

    def _record_polled(self):
        try:
            self._polling.record(BEGIN_TIMEOUT)
        except BusyError as error:
            print_message(f"the recording ends before the failure: {error}")

    def record_now(self):
        """Records the events that still wait for the check of the tracker."""
        self._end_waiting(lambda: None)

    def _begin_late(self):
        """Begins the recording of a program that ended before the thread noticed its first use of a
        device, or that used none."""
        self._end_waiting(self._session.begin)

    def _end_waiting(self, begin_unchecked):
        """Begins the recording and checks the tracker now, if it was not done before. Calls
        ``begin_unchecked`` if there is nothing to check."""
        if not self.is_attached or (self._check.has_passed and not self._is_waiting):
            return
        # Not a failure: the interrupted call begins the recording.
        self._beginning.check()

        def begin():
            if not self._stopped.is_set() and self._polling is None:
                self._try_begin(sys.modules["torch"], is_paced=False)
                if self._is_waiting:
                    begin_unchecked()

        try:
            self._beginning.run(begin, BEGIN_TIMEOUT)
        except BusyError as error:
            # Not a failure to follow: the other thread follows still.
            print_message(f"the events that wait for the check of the tracker are not written: {error}")
        except Exception as error:
            raise_if_of_handler(error)
            self._fail(error)

    def _torch_is_imported(self, torch):
        try:
            self._beginning.run(lambda: self._prepare(torch))
            # Not in `run`: another thread may initialize CUDA, and this one then waits for it.
            if not self._stopped.is_set():
                call_when_initialized(torch.cuda, "session", self._cuda_is_initialized)
                if self._stopped.is_set():
                    # Another thread has stopped the session meanwhile.
                    forget("session", self._cuda_is_initialized)
        except BusyError as error:
            print_message(f"nothing is recorded: {error}")
            self._turn_off(error)

    def _cuda_is_initialized(self):
        try:
            self._beginning.run(self._follow_cuda)
        except BusyError as error:
            # A signal handler has interrupted another step of the start.
            print_message(f"nothing is recorded: {error}")

    def _prepare(self, torch):
        if self._stopped.is_set():
            return
        if is_forked_from_cuda():
            print_message(f"nothing is recorded: {FORKED}")
            self._turn_off(FORKED)
            return
        self._try("torch.compile may compile functions of vramscope", _dynamo.skip_package)
        self._try("texts of the program are not recorded", lambda: _metadata.install(torch, self._session))
        self._try("spans are not recorded", lambda: _spans.install(torch, self._session))

    @staticmethod
    def _try(consequence, step):
        """Does a step that may fail with another version of PyTorch. Events are recorded still."""
        try:
            step()
        except Exception as error:
            raise_if_of_handler(error)
            print_message(f"{consequence}: {error!r}")

    def _follow_cuda(self):
        if self._stopped.is_set() or self._thread is not None:
            return
        try:
            self._attach()
        except Exception as error:  # The program must not notice.
            # PyTorch raises it as an error of the initialization, and tries that again later.
            raise_if_of_handler(error)
            self._fail(error)

    def _fail(self, error):
        """Gives up to follow the allocator: records snapshots instead, if nothing has been recorded
        and the allocator has snapshots."""
        torch = sys.modules["torch"]
        consequence = ""
        self._is_waiting = False
        try:
            # A recording with events would change its meaning.
            if self._polling is None and not self._check.has_passed:
                self._polling = Polling(self._session, torch, error)
                self.status = f"polling: {error}"
                consequence = "; recording snapshots instead, without call stacks"
        except Exception as polling_error:
            raise_if_of_handler(polling_error)
        print_message(f"cannot follow PyTorch's allocator: {error}{consequence}")
        if self._polling is None:
            self._turn_off(error)
            return
        self._take_notes()
        if self._thread is None:
            self._start_thread()

    def _turn_off(self, reason):
        self.status = f"off: {reason}"
        self._stopped.set()
        _spans.remove()

    def _start_thread(self):
        self._thread = threading.Thread(target=self._run, name="vramscope", daemon=True)
        self._thread.start()

    def _attach(self):
        import torch

        # A signal handler may have interrupted an earlier call.
        if self.status == "waiting" and not self._is_waiting:
            if self.is_attached:
                self._session.prepare_snapshot()
            else:
                self._attach_tracker(torch)
            self._session.start(take_snapshot(torch))
            self._is_waiting = True
        # Already now: the first step may begin before the first use of a device is noticed.
        self._take_notes()
        self._try_begin(torch)
        self._start_thread()

    def _attach_tracker(self, torch):
        minor = torch_minor(torch.__version__)
        devices = device_list(torch)
        # Without stacks, too: a later session of this process may want them.
        interpreter = self._checked(lambda: _interpreter.checked(torch), "no call stacks")
        self._autograd = self._checked(lambda: _native.Autograd(minor), NO_BACKWARD_STACKS)
        self._has_interpreter = interpreter is not None
        self._session.attach(minor, devices, self._mode(), interpreter, self._autograd)
        self.is_attached = True

    def _checked(self, check, consequence):
        """Returns what ``check`` returns; None, and a message if stacks are wanted, if it fails."""
        try:
            return check()
        except RuntimeError as error:
            raise_if_of_handler(error)
            if self._with_stacks:
                print_message(f"{consequence}: {error}")
            return None

    def _try_begin(self, torch, is_paced=True):
        """Checks the tracker, and begins the recording once a device is in use."""
        devices = range(torch.cuda.device_count())
        is_used = not self._is_waiting or any(torch._C._cuda_hasPrimaryContext(device) for device in devices)
        if is_used and self._check.run(torch, not self._is_waiting, is_paced) and self._is_waiting:
            self._begin()

    def _begin(self):
        self._session.begin()
        self._is_waiting = False
        self.status = "live"

    def _take_notes(self):
        """Begins to note steps, spans and categories. The library keeps notes until the recording
        begins."""
        if self._takes_notes:
            return
        _spans.begin()
        self._phases.install()
        # Gradients are new at every step: without stacks, a step shall cost next to nothing.
        self.labels.labels_gradients = self._with_stacks
        self.labels.install()
        self._takes_notes = True

    def _run(self):
        try:
            if self._polling is None:
                self._serve_requests()
        except Exception as error:
            if not self._stopped.is_set():
                self._fail(error)
        if self._polling is not None:
            self._poll()

    def _poll(self):
        try:
            self._polling.run(self._stopped)
        except Exception as error:
            self.status = f"off: {error}"
            print_message(f"cannot record snapshots: {error}")

    def _serve_requests(self):
        import torch

        pinned_memory = PinnedMemory(self._session, torch)
        self._check_autograd(_interpreter.check_operations, torch)
        while not self._stopped.is_set():
            if self._is_waiting or not self._check.has_passed:
                self._beginning.run(lambda: self._try_begin(torch))
            if self._is_waiting:
                self._stopped.wait(CONTEXT_INTERVAL)
                continue
            if self._with_stacks:
                _regions.install(self._session)
            pinned_memory.record_changes()
            interval = REQUEST_INTERVAL if self._check.has_passed else CONTEXT_INTERVAL
            request = self._session.next_request(interval)
            if self._stopped.is_set():
                return
            if request == "snapshot":
                # Not while another thread checks the tracker by the events after a snapshot.
                self._beginning.run(lambda: self._record_snapshot(torch))
            elif request == "modules" and _native.begin_module_search():
                self._name_modules(torch)
            elif request == "backward":
                self._check_autograd(_interpreter.check_backward, torch)

    def _record_snapshot(self, torch):
        """Continues to record from the allocator's state now."""
        self._session.prepare_snapshot()
        self._session.record(take_snapshot(torch))

    def _check_autograd(self, check, torch):
        """Checks how autograd's operations are read. Without that, requests of the backward pass
        have no call stacks of the forward pass."""
        if self._autograd is not None:
            passed = self._checked(lambda: check(torch, self._autograd) is None, NO_BACKWARD_STACKS)
            self._session.trust_operations(passed is not None)

    def _name_modules(self, torch):
        start = time.monotonic()
        try:
            roots = _native.name_all_modules(torch.nn.Module)
            if self.labels.is_installed:
                self.labels.label_inputs_of(roots)
        except Exception as error:
            # A program's module may do anything when it is asked. The recording goes on.
            if not self._has_unnamed_modules:
                self._has_unnamed_modules = True
                print_message(f"some modules have no name: {error!r}")
        finally:
            _native.end_module_search(time.monotonic() - start)


def torch_minor(version):
    """Returns the minor version of PyTorch 2: 11 for ``2.11.0+cu130``."""
    major, minor = version.split(".")[:2]
    if major != "2" or int(minor) not in SUPPORTED_MINORS:
        raise RuntimeError(f"PyTorch {version} is not supported: use 2.6 to 2.15")
    return int(minor)
