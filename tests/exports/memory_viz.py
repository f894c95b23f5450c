"""Compares a PyTorch snapshot with its `vramscope export --to memory-viz`, field by field.

    python memory_viz.py ORIGINAL EXPORTED [ORIGINAL EXPORTED ...]

Files are pickles or JSON, also with .gz, or with .zst if `zstd` is installed. Prints each kind of
difference with its count and an example. Exit status: 0 equal apart from expected differences, 1
different. The comparison relies only on what `torch.cuda.memory._snapshot` documents. Fields that
only some versions of PyTorch write (`compile_context`, `pool_id`) are compared if both files have
them; missing frames count as an empty list.

Expected differences are counted separately, see `Differences.known`.
"""

import collections
import gzip
import json
import pickle
import subprocess
import sys

SEGMENT = (
    "device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream", "segment_type",
    "segment_pool_id", "is_expandable",
)
BLOCK = ("address", "size", "state")
ENTRY = ("action", "addr", "device_free", "size", "stream", "time_us", "user_metadata", "compile_context", "pool_id")
ANNOTATION = ("stage", "name", "device", "time_us")


def load(path):
    if path.endswith(".zst"):
        data = subprocess.run(["zstd", "-dc", path], check=True, stdout=subprocess.PIPE).stdout
        path = path.removesuffix(".zst")
    elif path.endswith(".gz"):
        data = gzip.open(path).read()
        path = path.removesuffix(".gz")
    else:
        data = open(path, "rb").read()
    return json.loads(data) if path.endswith(".json") else pickle.loads(data)


# Settings that do not affect how memory is laid out.
OTHER_SETTINGS = (
    "pinned_num_register_threads", "release_lock_on_cudamalloc", "pinned_use_cuda_host_register",
    "graph_capture_record_stream_reuse",
)


class Differences:
    def __init__(self):
        self.counts = collections.Counter()
        self.known = collections.Counter()
        self.examples = {}

    def add(self, kind, where, original, exported, reason=None):
        """Counts a difference; `reason` explains an expected one."""
        if reason:
            kind = f"{kind} ({reason})"
        (self.known if reason else self.counts)[kind] += 1
        self.examples.setdefault(kind, f"{where}: {short(original)} became {short(exported)}")

    def value(self, kind, where, original, exported, reason=None):
        if plain(original) != plain(exported):
            self.add(kind, where, original, exported, reason)

    def fields(self, kind, where, names, original, exported):
        for name in names:
            if name in original and name in exported:
                self.value(f"{kind}.{name}", where, original[name], exported[name])

    def frames(self, kind, where, original, exported, reason=None):
        one, other = frames(original), frames(exported)
        if known_files(one) == known_files(other):
            reason = "PyTorch writes an unknown file in two ways"
        self.value(f"{kind}.frames", where, one, other, reason)

    def lists(self, kind, where, original, exported):
        self.value(f"number of {kind}", where, len(original), len(exported))
        return zip(original, exported)


def plain(value):
    """Tuples become lists in JSON."""
    return list(value) if isinstance(value, tuple) else value


def short(value):
    text = repr(value)
    return text if len(text) < 200 else f"{text[:200]}..."


def frames(owner):
    return [(frame["name"], frame["filename"], frame["line"]) for frame in owner.get("frames") or []]


def known_files(stack):
    return [(name, "" if file == "??" else file, line) for name, file, line in stack]


def in_order(segments):
    return sorted(segments, key=lambda segment: (segment.get("device", 0), segment["address"]))


def totals(snapshot):
    sums = collections.Counter()
    for segment in snapshot.get("segments", []):
        device = segment.get("device", 0)
        sums[device, "reserved"] += segment["total_size"]
        for block in segment["blocks"]:
            sums[device, block["state"]] += block["size"]
            if block["state"] != "inactive":
                sums[device, "requested"] += block["requested_size"]
    return dict(sums)


def compare_segments(differences, original, exported):
    pairs = differences.lists("segments", "", in_order(original), in_order(exported))
    for number, (one, other) in enumerate(pairs):
        where = f"segment {number} at {one['address']:#x}"
        differences.fields("segment", where, SEGMENT, one, other)
        forgotten = None if frames(one) else "PyTorch drops it with the first block"
        differences.frames("segment", where, one, other, forgotten)
        for a, b in differences.lists("blocks", where, one["blocks"], other["blocks"]):
            inside = f"{where}, block at {a.get('address', 0):#x}"
            differences.fields("block", inside, BLOCK, a, b)
            differences.frames("block", inside, a, b)
            is_free = a["state"] == "inactive"
            unknown = "of a free block from before the history" if is_free and b.get("requested_size") == 0 else None
            requested = a.get("requested_size"), b.get("requested_size")
            differences.value("block.requested_size", inside, *requested, unknown)


def compare_entries(differences, kind, original, exported):
    for number, (a, b) in enumerate(differences.lists("entries", kind, original, exported)):
        where = f"{kind}, entry {number}, {a['action']}"
        differences.fields("entry", where, ENTRY, a, b)
        differences.frames("entry", where, a, b)
        differences.value("entry has addr", where, "addr" in a, "addr" in b)


def compare_annotations(differences, original, exported):
    in_time = lambda part: sorted(part.get("external_annotations", []), key=lambda note: note["time_us"])
    notes = in_time(original), in_time(exported)
    begin = min((trace[0]["time_us"] for trace in original["device_traces"] if trace), default=0)
    kept = collections.deque(notes[1])
    for note in notes[0]:
        is_earlier = note["time_us"] < begin
        if kept and all(note[name] == kept[0][name] for name in ANNOTATION):
            kept.popleft()
        elif is_earlier and kept and all(({**note, "time_us": begin})[name] == kept[0][name] for name in ANNOTATION):
            open_then = "open when the history began"
            differences.add("annotation.time_us", "", note, kept.popleft(), open_then)
        else:
            over = "over before the history began" if is_earlier else None
            differences.add("annotation left out", "", note, None, over)
    for note in kept:
        differences.add("annotation added", "", None, note)


def compare(original, exported):
    differences = Differences()
    for part in original.keys() | exported.keys():
        differences.value(f"part {part}", "", part in original, part in exported)
    compare_segments(differences, original.get("segments", []), exported.get("segments", []))
    differences.value("totals", "", totals(original), totals(exported))
    traces = differences.lists("traces", "", original["device_traces"], exported["device_traces"])
    for device, (one, other) in enumerate(traces):
        compare_entries(differences, f"trace of device {device}", one, other)
    compare_annotations(differences, original, exported)
    settings = original.get("allocator_settings", {}), exported.get("allocator_settings", {})
    for name in settings[0].keys() | settings[1].keys():
        reason = "not kept" if name in OTHER_SETTINGS and name not in settings[1] else None
        differences.value(f"setting {name}", "", settings[0].get(name), settings[1].get(name), reason)
    return differences


def main(paths):
    if len(paths) < 2 or len(paths) % 2:
        sys.exit(__doc__)
    different = False
    for original, exported in zip(paths[::2], paths[1::2]):
        differences = compare(load(original), load(exported))
        print(f"{original}: {'different' if differences.counts else 'equal'}")
        for kind, count in differences.counts.most_common():
            print(f"  {count:>8} {kind}: {differences.examples[kind]}")
        for kind, count in differences.known.most_common():
            print(f"  {count:>8} expected: {kind}")
        different |= bool(differences.counts)
    return int(different)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
