#!/usr/bin/env python3
"""Records programs with a known problem of pinned host memory, or applies a remedy to each.

    pinned.py OUT

Writes OUT/NAME.pickle.gz, a snapshot, and OUT/NAME.json, the expected finding with the bytes that
the driver has pinned in the end (`host_memory_stats()` of PyTorch), without and with the remedy.
Each program runs in a process of its own. Needs an NVIDIA GPU and PyTorch 2.11 or later.

Only PyTorch 2.14 and later have pinned memory in their snapshots. The program itself therefore
notes each request, its address and whether the driver had to pin more for it, and writes them in
the form of these snapshots.
"""

import gzip
import json
import os
import pickle
import subprocess
import sys
import time

MIB = 1 << 20


class Pinned:
    """Pins buffers, and notes each request and release."""

    def __init__(self):
        self.entries = []
        # By address, the bytes that the driver pinned.
        self.segments = {}
        self.live = {}

    def _note(self, action, address, size):
        frame = sys._getframe(2)
        frames = []
        while frame is not None:
            code = frame.f_code
            file = f"/workspace/project/{os.path.basename(code.co_filename)}"
            frames.append({"name": code.co_name, "filename": file, "line": frame.f_lineno})
            frame = frame.f_back
        entry = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": time.time_ns() // 1000,
                 "frames": frames}
        self.entries.append(entry)
        return frames

    def take(self, size):
        import torch

        before = pinned_bytes()
        buffer = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        address, grown = buffer.data_ptr(), pinned_bytes() - before
        if grown > 0:
            self.segments[address] = grown
            self._note("segment_alloc", address, grown)
        frames = self._note("alloc", address, size)
        self.live[address] = (size, frames)
        return buffer

    def give(self, buffers):
        """Releases a list of buffers, which it empties."""
        while buffers:
            address = buffers.pop().data_ptr()
            size, _ = self.live.pop(address)
            self._note("free_requested", address, size)
            self._note("free_completed", address, size)

    def empty_cache(self):
        import torch

        torch._C._host_emptyCache()
        for address in [address for address in self.segments if address not in self.live]:
            self._note("segment_free", address, self.segments.pop(address))

    def snapshot(self):
        segments = []
        for address, total in sorted(self.segments.items()):
            size, frames = self.live.get(address, (0, []))
            state = "active_allocated" if size else "inactive"
            block = {"address": address, "size": total, "requested_size": size, "state": state, "frames": frames}
            used = total if size else 0
            segments.append({"device": 0, "address": address, "total_size": total, "allocated_size": used,
                             "active_size": used, "requested_size": size, "stream": 0, "segment_type": "large",
                             "segment_pool_id": [0, 0], "is_expandable": False, "frames": [], "blocks": [block]})
        return {"segments": [], "device_traces": [[]], "allocator_settings": {}, "external_annotations": [],
                "host_segments": segments, "host_traces": [self.entries]}


def pinned_bytes():
    """Returns the bytes that the driver has pinned."""
    import torch

    return torch.cuda.host_memory_stats()["allocated_bytes.current"]


def offloaded_states(pinned, with_remedy):
    """Moves the states of 24 layers to pinned memory."""
    if with_remedy:
        return [pinned.take(512 * MIB), pinned.take(256 * MIB), pinned.take(32 * MIB)]
    return [pinned.take(33 * MIB) for _ in range(24)]


def loaded_batches(pinned, with_remedy):
    """Keeps twelve batches ready, each a little above a power of two."""
    ready = [pinned.take(512 * MIB)] if with_remedy else []
    for _ in range(0 if with_remedy else 40):
        if len(ready) == 12:
            oldest = [ready.pop(0)]
            pinned.give(oldest)
        ready.append(pinned.take(40 * MIB + 4096))
    return ready


def fitting_states(pinned, with_remedy):
    """Moves states to pinned memory whose sizes are just below powers of two."""
    return [pinned.take(30 * MIB) for _ in range(24)]


def small_masks(pinned, with_remedy):
    """Pins many small buffers of odd sizes beside large ones that fit."""
    large = [pinned.take(256 * MIB) for _ in range(2)]
    return large + [pinned.take(300_000) for _ in range(100)]


def longer_sequences(pinned, with_remedy):
    """Stages batches whose sizes grow, none of which a released buffer can serve."""
    if with_remedy:
        staged = [pinned.take(1024 * MIB)]
        return staged
    for doubled in range(11):
        staged = [pinned.take(MIB << doubled)]
        pinned.give(staged)
    return []


def exported_once(pinned, with_remedy):
    """Exports a model through pinned memory, then trains with two small buffers."""
    copies = [pinned.take(128 * MIB) for _ in range(16)]
    pinned.give(copies)
    if with_remedy:
        pinned.empty_cache()
    for _ in range(200):
        batch = [pinned.take(16 * MIB), pinned.take(16 * MIB)]
        pinned.give(batch)
    return []


def two_buffers(pinned, with_remedy):
    """Uses two buffers in turn."""
    for _ in range(200):
        batch = [pinned.take(256 * MIB), pinned.take(256 * MIB)]
        pinned.give(batch)
    return [pinned.take(256 * MIB)]


def exported_each_epoch(pinned, with_remedy):
    """Exports a model through pinned memory after each epoch, and ends within an epoch."""
    for _ in range(5):
        copies = [pinned.take(128 * MIB) for _ in range(16)]
        pinned.give(copies)
        for _ in range(40):
            batch = [pinned.take(16 * MIB), pinned.take(16 * MIB)]
            pinned.give(batch)
    return []


PROGRAMS = {
    "pinned_rounding_1": ("pinned.rounding", offloaded_states),
    "pinned_rounding_2": ("pinned.rounding", loaded_batches),
    "pinned_rounding_near_1": ("none", fitting_states),
    "pinned_rounding_near_2": ("none", small_masks),
    "pinned_kept_1": ("pinned.kept", longer_sequences),
    "pinned_kept_2": ("pinned.kept", exported_once),
    "pinned_kept_near_1": ("none", two_buffers),
    "pinned_kept_near_2": ("none", exported_each_epoch),
}


def run(name, with_remedy, out):
    import torch

    torch.cuda.init()
    finding, program = PROGRAMS[name]
    pinned = Pinned()
    kept = program(pinned, with_remedy)
    facts = {"pinned_bytes": pinned_bytes()}
    if not with_remedy:
        with open(os.path.join(out, f"{name}.pickle.gz"), "wb") as file:
            file.write(gzip.compress(pickle.dumps(pinned.snapshot(), protocol=4), 9, mtime=0))
        facts |= {"finding": finding, "sites": [program.__name__], "limit_bytes": None,
                  "gpu": torch.cuda.get_device_name(), "pytorch": str(torch.__version__)}
    del kept
    return facts


def main():
    out = sys.argv[1]
    if len(sys.argv) == 4:
        print(json.dumps(run(sys.argv[2], sys.argv[3] == "remedy", out)))
        return
    for name, (finding, _) in PROGRAMS.items():
        facts = {}
        for mode in ("record", "remedy")[: 2 if finding != "none" else 1]:
            done = subprocess.run([sys.executable, __file__, out, name, mode], capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(f"{name}: {done.stderr}")
            read = json.loads(done.stdout.splitlines()[-1])
            facts |= read if mode == "record" else {"remedy_pinned_bytes": read["pinned_bytes"]}
        with open(os.path.join(out, f"{name}.json"), "w") as file:
            json.dump(facts, file, indent=1)
        print(name, facts["finding"], facts["pinned_bytes"], facts.get("remedy_pinned_bytes"), flush=True)


if __name__ == "__main__":
    main()
