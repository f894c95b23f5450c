#!/usr/bin/env python3
"""Records the programs that reproduce public reports about GPU memory.

    collect.py OUT [--only NAME] [--jobs N]

Writes OUT/NAME.pickle.gz, a snapshot with history and Python stacks, and OUT/NAME.json, the
counters, for each program of programs/. Each runs in a process of its own; prints one line of JSON
for each. An out-of-memory error of a program is a result. A program that fails otherwise does not
stop the others; the exit status is then 1. Needs an NVIDIA GPU and PyTorch 2.11.
"""

import argparse
import concurrent.futures
import contextlib
import gzip
import json
import os
import pickle
import subprocess
import sys
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Where the recordings show the programs, wherever they were run.
SHOWN_FOLDER = "/workspace/project"
# Programs that need the whole device, and run last.
ALONE = {"other_library"}
MAX_ENTRIES = 200_000
TIMEOUT_SECONDS = 120
COUNTERS = {
    "peak_allocated": "allocated_bytes.all.peak",
    "peak_reserved": "reserved_bytes.all.peak",
    "allocated": "allocated_bytes.all.current",
    "reserved": "reserved_bytes.all.current",
    "ooms": "num_ooms",
    "retries": "num_alloc_retries",
}


def shorten(snapshot, folder):
    """Shows the programs under `SHOWN_FOLDER`, and removes the frames of this file."""
    seen = set()
    traces = (entry for trace in snapshot["device_traces"] for entry in trace)
    blocks = (block for segment in snapshot["segments"] for block in [segment, *segment["blocks"]])
    for holder in (*traces, *blocks):
        frames = holder.get("frames")
        if frames is None or id(frames) in seen:
            continue
        seen.add(id(frames))
        frames[:] = [frame for frame in frames if os.path.realpath(frame["filename"]) != str(HERE / "collect.py")]
        for frame in frames:
            if id(frame) not in seen:
                seen.add(id(frame))
                frame["filename"] = frame["filename"].replace(folder, SHOWN_FOLDER)


def work(name, out):
    """Runs a program in this process, writes its recording, and prints its line."""
    import torch

    path = HERE / "programs" / f"{name}.py"
    code = compile(path.read_text(), str(path), "exec")
    sys.argv = [str(path)]
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(max_entries=MAX_ENTRIES, stacks="python", global_record_annotations=True)
    # Both keep the program's tensors until the snapshot has been taken.
    variables, error = {"__name__": "__main__", "__file__": str(path)}, None
    with contextlib.redirect_stdout(sys.stderr):
        try:
            exec(code, variables)
        except RuntimeError as raised:
            # Libraries report a failed allocation in their own words.
            if torch.cuda.memory_stats()["num_ooms"] == 0:
                raise
            error = raised
            traceback.print_exception(error, limit=-2, file=sys.stderr)
    snapshot = torch.cuda.memory._snapshot()
    statistics = dict(torch.cuda.memory_stats())
    shorten(snapshot, str(path.parent))
    packed = gzip.compress(pickle.dumps(snapshot, protocol=4), 9, mtime=0)
    Path(out, f"{name}.pickle.gz").write_bytes(packed)
    events = sum(len(trace) for trace in snapshot["device_traces"])
    facts = {
        "ended_by": None if error is None else type(error).__name__,
        "message": None if error is None else str(error),
        "events": events,
        "max_entries": MAX_ENTRIES,
        "gpu": torch.cuda.get_device_properties(0).name,
        "gpu_bytes": torch.cuda.get_device_properties(0).total_memory,
        "pytorch": str(torch.__version__),
        "mem_get_info": list(torch.cuda.mem_get_info()),
        "stats": statistics,
    }
    Path(out, f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")
    line = {"name": name, "ended_by": facts["ended_by"], "events": events, "file_bytes": len(packed)}
    line |= {key: statistics.get(counter) for key, counter in COUNTERS.items()}
    print(json.dumps(line), flush=True)
    # Skips the destructors of graphs and pools, which may fail after a failed capture.
    os._exit(0)


def record(name, out):
    """Runs a program in a process of its own, and returns its line of results."""
    command = [sys.executable, str(HERE / "collect.py"), str(out), "--in-process", name]
    environment = {key: value for key, value in os.environ.items() if not key.endswith("_ALLOC_CONF")}
    for suffix in (".pickle.gz", ".json"):
        Path(out, name + suffix).unlink(missing_ok=True)
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return {"name": name, "failed": f"no end after {TIMEOUT_SECONDS} s"}
    if done.returncode != 0 or not done.stdout.strip():
        return {"name": name, "failed": f"exit status {done.returncode}: {done.stderr[-1500:]}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("out", metavar="OUT", help="Folder for the recordings")
    parser.add_argument("--only", metavar="NAME", action="append", help="Record only this program; repeatable")
    parser.add_argument("--jobs", type=int, default=4, help="Programs at a time [default: %(default)s]")
    parser.add_argument("--in-process", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    out = Path(options.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    if options.in_process:
        work(options.in_process, out)
    names = sorted(path.stem for path in (HERE / "programs").glob("*.py"))
    unknown = sorted(set(options.only or []) - set(names))
    if unknown:
        parser.error(f"no such program: {', '.join(unknown)}: --only takes one of {', '.join(names)}")
    names = [name for name in names if not options.only or name in options.only]
    failed = 0

    def show(result):
        nonlocal failed
        failed += "failed" in result
        print(json.dumps(result), flush=True)

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as executor:
        together = [executor.submit(record, name, out) for name in names if name not in ALONE]
        for future in concurrent.futures.as_completed(together):
            show(future.result())
    for name in names:
        if name in ALONE:
            show(record(name, out))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
