"""Reads the devices and the state of PyTorch's allocator."""

import pickle

from ._messages import raise_if_of_handler
from ._native import PAUSE_FACTOR, PINNED_SNAPSHOT_POOL, begin_snapshot, end_snapshot


def device_list(torch):
    """Returns number, name and bytes of each device that the process can use."""
    devices = []
    for device in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(device)
        devices.append((device, properties.name, properties.total_memory))
    return devices


def take_snapshot(torch):
    """Returns the state of PyTorch's allocator as a pickle, without its history."""
    return pickled(snapshot_state(torch))


def snapshot_state(torch):
    """Returns the state of PyTorch's allocator, without its history."""
    snapshot = torch._C._cuda_memorySnapshot
    # From 2.11 on the history can be left out; before 2.7 there is no argument.
    for arguments in ((0, 0, False),), (None,), ():
        try:
            # The tracker tells it from the program's snapshots.
            begin_snapshot()
            return _without_history(snapshot(*arguments))
        except TypeError as error:
            raise_if_of_handler(error)
        finally:
            end_snapshot()
    raise RuntimeError("this version of PyTorch takes no snapshots")


def take_pinned_snapshot(torch):
    """Returns the segments of pinned host memory, and a pickle of them. PyTorch has this from 2.14
    on."""
    state = torch._C._cuda_memorySnapshot((*PINNED_SNAPSHOT_POOL, False))
    return state["host_segments"], pickled({**_without_history(state), "segments": []})


def pickled(state):
    """Returns a snapshot as a pickle, which the library reads."""
    return pickle.dumps(state, protocol=4)


def _without_history(state):
    for history in ("device_traces", "host_traces"):
        state.pop(history, None)
    return state
