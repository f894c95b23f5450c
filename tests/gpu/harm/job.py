#!/usr/bin/env python3
"""Runs one program of the harm matrix in this process, and what programs need for it.

    job.py NAME

``matrix.py`` starts it and sets the variables: `HARM_MODE` is how the program is watched,
`HARM_FOLDER` the folder of this run, and `HARM_DEVICE` the device. At the end of each process,
its peaks are written to that folder.
"""

import atexit
import faulthandler
import json
import os
import signal
import sys
import time

FOLDER = os.environ["HARM_FOLDER"]
MODE = os.environ["HARM_MODE"]
DEVICE = os.environ["HARM_DEVICE"]
#: Exit code of a program that lacks something, such as a package.
SKIPPED = 77
#: Counters that must equal those of the program without vramscope.
COUNTERS = (
    *(f"{kind}.all.peak" for kind in ("reserved_bytes", "allocated_bytes", "requested_bytes", "segment")),
    "reserved_bytes.small_pool.peak", "reserved_bytes.large_pool.peak", "num_alloc_retries", "num_ooms",
)
#: Longest wait for the command that attaches, in seconds.
TURN_LIMIT = 20

#: The phase of the command that attaches, after this process's last turn.
_phase = None


def path(name):
    return os.path.join(FOLDER, name)


def skip(reason):
    """Ends the program, which lacks something."""
    print(f"skipped: {reason}", flush=True)
    sys.exit(SKIPPED)


def start_process():
    """Prepares a process of the program; a worker that is spawned calls it, too."""
    import torch

    faulthandler.register(signal.SIGUSR1, file=open(path(f"stacks-{os.getpid()}.txt"), "w"), all_threads=True)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    if DEVICE == "cpu":
        torch.set_num_threads(1)
    if MODE == "pool":
        import vramscope

        vramscope.use_pool()


def begin():
    """Starts to watch, in a mode in which the program itself does so."""
    if MODE not in ("watch", "pool", "on_oom"):
        return
    import vramscope

    if MODE == "on_oom":
        vramscope.on_oom(path(f"{MODE}-{os.getpid()}.vram"))
    else:
        record = os.environ.get("HARM_RECORD", path(f"{MODE}-{os.getpid()}.vram"))
        vramscope.watch(listen="127.0.0.1:0", record=None if "VRAMSCOPE_RECORD" in os.environ else record)


def attachable():
    """Makes this process the one to attach to."""
    with open(path("target.part"), "w") as file:
        file.write(str(os.getpid()))
    os.rename(path("target.part"), path("target"))


def turn():
    """Waits until the command has attached or detached once more. Without it, does nothing."""
    global _phase
    if MODE != "attach":
        return
    with open(path("turns"), "ab") as file:
        file.write(b".")
    if _phase is None:
        _phase = _current_phase()
    deadline = time.monotonic() + TURN_LIMIT
    while _current_phase() <= _phase and time.monotonic() < deadline:
        time.sleep(0.005)
    _phase = _current_phase()


def _current_phase():
    try:
        return os.path.getsize(path("phases"))
    except FileNotFoundError:
        return 0


def counters():
    """Returns the counters of the allocator in use, by name."""
    import torch

    if DEVICE == "cpu" or not torch.cuda.is_initialized():
        return {}
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    return {name: stats[name] for name in COUNTERS if name in stats}


def peak_host_bytes():
    """Returns the largest resident memory that this process has had."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM:"))


def finish(role):
    """Writes the peaks of this process, which plays a part of the program."""
    with open(path(f"peaks-{role}.json"), "w") as file:
        json.dump({"counters": counters(), "host_bytes": peak_host_bytes()}, file)


def main():
    import training_steps

    # Each adds its programs.
    import training_programs
    import failure_programs

    start_process()
    attachable()
    # Also of a program that raises an error. Functions that are registered later run before.
    process = os.getpid()
    atexit.register(lambda: finish("main") if os.getpid() == process else None)
    try:
        training_steps.PROGRAMS[sys.argv[1]]()
    finally:
        # From here on, a recording ends with the process.
        open(path("ended"), "w").close()


if __name__ == "__main__":
    # Programs import this module.
    sys.modules["job"] = sys.modules["__main__"]
    main()
