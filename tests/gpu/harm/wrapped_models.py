#!/usr/bin/env python3
"""Compares operations on a model with vramscope's hooks and without: results and error texts.

    wrapped_models.py PACKAGE [--out FOLDER] [--device cpu|cuda] [--jobs N] [--seconds N] [NAME...]

PACKAGE is the folder that contains the Python package. Each operation (model_operations.py) runs in
a process of its own: plainly, with the hooks that `watch()` puts on the models that it finds, and
after `annotate(model)`. Prints a line for each pair that is compared, with the first difference,
and writes `wrapped_models.json`; exit status 1 if there is a difference. Without a GPU, the package
waits for CUDA; the script then installs the hooks as the package does once CUDA is in use. Pairs
for which no time is left are listed as not run.
"""

import argparse
import concurrent.futures
import faulthandler
import importlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback

from outcomes import cleaned, first_difference, split_messages

MODES = ("plain", "watch", "annotate")
#: Seconds that an operation may take.
LIMIT = 150


def hooks(mode, package, device):
    """Starts a session and returns the function that puts hooks on a model."""
    import torch

    if device == "cuda":
        # Also plainly: PyTorch warns of some operations before the first use of CUDA.
        torch.empty(1, device="cuda")
    if mode == "plain":
        return lambda model, optimizer=None: None
    sys.path.insert(0, package)
    vramscope = importlib.import_module("vramscope")
    session = vramscope.watch(listen="127.0.0.1:0")
    if device == "cuda":
        deadline = time.monotonic() + 30
        while session.status == "waiting" and time.monotonic() < deadline:
            time.sleep(0.01)
        assert session.status == "live", session.status
    else:
        session._following._take_notes()
    if mode == "annotate":
        return session.annotate
    # What the package's thread does once it sees a new module.
    return lambda model, optimizer=None: session._following._name_modules(torch)


def run_operation(name, mode, package, device, path):
    """Runs an operation in this process, and writes what it returned or raised to a file."""
    for number in (1, 2):
        os.dup2(os.open(f"{path}.{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    import torch

    from model_operations import OPERATIONS, Setup

    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    try:
        setup = Setup(device, hooks(mode, package, device))
        result = {"lines": OPERATIONS[name](setup)}
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    with open(f"{path}.part", "w") as file:
        json.dump(result, file)
    os.rename(f"{path}.part", path)


def own_output(path):
    """Returns a program's own lines: not vramscope's messages."""
    with open(path, errors="replace") as file:
        return [cleaned(line) for line in split_messages(file.read())[1]]


def outcome(context, name, mode, options, deadline):
    """Runs an operation in a new process; returns a dictionary of what can be compared. None if no
    time is left."""
    limit = min(LIMIT, deadline - time.monotonic())
    if limit < 10:
        return None
    path = os.path.join(options.out, f"{name}-{mode}.json")
    if os.path.exists(path):
        os.remove(path)
    process = context.Process(target=run_operation, args=(name, mode, options.package, options.device, path))
    process.start()
    process.join(limit)
    if process.is_alive():
        os.kill(process.pid, signal.SIGUSR1)
        process.join(3)
        process.kill()
        process.join()
        return {"exit": "hang", "lines": [], "stdout": [], "stderr": own_output(f"{path}.2"), "trace": None}
    result = {}
    if os.path.exists(path):
        with open(path) as file:
            result = json.load(file)
    lines = result.get("lines") or [result.get("error", "no result")]
    return {
        "exit": process.exitcode,
        "lines": [cleaned(line) for text in lines for line in text.splitlines()],
        "stdout": own_output(f"{path}.1"),
        "stderr": own_output(f"{path}.2"),
        "trace": result.get("trace"),
    }


def difference(expected, found):
    """Returns the first difference between two outcomes; None if they are equal."""
    for key in ("exit", "lines", "stdout", "stderr"):
        a, b = expected[key], found[key]
        if a == b:
            continue
        if key == "exit":
            return f"exit code {a} without vramscope, {b} with it"
        return f"{'result' if key == 'lines' else key}: {first_difference(a, b)}"
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("package")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out")
    parser.add_argument("--device")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)) // 2 or 1)
    parser.add_argument("--seconds", type=int, default=3600)
    options = parser.parse_intermixed_args()
    deadline = time.monotonic() + options.seconds
    import torch

    from model_operations import ON_GPU_ONLY, OPERATIONS

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    options.package = os.path.abspath(options.package)
    options.out = os.path.abspath(options.out or tempfile.mkdtemp(prefix="wrapped-models-"))
    options.device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    os.makedirs(options.out, exist_ok=True)
    on_gpu = options.device == "cuda"
    names = options.names or [name for name in OPERATIONS if on_gpu or name not in ON_GPU_ONLY]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    cells = [(name, mode) for name in names for mode in MODES]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as executor:
        outcomes = dict(zip(cells, executor.map(lambda cell: outcome(context, *cell, options, deadline), cells)))
    rows = []
    for name in names:
        if None in (outcomes[name, mode] for mode in MODES):
            rows.append((name, "all", "not run: no time left"))
            continue
        plain = outcomes[name, "plain"]
        if plain["exit"] != 0:
            rows.append((name, "plain", f"exit {plain['exit']}: {plain['stderr'][-1:]}"))
        if plain["trace"]:
            print(f"NOTE  {name}: fails without vramscope, too: {plain['lines'][0][:200]}")
        rows += [(name, mode, difference(plain, outcomes[name, mode])) for mode in MODES[1:]]
    for name, mode, found in rows:
        print(f"{'FAIL' if found else 'PASS'}  {name:32} {mode:9} {found or ''}", flush=True)
    failed = sum(found is not None for _, _, found in rows)
    print(f"{len(rows) - failed} of {len(rows)} equal, PyTorch {torch.__version__} on {options.device}")
    with open(os.path.join(options.out, "wrapped_models.json"), "w") as file:
        keys = ("operation", "mode", "difference")
        cells = [(" ".join(cell), found["trace"]) for cell, found in outcomes.items() if found]
        traces = {name: trace for name, trace in cells if trace}
        json.dump({"rows": [dict(zip(keys, row)) for row in rows], "traces": traces}, file, indent=1)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
