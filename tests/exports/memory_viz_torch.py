"""Compares a PyTorch snapshot with its memory-viz export by PyTorch's own functions.

    python memory_viz_torch.py [--viz PATH] ORIGINAL EXPORTED [ORIGINAL EXPORTED ...]

PATH is a `torch/cuda/_memory_viz.py`; by default that of the installed PyTorch, which is not
imported: the file does not need it. Exit status: 0 equal, 1 different.
"""

import contextlib
import importlib.util
import io
import os
import sys
import warnings

from memory_viz import load

# Fields that `trace` prints of an unknown entry. Those of other versions of PyTorch are ignored.
FIELDS = ("action", "addr", "device_free", "size", "stream", "time_us")


def torch_viz(path):
    if path is None:
        torch = importlib.util.find_spec("torch")
        if torch is None:
            sys.exit("PyTorch is not installed; give the path of a torch/cuda/_memory_viz.py with --viz")
        path = os.path.join(os.path.dirname(torch.origin), "cuda", "_memory_viz.py")
    spec = importlib.util.spec_from_file_location("memory_viz_of_torch", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lines(text, *_):
    """Replaces the program that draws flame graphs and returns its input."""
    return text


def fields(entry):
    return {name: entry[name] for name in FIELDS if name in entry} | {"user_metadata": entry.get("user_metadata", "")}


def answers(viz, snapshot):
    plain = [[fields(entry) for entry in trace] for trace in snapshot["device_traces"]]
    unpaired = viz.filter_alloc_free_pairs({"device_traces": [list(trace) for trace in plain]})["device_traces"]
    return {
        "segsum": viz.segsum(snapshot),
        "trace": viz.trace({**snapshot, "device_traces": plain}),
        "segments": viz.segments(snapshot, format_flamegraph=lines),
        "memory": viz.memory(snapshot, format_flamegraph=lines),
        "calc_active": [viz.calc_active(segment) for segment in snapshot["segments"]],
        "filter_alloc_free_pairs": unpaired,
        "pages": [bool(viz.trace_plot(snapshot)), bool(viz.segment_plot(snapshot))],
    }


def differing_lines(one, other):
    pairs = [pair for pair in zip(str(one).split("\n"), str(other).split("\n")) if pair[0] != pair[1]]
    return len(pairs), pairs[0] if pairs else ("", "")


def compare(viz, original, exported):
    same = True
    with contextlib.redirect_stdout(io.StringIO()):
        apart = viz.compare(original["segments"], exported["segments"], format_flamegraph=lines)
        one, other = answers(viz, original), answers(viz, exported)
    if apart:
        same = False
        print(f"  compare: {apart}")
    for name in one:
        if one[name] != other[name]:
            same = False
            count, (a, b) = differing_lines(one[name], other[name])
            print(f"  {name}: {count} lines differ, such as\n    {a[:200]}\n    {b[:200]}")
    return same


def main(arguments):
    path = None
    if arguments[:1] == ["--viz"]:
        path, arguments = arguments[1], arguments[2:]
    if len(arguments) < 2 or len(arguments) % 2:
        sys.exit(__doc__)
    warnings.simplefilter("ignore")
    viz = torch_viz(path)
    same = True
    for original, exported in zip(arguments[::2], arguments[1::2]):
        print(f"{original}:")
        same &= compare(viz, load(original), load(exported))
    print("equal" if same else "different")
    return int(not same)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
