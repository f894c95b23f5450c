"""Reads a PyTorch snapshot and what `vramscope export --to memory-viz` makes of it with PyTorch's own functions, and compares the answers.

    python memory_viz_torch.py [--viz PATH] ORIGINAL EXPORTED [ORIGINAL EXPORTED ...]

PATH is a `torch/cuda/_memory_viz.py`; without it that of the PyTorch that is installed, which is not imported: the file needs
nothing of it. Exit status: 0 the same, 1 different.
"""

import contextlib
import importlib.util
import io
import os
import sys
import warnings

from memory_viz import load

# What `trace` prints of an entry that it does not know, whole: fields that another version of PyTorch writes are no difference.
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
    """In place of the program that draws flame graphs: what it would draw."""
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
    print("the same" if same else "different")
    return int(not same)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
