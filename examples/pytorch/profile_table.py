"""Compares vramscope's memory by operation with that of PyTorch's profiler, for the same steps.

    profile_table.py DIR [--vramscope COMMAND]

Trains a small GPT on a GPU. Both tools follow three steps; vramscope records C++ call stacks, so
that its operations have the names of PyTorch's dispatcher. Prints how many bytes each operation
allocated according to both, and writes DIR/profile_table.json and DIR/profile_table.vram. The exit
status is 1 if any operation differs.

Compared is what both count: allocations, with the sizes of their blocks. The profiler's own figure,
`self_device_memory_usage`, subtracts the blocks that were freed while the operation ran, whichever
operation had allocated them. It is printed as `self`, and computed here from the profiler's events.
"""

import argparse
import json
import re
import sys
import time
from collections import Counter
from pathlib import Path

import torch
from _models import Gpt, GptConfig, gpt_loss, token_batch
from _vramscope import add_command_option, table
from torch.profiler import ProfilerActivity
from torch.profiler._utils import traverse_dfs

CONFIG = GptConfig(layers=4)
BATCH = 8
# vramscope prepares C++ stacks during a thread's first requests: the warm-up lasts longer.
WARM_UP_STEPS, WARM_UP_PAUSE_S = 5, 0.1
PROFILED_STEPS = 3
# Where both tools have requests outside of all operations, such as those of the optimizer's code.
OUTSIDE = "outside of operations"
# A node of the backward pass: `MmBackward0`.
NODE = re.compile(r"\w+Backward\d+")


class Training:
    def __init__(self, device):
        self.device = device
        self.model = Gpt(CONFIG).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)

    def step(self, number):
        loss = gpt_loss(self.model, token_batch(CONFIG, BATCH, number).to(self.device))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def warm_up(training):
    for number in range(WARM_UP_STEPS):
        training.step(number)
        time.sleep(WARM_UP_PAUSE_S)


def profile(training):
    """Returns the profiler of some steps."""
    activities = [ProfilerActivity.CPU]
    if training.device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with torch.profiler.profile(
        activities=activities, profile_memory=True, acc_events=True
    ) as profiler:
        for number in range(PROFILED_STEPS):
            training.step(WARM_UP_STEPS + number)
        if training.device == "cuda":
            torch.cuda.synchronize()
    return profiler


def operation(name):
    """Returns the name under which both tools' figures are compared."""
    name = name.removeprefix("autograd::engine::evaluate_function: ")
    return name if name.startswith("aten::") or NODE.fullmatch(name) else OUTSIDE


class ProfiledMemory:
    """Memory by operation, from the single events of the profiler.

    An event belongs to the innermost operation that its thread runs.
    """

    def __init__(self, profiler, device):
        self.allocated, self.allocations, self.freed = Counter(), Counter(), Counter()
        # Allocated without freed bytes, by the profiler's own names.
        self.net = Counter()
        for event in traverse_dfs(profiler.profiler.kineto_results.experimental_event_tree()):
            if event.tag == torch._C._profiler._EventType.Allocation:
                fields = event.extra_fields
                if fields.device.type == device:
                    self._add(event, fields.alloc_size)

    def _add(self, event, size):
        parent = event.parent
        while parent is not None and parent.tag != torch._C._profiler._EventType.TorchOp:
            parent = parent.parent
        name = parent.name if parent else ""
        self.net[name] += size
        if size > 0:
            self.allocated[operation(name)] += size
            self.allocations[operation(name)] += 1
        else:
            self.freed[operation(name)] -= size

    def differences_of_net(self, profiler, device):
        """Returns the operations whose net bytes are others than `self_device_memory_usage`."""
        key = "self_cpu_memory_usage" if device == "cpu" else "self_device_memory_usage"
        averages = {it.key: getattr(it, key) for it in profiler.key_averages()}
        # What happens outside of operations is assigned differently: to `[memory]`, for example.
        names = {name for name in (*averages, *self.net) if operation(name) != OUTSIDE}
        return sorted(name for name in names if averages.get(name, 0) != self.net[name])


class RecordedMemory:
    """Memory by operation in a recording, without what an earlier recording of it has."""

    def __init__(self, before, recording, command):
        self.allocated, self.allocations = Counter(), Counter()
        self.live_bytes = 0
        for path, sign in ((recording, 1), (before, -1)):
            # The devices of a recording may include pinned memory; the first one is the GPU.
            device = table(command, path, "op", "end")["devices"][0]
            self.live_bytes += sign * (device["total_bytes"] - device["pending_bytes"])
            for row in device["rows"]:
                self.allocated[operation(row["name"])] += sign * row["allocated_bytes"]
                self.allocations[operation(row["name"])] += sign * row["allocations"]


def compare(profiled, recorded):
    """Returns a row for each operation, the largest first."""
    names = {*profiled.allocated, *profiled.freed}
    names |= {name for name, count in recorded.allocations.items() if count}
    rows = [
        {
            "operation": name,
            "profiler_allocated_bytes": profiled.allocated[name],
            "vramscope_allocated_bytes": recorded.allocated[name],
            "difference_bytes": recorded.allocated[name] - profiled.allocated[name],
            "profiler_allocations": profiled.allocations[name],
            "vramscope_allocations": recorded.allocations[name],
            "profiler_self_bytes": profiled.allocated[name] - profiled.freed[name],
        }
        for name in names
    ]
    return sorted(rows, key=lambda row: (-row["profiler_allocated_bytes"], row["operation"]))


def check(what, value, expected):
    """Returns the outcome of a check as in the file of `run_all.py`."""
    return {"what": what, "value": value, "bound": f"= {expected}", "passed": value == expected}


def print_rows(rows, totals):
    print(f"{'operation':34} {'profiler B':>14} {'vramscope B':>14} {'difference':>11} ", end="")
    print(f"{'count':>11} {'self B':>14}")
    for row in [*rows, totals]:
        counts = f"{row['profiler_allocations']}/{row['vramscope_allocations']}"
        print(
            f"{row['operation']:34} {row['profiler_allocated_bytes']:14,}"
            f" {row['vramscope_allocated_bytes']:14,} {row['difference_bytes']:11,}"
            f" {counts:>11} {row['profiler_self_bytes']:14,}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", metavar="DIR", type=Path, help="Folder for the results")
    add_command_option(parser)
    options = parser.parse_args()

    import vramscope

    options.folder.mkdir(parents=True, exist_ok=True)
    recording = options.folder / "profile_table.vram"
    before = options.folder / "profile_table-before.vram"
    torch.cuda.init()
    session = vramscope.watch(listen="127.0.0.1:0", record=recording, stacks="all")
    training = Training("cuda")
    warm_up(training)
    torch.cuda.synchronize()
    # The recording so far is subtracted from the complete one.
    session.save(before)
    before_bytes = torch.cuda.memory_allocated()
    profiler = profile(training)
    kept_bytes = torch.cuda.memory_allocated() - before_bytes
    is_complete = session.stop()

    profiled = ProfiledMemory(profiler, "cuda")
    recorded = RecordedMemory(before, recording, options.vramscope)
    before.unlink()
    rows = compare(profiled, recorded)
    numbers = [key for key in rows[0] if key != "operation"]
    totals = {"operation": "total", **{key: sum(row[key] for row in rows) for key in numbers}}
    unequal = [
        row["operation"]
        for row in rows
        if row["difference_bytes"] or row["profiler_allocations"] != row["vramscope_allocations"]
    ]
    checks = [
        check("the recording is complete", is_complete, True),
        check("operations whose allocations differ", unequal, []),
        check("difference of all allocated bytes", totals["difference_bytes"], 0),
        check("bytes that the steps kept, by the allocator", recorded.live_bytes, kept_bytes),
        check(
            "operations whose events do not add up to self_device_memory_usage",
            profiled.differences_of_net(profiler, "cuda"),
            [],
        ),
    ]
    result = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "steps": PROFILED_STEPS,
        "operations": rows,
        "totals": totals,
        "checks": checks,
    }
    (options.folder / "profile_table.json").write_text(json.dumps(result, indent=1))
    print_rows(rows, totals)
    for it in checks:
        print(f"{'PASS' if it['passed'] else 'FAIL'}  {it['what']}: {it['value']}, ", end="")
        print(f"expected {it['bound']}")
    return 0 if all(it["passed"] for it in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
