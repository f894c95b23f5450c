"""Computes what a PyTorch snapshot says about memory, independently of vramscope.

    python model.py SNAPSHOT < QUESTIONS > ANSWERS

SNAPSHOT is a pickle, not compressed. Needs nothing beyond Python's standard library.

A snapshot names the requested size of each allocation in its history, not the size of its block.
The model replays the history to find it: the allocator cuts a block from the free gap at its
address, and keeps the rest of the gap in the block if the rest is too small to split off. Events of
all devices are ordered by time. Event number n is the moment after the first n events.

QUESTIONS and ANSWERS are JSON:

    {"moments": [[DEVICE, EVENT], ...], "ranges": [[DEVICE, FROM, TO, WITHIN], ...],
     "addresses": [[DEVICE, ADDRESS], ...]}

A range contains the events after the moment FROM and up to the moment TO; WITHIN is the most events
from the allocation to the free of a temporary.
"""

import bisect
import heapq
import json
import pickle
import sys

SMALL_SEGMENT_BYTES = 2 << 20
LIBRARIES = ("/torch/", "/site-packages/", "/dist-packages/", "/lib/python3")


def own_line(frames):
    """Returns `FILE:LINE` of the innermost frame that is not a library's; None without one."""
    for frame in frames:
        path = frame.get("filename", "")
        # Paths may be relative to the folder with the packages.
        path = path if path.startswith("<") else "/" + path
        is_library = path.startswith("<") or any(part in path for part in LIBRARIES)
        if path.endswith(".py") and not is_library:
            return f"{path.rsplit('/', 1)[-1]}:{frame['line']}"
    return None


def stack_key(frames):
    """Returns a text that identifies a call stack."""
    return "\n".join(f"{frame.get('filename')}:{frame.get('line')}:{frame.get('name')}" for frame in frames)


class Rounding:
    """How the allocator rounds a requested size, by the snapshot's settings."""

    def __init__(self, settings):
        divisions = settings.get("roundup_power2_divisions") or {}
        self.divisions = {int(mib) << 20: count for mib, count in divisions.items()}
        self.max_split_bytes = settings.get("max_split_size", -1)

    def rounded(self, size):
        """Returns the size of the smallest block for a request."""
        if size < 512:
            return 512
        power = 1 << (size.bit_length() - 1)
        least, most = min(self.divisions, default=1), max(self.divisions, default=1)
        divisions = self.divisions.get(min(max(power, least), most), 0)
        if divisions > 1 and size > 512 * divisions:
            step = power // divisions
            return -(-size // step) * step if size > power else power
        return -(-size // 512) * 512

    def splits(self, size, rest, is_fine):
        """Returns true if the allocator splits `rest` bytes from a block of `size` bytes.

        `is_fine` tells that the block is in a small or an expandable segment.
        """
        if is_fine:
            return rest >= 512
        if 0 < self.max_split_bytes <= size:
            return False
        return rest > 1 << 20


class Device:
    """Segments and live blocks of a device, and the lifetimes of its allocations so far."""

    def __init__(self, snapshot, number, rounding):
        self.rounding = rounding
        # Address to [end, whether it is expandable].
        self.segments = {}
        # Address to the lifetime of the live block there.
        self.blocks = {}
        self.lifetimes = []
        # Bytes after every event of any device, for peaks: (event number, allocated bytes).
        self.allocated = 0
        self.peak = (0, 0)
        self.go_back(snapshot, number)

    def go_back(self, snapshot, number):
        """Finds the segments and blocks before the history from those at its end."""
        segments = [one for one in snapshot["segments"] if one.get("device", 0) == number]
        starts = set()
        blocks = {}
        for segment in segments:
            is_expandable = bool(segment.get("is_expandable"))
            self.add_segment(segment["address"], segment["total_size"], is_expandable)
            address = segment["address"]
            for block in segment["blocks"]:
                address = block.get("address", address)
                if block["state"] != "inactive":
                    blocks[address] = (block["size"], block.get("requested_size", block["size"]), block["state"],
                                       block.get("frames") or [])
                address += block["size"]
        older = {}
        # Addresses of older blocks of which only the requested size is known.
        unknown = set()
        trace = snapshot["device_traces"][number]
        # A history that never names a request to free does not tell when a block became pending.
        has_requests = any(entry["action"] == "free_requested" for entry in trace)
        older_state = "active_awaiting_free" if has_requests else "active_allocated"
        for entry in reversed(trace):
            address, size = entry.get("addr"), entry.get("size", 0)
            action = entry["action"]
            if action in ("segment_alloc", "segment_map"):
                self.remove_segment(address, size)
            elif action in ("segment_free", "segment_unmap"):
                self.add_segment(address, size, action == "segment_unmap")
            elif action == "alloc":
                blocks.pop(address, None)
                older.pop(address, None)
                unknown.discard(address)
            elif action == "free_completed":
                older[address] = (self.rounding.rounded(size), size, older_state, [])
                blocks.pop(address, None)
                unknown.add(address)
            elif action == "free_requested":
                known = older.get(address) or blocks.get(address)
                size_in_block = known[0] if known else self.rounding.rounded(size)
                if not known:
                    unknown.add(address)
                older[address] = (size_in_block, size, "active_allocated", known[3] if known else [])
                blocks.pop(address, None)
        found = {**blocks, **older}
        sizes = self.older_sizes(trace, found, unknown)
        for address, (size, requested, state, frames) in found.items():
            size = sizes.get(address, size)
            one = self.add_block(address, size, requested, None, frames)
            if state != "active_allocated":
                one["freed_at"] = 0
                self.allocated -= size
        self.peak = (0, self.allocated)

    def older_sizes(self, trace, blocks, unknown):
        """Returns the sizes of the older blocks of which only the requested size is known.

        In a large segment, a block keeps a rest of up to 1 MiB. The free range behind a block
        begins at the block's end, and the allocator takes memory from the low end of a free range:
        the first allocation just behind a block shows where it ends.
        """
        addresses = sorted(blocks)
        sizes, open_ends = {}, {}
        for address in unknown:
            size = blocks[address][0]
            segment = self.segment_of(address)
            if segment is None or segment[2] or segment[1] - segment[0] == SMALL_SEGMENT_BYTES:
                continue
            above = addresses[bisect.bisect_right(addresses, address):][:1]
            gap = min([segment[1], *above]) - address
            if self.rounding.splits(size, gap - size, False):
                open_ends[address] = (address + size, segment[1])
            else:
                sizes[address] = gap
        for entry in trace:
            at = entry.get("addr")
            if entry["action"] == "alloc":
                for address, (end, segment_end) in list(open_ends.items()):
                    if end <= at <= end + (1 << 20) and at < segment_end:
                        sizes[address] = at - address
                        del open_ends[address]
            elif entry["action"] == "free_completed":
                open_ends.pop(at, None)
        return sizes

    def segment_of(self, address):
        """Returns start, end and whether it is expandable of the segment at an address, or None."""
        for start, (end, is_expandable) in self.segments.items():
            if start <= address < end:
                return start, end, is_expandable
        return None

    def add_segment(self, address, size, is_expandable):
        """Adds a segment; a mapped range joins its neighbours."""
        end = address + size
        if is_expandable:
            above = self.segments.get(end)
            if above and above[1]:
                del self.segments[end]
                end = above[0]
            for start, (below_end, below_expandable) in self.segments.items():
                if below_end == address and below_expandable:
                    self.segments[start][0] = end
                    return
        self.segments[address] = [end, is_expandable]

    def remove_segment(self, address, size):
        """Removes a range, which is a whole segment or part of an expandable one."""
        end = address + size
        for start, (segment_end, is_expandable) in list(self.segments.items()):
            if start <= address and end <= segment_end:
                del self.segments[start]
                if start < address:
                    self.segments[start] = [address, is_expandable]
                if end < segment_end:
                    self.segments[end] = [segment_end, is_expandable]

    def block_size(self, address, requested):
        """Returns the size of the block that a request at an address gets."""
        size = self.rounding.rounded(requested)
        segment = self.segment_of(address)
        if segment is None:
            return size
        start, end, is_expandable = segment
        above = [other for other in self.blocks if address < other < end]
        gap = min(above, default=end) - address
        is_fine = is_expandable or end - start == SMALL_SEGMENT_BYTES
        return size if self.rounding.splits(size, gap - size, is_fine) else gap

    def add_block(self, address, size, requested, event, frames):
        """Adds a live block; without an `event`, it is older than the history."""
        one = {
            "address": address, "bytes": size, "requested_bytes": requested, "allocated_at": event,
            "freed_at": None, "completed_at": None, "line": own_line(frames), "stack": stack_key(frames),
        }
        self.blocks[address] = one
        self.lifetimes.append(one)
        self.allocated += size
        return one

    def apply(self, entry, event):
        """Applies an entry of the history, which is the event with this number."""
        address, size, action = entry.get("addr"), entry.get("size", 0), entry["action"]
        if action == "segment_alloc":
            self.add_segment(address, size, False)
        elif action == "segment_map":
            self.add_segment(address, size, True)
        elif action in ("segment_free", "segment_unmap"):
            self.remove_segment(address, size)
        elif action == "alloc":
            self.add_block(address, self.block_size(address, size), size, event, entry.get("frames") or [])
        elif action == "free_requested":
            one = self.blocks[address]
            if one["freed_at"] is None:
                one["freed_at"] = event
                self.allocated -= one["bytes"]
        elif action == "free_completed":
            one = self.blocks.pop(address)
            one["completed_at"] = event
            if one["freed_at"] is None:
                one["freed_at"] = event
                self.allocated -= one["bytes"]
        if self.allocated > self.peak[1]:
            self.peak = (event, self.allocated)

    def state(self):
        """Returns counters, live blocks and free gaps."""
        blocks = [{**one, "is_pending": one["freed_at"] is not None} for one in self.blocks.values()]
        stacks = {}
        for one in blocks:
            sums = stacks.setdefault(one["stack"], [0, 0])
            sums[0] += one["bytes"]
            sums[1] += 1
        gaps = []
        for start, (end, _) in self.segments.items():
            at = start
            for address in sorted(address for address in self.blocks if start <= address < end):
                gaps.append(address - at)
                at = address + self.blocks[address]["bytes"]
            gaps.append(end - at)
        return {
            "allocated_bytes": sum(one["bytes"] for one in blocks if not one["is_pending"]),
            "active_bytes": sum(one["bytes"] for one in blocks),
            "reserved_bytes": sum(end - start for start, (end, _) in self.segments.items()),
            "largest_free_bytes": max(gaps, default=0),
            "segments": len(self.segments),
            "blocks": [{name: one[name] for name in one if name != "stack"} for one in blocks],
            "bytes_by_stack": sorted(stacks.values()),
        }


def events_by_time(traces):
    """Yields (device, entry) of all devices in the order of their times."""
    def timed(number, trace):
        time_us = 0
        for entry in trace:
            time_us = entry.get("time_us", time_us)
            yield time_us, number, entry
    histories = [timed(number, trace) for number, trace in enumerate(traces)]
    for _, number, entry in heapq.merge(*histories, key=lambda row: row[:2]):
        yield number, entry


def sums(lifetimes):
    """Returns number and bytes of some allocations."""
    return {"allocations": len(lifetimes), "bytes": sum(one["bytes"] for one in lifetimes)}


def answer_range(device, events, start, end, within):
    """Returns what happened after the moment `start` and up to the moment `end`."""
    made = [one for one in device.lifetimes if one["allocated_at"] and start < one["allocated_at"] <= end]
    unfreed = [one for one in made if one["freed_at"] is None]
    temporary = [one for one in made if one["freed_at"] and one["freed_at"] - one["allocated_at"] <= within]
    names = ("address", "bytes", "requested_bytes", "allocated_at", "freed_at", "completed_at")
    kinds = [[action, address, size] for action, address, size in events[start:end]]
    return {
        "allocations": [{name: one[name] for name in names} for one in made],
        "unfreed": sums(unfreed), "temporaries": sums(temporary), "events": kinds,
    }


def answer_address(device, address):
    """Returns the allocations whose blocks contained an address, the oldest first."""
    uses = [one for one in device.lifetimes if one["address"] <= address < one["address"] + one["bytes"]]
    return [[one["allocated_at"], one["freed_at"], one["address"], one["bytes"]] for one in uses]


def main():
    with open(sys.argv[1], "rb") as file:
        snapshot = pickle.load(file)
    questions = json.load(sys.stdin)
    traces = snapshot["device_traces"]
    rounding = Rounding(snapshot.get("allocator_settings") or {})
    devices = [Device(snapshot, number, rounding) for number in range(len(traces))]
    wanted = {}
    for device, event in questions.get("moments", []):
        wanted.setdefault(event, {})[device] = None
    events = []
    for number, answers in wanted.items():
        if number == 0:
            answers.update((device, devices[device].state()) for device in answers)
    for event, (number, entry) in enumerate(events_by_time(traces), 1):
        devices[number].apply(entry, event)
        events.append((entry["action"], entry.get("addr"), entry.get("size", 0)))
        for device in wanted.get(event, ()):
            wanted[event][device] = devices[device].state()
    json.dump({
        "events": len(events),
        "peaks": [device.peak for device in devices],
        "moments": [wanted[event][device] for device, event in questions.get("moments", [])],
        "ranges": [answer_range(devices[device], events, *rest) for device, *rest in questions.get("ranges", [])],
        "addresses": [answer_address(devices[device], address)
                      for device, address in questions.get("addresses", [])],
    }, sys.stdout)


if __name__ == "__main__":
    main()
