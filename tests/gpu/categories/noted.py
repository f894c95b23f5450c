"""Records a program with PyTorch's history, and notes what its blocks are for.

A note names a category and the address of a tensor's memory, at a number of allocations made so
far. `write` finds the request of the block that had this address then.
"""

import gzip
import json
import os
import pickle

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

#: Parts of the names of C++ functions that request scratch memory.
WORKSPACES = (
    "run_conv_plan",
    "raw_cudnn_convolution",
    "Workspace(",
    "getCUDABlasLtWorkspace",
    "getCUDABlas",
    "getCurrentCUDABlasHandle",
)
#: Python functions of DistributedDataParallel that request buckets of gradients.
DATA_PARALLEL = {"distributed.py": {"_ddp_init_helper", "_pre_forward", "_rebuild_buckets"}}
#: Python functions of FSDP that request buffers.
SHARDING = {
    "_fsdp_collectives.py": {"foreach_all_gather", "foreach_reduce", "allocate"},
    "_fsdp_param.py": {"alloc_all_gather_outputs", "init_all_gather_outputs"},
}


class Notes:
    """What a program notes about its blocks."""

    def __init__(self):
        self._notes = []
        self._older = {}
        self._first_allocation = 0

    def note(self, category, *values, is_weak=False):
        """Notes the category of tensors in nested lists, tuples and dictionaries. A weak note
        counts only if there is no other."""
        for value in values:
            value = getattr(value, "_local_tensor", value)
            if isinstance(value, torch.Tensor):
                if value.is_cuda and value.numel():
                    address = value.untyped_storage().data_ptr()
                    self._notes.append((_allocations(), address, category, is_weak))
            elif isinstance(value, dict):
                self.note(category, *value.values(), is_weak=is_weak)
            elif value is not None and not isinstance(value, (str, int, float)):
                self.note(category, *value, is_weak=is_weak)

    def model(self, model):
        """Notes a model's parameters and buffers."""
        self.note("parameter", model.parameters(), model.buffers())

    def gradients(self, parameters):
        """Notes the gradients of parameters."""
        self.note("gradient", [parameter.grad for parameter in parameters])

    def saved(self):
        """Returns a context in which tensors that autograd saves are activations."""

        def pack(tensor):
            self.note("activation", tensor, is_weak=True)
            return tensor

        return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)

    def begin(self):
        """Begins the history."""
        torch.cuda.init()
        # No tensor owns these workspaces, so nothing could be noted about older ones.
        torch._C._cuda_clearCublasWorkspaces()
        self._older = {address: hex(address) for address in _live_addresses()}
        self._first_allocation = _allocations()
        torch.cuda.memory._record_memory_history(
            enabled="all", context="all", stacks="all", max_entries=200_000
        )

    def note_steps(self):
        """Notes parameters, gradients and state at each step of PyTorch's optimizers."""

        def before(optimizer, *_):
            for group in optimizer.param_groups:
                self.note("parameter", group["params"])
                self.gradients(group["params"])

        def after(optimizer, *_):
            self.note("optimizer state", list(optimizer.state.values()))

        register_optimizer_step_pre_hook(before)
        register_optimizer_step_post_hook(after)

    def write(self, folder, name):
        """Writes the snapshot with Python frames only, and the notes by event."""
        snapshot = torch.cuda.memory._snapshot()
        trace = snapshot["device_traces"][0]
        known, weak, named = {}, {}, {}
        owners = dict(self._older)
        pending = sorted(self._notes, key=lambda note: note[0], reverse=True)

        def apply(allocations):
            while pending and pending[-1][0] <= allocations:
                _, address, category, is_weak = pending.pop()
                if address in owners:
                    (weak if is_weak else known)[owners[address]] = category

        made = self._first_allocation
        for number, entry in enumerate(trace, 1):
            if entry["action"] == "alloc":
                apply(made)
                made += 1
                owners[entry["addr"]] = number
                frames = entry.get("frames", [])
                if _has_function(frames, WORKSPACES):
                    named[number] = "workspace"
                elif _is_in(frames, DATA_PARALLEL):
                    named[number] = "communication"
                elif _is_in(frames, SHARDING):
                    # Gradients and parameters in such buffers are noted as what they are.
                    weak[number] = "communication"
        apply(float("inf"))
        categories = {"events": {}, "older": {}}
        for block, category in {**weak, **known, **named}.items():
            kind = "older" if isinstance(block, str) else "events"
            categories[kind].setdefault(category, []).append(block)
        with open(os.path.join(folder, f"{name}.json"), "w") as file:
            json.dump(categories, file)
        _keep_python_frames(trace)
        for segment in snapshot["segments"]:
            _keep_python_frames([segment, *segment["blocks"]])
        with gzip.open(os.path.join(folder, f"{name}.pickle.gz"), "wb") as file:
            pickle.dump(snapshot, file, protocol=4)
        print(f"{name}: {len(trace)} events, {len({**weak, **known, **named})} noted", flush=True)


def _allocations():
    return torch.cuda.memory_stats()["allocation.all.allocated"]


def _live_addresses():
    for segment in torch.cuda.memory._snapshot()["segments"]:
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"].startswith("active"):
                yield address
            address += block["size"]


def _is_python(frame):
    return frame["filename"].endswith(".py") or frame["filename"].startswith("<")


def _has_function(frames, parts):
    return any(part in frame["name"] for frame in frames for part in parts)


def _is_in(frames, functions):
    """Returns True if a frame is in one of the functions, by file name."""
    return any(
        frame["name"] in functions.get(os.path.basename(frame["filename"]), ()) for frame in frames
    )


def _keep_python_frames(entries):
    for entry in entries:
        entry["frames"] = [frame for frame in entry.get("frames", []) if _is_python(frame)]
