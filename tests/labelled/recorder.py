"""Runs a composed program and records its memory.

    recorder.py JOB.json

`generate.py` writes the job: `folder` (the program's files), `name`, `out` (None: no recording),
`facts` (copied into NAME.json) and `device`. Prints one line of JSON with the peaks. An
out-of-memory error of the program is a result and no failure.
"""

import gzip
import json
import os
import pickle
import sys
import traceback

import progress
import torch

# Where the recordings show the program's files, wherever they were run.
SHOWN_FOLDER = "/workspace/project"
HISTORY = {"stacks": "python", "global_record_annotations": True}


def set_up_cpu():
    """Replaces what has no meaning on the CPU, to check programs without a GPU."""
    import contextlib

    class Stream:
        def __init__(self, *_, **__):
            pass

        def wait_stream(self, _):
            pass

        synchronize = wait = lambda self: None

    cuda = torch.cuda
    cuda.Stream, cuda.current_stream = Stream, Stream
    cuda.stream = cuda.use_mem_pool = lambda _: contextlib.nullcontext()
    cuda.empty_cache = cuda.synchronize = lambda: None
    cuda.mem_get_info = lambda: (8 << 30, 8 << 30)
    cuda.memory_stats = dict
    cuda.memory._record_memory_history = lambda *_, **__: None
    cuda.set_per_process_memory_fraction = lambda _: None
    cuda.MemPool = cuda.graph_pool_handle = object
    torch.Tensor.record_stream = lambda *_: None


def shorten(snapshot, folder):
    """Renames the program's folder in all frames, and removes the frames of this file."""
    seen = set()
    own = os.path.abspath(__file__)
    traces = (entry for trace in snapshot["device_traces"] for entry in trace)
    blocks = (block for segment in snapshot["segments"] for block in [segment, *segment["blocks"]])
    for holder in (*traces, *blocks):
        frames = holder.get("frames")
        if frames is None or id(frames) in seen:
            continue
        seen.add(id(frames))
        frames[:] = [frame for frame in frames if frame["filename"] != own]
        for frame in frames:
            if id(frame) not in seen:
                seen.add(id(frame))
                frame["filename"] = frame["filename"].replace(folder, SHOWN_FOLDER)


def run(folder):
    """Runs `train.py`, and returns the error that ended it, if any."""
    path = os.path.join(folder, "train.py")
    sys.path.insert(0, folder)
    with open(path) as file:
        code = compile(file.read(), path, "exec")
    try:
        exec(code, {"__name__": "__main__", "__file__": path})
    except progress.Stopped:
        return None
    except (torch.OutOfMemoryError, MemoryError) as error:
        return error
    return None


def save(job, snapshot, facts):
    out, name = job["out"], job["name"]
    packed = gzip.compress(pickle.dumps(snapshot, protocol=4), 9, mtime=0)
    with open(os.path.join(out, f"{name}.pickle.gz"), "wb") as file:
        file.write(packed)
    with open(os.path.join(out, f"{name}.json"), "w") as file:
        json.dump(facts, file, indent=1)
    return len(packed)


def main():
    with open(sys.argv[1]) as file:
        job = json.load(file)
    is_cpu = job["device"] == "cpu"
    limits = []
    if is_cpu:
        set_up_cpu()
    else:
        torch.cuda.init()
        total = torch.cuda.get_device_properties(0).total_memory
        set_fraction = torch.cuda.set_per_process_memory_fraction

        def set_and_keep(fraction):
            # A remedy may be another cap; 0 removes it. Half a KiB more: PyTorch rounds down.
            if job["limit_bytes"] is not None:
                fraction = min(1.0, (job["limit_bytes"] + 512) / total) if job["limit_bytes"] > 0 else 1.0
            limits.append(int(fraction * torch.cuda.mem_get_info()[1]))
            set_fraction(fraction)

        torch.cuda.set_per_process_memory_fraction = set_and_keep
        start_history = torch.cuda.memory._record_memory_history

        def start_if_recorded(*_, **__):
            # A program that starts the history itself gets these settings, too.
            if job["out"]:
                start_history(max_entries=job["facts"]["max_entries"], **HISTORY)

        torch.cuda.memory._record_memory_history = start_if_recorded
        if not job["facts"]["late_history"]:
            start_if_recorded()
    error = run(job["folder"])
    if error is not None:
        traceback.print_exception(error, limit=-2, file=sys.stderr)
    statistics = dict(torch.cuda.memory_stats())
    line = {
        "name": job["name"],
        "peak_allocated": statistics.get("allocated_bytes.all.peak"),
        "peak_reserved": statistics.get("reserved_bytes.all.peak"),
        "peak_active": statistics.get("active_bytes.all.peak"),
        "allocated": statistics.get("allocated_bytes.all.current"),
        "ooms": statistics.get("num_ooms"),
        "retries": statistics.get("num_alloc_retries"),
        "device_allocations": statistics.get("num_device_alloc"),
        "device_frees": statistics.get("num_device_free"),
        "reports": len(progress.reports),
        "error": None if error is None else type(error).__name__,
    }
    if job["out"] and not is_cpu:
        snapshot = torch.cuda.memory._snapshot()
        shorten(snapshot, job["folder"])
        trace = snapshot["device_traces"][0]
        failed = [it["step"] for it in progress.reports if it["ooms"]]
        site = job["facts"]["site"]
        facts = {
            **job["facts"],
            "ooms": statistics["num_ooms"],
            "steps": len(progress.reports),
            "events": len(trace),
            "limit_bytes": limits[-1] if limits else None,
            "ended_by": line["error"],
            # The reports before the first out-of-memory error.
            "reports_before_oom": len(progress.reports) - len(failed) if statistics["num_ooms"] else None,
            # Events of the recording whose stack names the site.
            "site_events": sum(any(frame["name"] == site for frame in it.get("frames", [])) for it in trace),
            "reports": progress.reports,
            "gpu": torch.cuda.get_device_properties(0).name,
            "gpu_bytes": total,
            "pytorch": str(torch.__version__),
            "stats": statistics,
            "mem_get_info": list(torch.cuda.mem_get_info()),
        }
        line |= {"events": len(trace), "site_events": facts["site_events"]}
        line["file_bytes"] = save(job, snapshot, facts)
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
