#!/usr/bin/env python3
"""Runs programs with and without vramscope, and compares all that they do: the harm matrix.

    matrix.py COMMAND_FOLDER OUT [--jobs N] [--seconds N] [--programs A,B] [--modes A,B]
              [--device cpu]

COMMAND_FOLDER has the installed wheel, as `pip install --target COMMAND_FOLDER` leaves it: the
package `vramscope`, and the command in `bin`. Each program (training_programs.py,
failure_programs.py) runs twice without vramscope, and then under `vramscope run`, with `watch()`,
while `vramscope attach` attaches and detaches again and again, with `on_oom()`, and on the pool.
Exit code, output, losses and the allocator's peaks must be equal, host memory within 100 MB. In
further rows the recording cannot be written: a full disk, a read-only folder, a limit on file
sizes. `--programs` also takes the names of groups: `storage` for these rows, `alone` for the
programs that fill the GPU, and `crowd` for all others.

Writes `matrix.md` and `matrix.json` to OUT; exit status 1 if a cell failed. Cells for which no time
is left are listed as not run.
"""

import argparse
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import storage
from outcomes import HERE, MODES, Run, compare, unsteady

#: Seconds that one run may take.
LIMIT = 120
#: Programs that take long by themselves, and start first.
SLOW = ("compiled", "hf_trainer", "lightning", "many_models", "fork_before_cuda", "spawn")
SKIPPED = 77
#: The results of a cell. `refused`: vramscope refuses to start, with an error, before the program
#: does anything. `unsteady`: the program's output differs between runs without vramscope.
STATUSES = ("PASS", "FAIL", "refused", "unsteady", "skipped", "not run")
#: The name in `--programs` of the rows whose recording cannot be written.
STORAGE = "storage"


class Tool:
    """The command and the folder with the package."""

    def __init__(self, folder):
        self.package = os.path.abspath(folder)
        self.command = os.path.join(self.package, "bin", "vramscope")
        if not os.access(self.command, os.X_OK):
            sys.exit(f"no command {self.command}: install the wheel with pip install --target {folder}")


def attach_problem():
    """Returns why this user cannot attach to a process; None if it can."""
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope") as file:
            scope = int(file.read())
    except (OSError, ValueError):
        scope = 0
    if scope == 3 or (scope > 0 and os.geteuid() != 0):
        return f"no permission to attach (ptrace_scope is {scope})"
    with open("/proc/self/status") as file:
        capabilities = next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))
    if os.geteuid() == 0 and not capabilities >> 19 & 1:
        return "no permission to attach (root without CAP_SYS_PTRACE)"
    return None


def list_programs(device):
    """Returns the programs of a device, and those that run alone."""
    # Importing them here would use memory of the GPU for as long as this process runs.
    code = (
        "import json, training_programs, failure_programs, training_steps as t;"
        "print(json.dumps([list(t.PROGRAMS), sorted(t.ALONE), sorted(t.ON_GPU_ONLY)]))"
    )
    environment = os.environ | {"HARM_FOLDER": "", "HARM_MODE": "plain", "HARM_DEVICE": device, "PYTHONPATH": HERE}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(done.stderr)
    programs, alone, on_gpu_only = json.loads(done.stdout)
    return [name for name in programs if device == "cuda" or name not in on_gpu_only], alone


def free_threaded_row(tool):
    """Runs a free-threaded Python, if there is one, which must refuse the package in one line."""
    python = next(filter(None, (shutil.which(f"python3.{minor}t") for minor in range(13, 17))), None)
    if python is None:
        return {"program": "free-threaded Python", "mode": "import", "status": "skipped", "text": "none is installed"}
    done = subprocess.run(
        [python, "-c", "import vramscope"], capture_output=True, text=True, timeout=60,
        env=os.environ | {"PYTHONPATH": tool.package},
    )
    lines = [line for line in done.stderr.splitlines() if not line.startswith((" ", "Traceback"))]
    is_refused = done.returncode != 0 and len(lines) == 1
    return {
        "program": "free-threaded Python", "mode": "import", "status": "PASS" if is_refused else "FAIL",
        "text": " | ".join(lines)[:300],
    }


def row(program, mode, plain, again, found):
    """Returns a row of the table."""
    base = {"program": program, "mode": mode}
    if plain is None or again is None or found is None:
        return base | {"status": "not run", "text": "no time left"}
    if plain["exit"] == SKIPPED:
        return base | {"status": "skipped", "text": " ".join(plain["stdout"])}
    if plain["exit"] != 0:
        return base | {"status": "FAIL", "text": f"fails without vramscope: {plain['exit']} {plain['stderr'][-3:]}"}
    differences = compare(plain, again, found)
    varying = unsteady(plain, again)
    status = "FAIL" if differences else "unsteady" if {"exit", "stdout"} & {*varying} else "PASS"
    grown = {role: found["host_bytes"].get(role, 0) - value for role, value in plain["host_bytes"].items()}
    return base | {
        "status": status,
        "text": "; ".join(differences[:3]),
        "differences": differences,
        "events": found["events"],
        "cycles": found["cycles"],
        "host_mb": round(max(grown.values(), default=0) / 1e6),
        "seconds": found["seconds"],
        "unsteady": varying,
        "messages": [line for line in found["messages"] if "listening:" not in line][:5],
        "stacks": found["stacks"],
    }


def write(out, rows, header):
    with open(os.path.join(out, "matrix.json"), "w") as file:
        json.dump({"about": header, "rows": rows}, file, indent=1)
    counts = {status: sum(row["status"] == status for row in rows) for status in STATUSES}
    lines = [
        "# Harm matrix", "", header, "", ", ".join(f"{count} {status}" for status, count in counts.items()), "",
        "| program | mode | result | events | cycles | host MB | s | first difference, or what vramscope said |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        text = row["text"] or " / ".join(row.get("messages", ()))[:300]
        if row["status"] == "PASS" and "events" in row and not row["events"] and row["mode"] != "on_oom":
            text = f"nothing was recorded; {text}"
        if row.get("unsteady"):
            text += f" (not compared: {', '.join(row['unsteady'][:4])})"
        cells = [row["program"], row["mode"], row["status"]]
        cells += ["" if row.get(key) is None else row[key] for key in ("events", "cycles", "host_mb", "seconds")]
        lines.append("| " + " | ".join(str(cell) for cell in [*cells, text.replace("|", "\\|")]) + " |")
    with open(os.path.join(out, "matrix.md"), "w") as file:
        file.write("\n".join(lines) + "\n")
    print("\n".join(lines), flush=True)
    return counts["FAIL"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", metavar="COMMAND_FOLDER")
    parser.add_argument("out", metavar="OUT")
    parser.add_argument("--jobs", type=int, default=max(1, min(8, len(os.sched_getaffinity(0)) // 2)))
    parser.add_argument("--seconds", type=int, default=500)
    parser.add_argument("--programs")
    parser.add_argument("--modes")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    tool = Tool(options.folder)
    os.makedirs(options.out, exist_ok=True)
    work = tempfile.mkdtemp(prefix="harm-")
    programs, alone = list_programs(options.device)
    has_storage = not options.programs or STORAGE in options.programs.split(",")
    if options.programs:
        wanted = options.programs.split(",")
        programs = [name for name in programs if {name, "alone" if name in alone else "crowd"} & {*wanted}]
    modes = [mode for mode in MODES if not options.modes or mode in options.modes.split(",")]
    problem = attach_problem()
    run_modes = ["plain", "again", *(mode for mode in modes if mode != "attach" or problem is None)]

    def one(cell):
        program, mode = cell
        left = deadline - time.monotonic()
        if left < 20:
            return None
        folder = os.path.join(work, f"{program}-{mode}")
        own_mode = "plain" if mode == "again" else mode
        run = Run(tool, program, own_mode, folder, options.device, min(LIMIT, left - 10))
        outcome = run.outcome()
        print(f"{program} {mode}: {outcome['exit']} after {outcome['seconds']} s", file=sys.stderr, flush=True)
        return outcome

    crowd = sorted((name for name in programs if name not in alone), key=lambda name: name not in SLOW)
    cells = [(name, mode) for name in crowd for mode in run_modes]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as executor:
        outcomes = dict(zip(cells, executor.map(one, cells)))
        disk_rows = storage.rows(tool, options.device, work, deadline, executor) if has_storage else []
    for cell in [(name, mode) for name in programs if name in alone for mode in run_modes]:
        outcomes[cell] = one(cell)
    rows = []
    for program in programs:
        plain, again = outcomes[program, "plain"], outcomes[program, "again"]
        for mode in modes:
            if mode == "attach" and problem is not None:
                rows.append({"program": program, "mode": mode, "status": "skipped", "text": problem})
            else:
                rows.append(row(program, mode, plain, again, outcomes[program, mode]))
    rows += disk_rows + [free_threaded_row(tool)]
    failed = write(options.out, rows, header(options.device))
    shutil.rmtree(work, ignore_errors=True)
    sys.exit(failed > 0)


def header(device):
    code = (
        "import sys, torch; name = torch.cuda.get_device_name() if torch.cuda.is_available() else 'no GPU';"
        "print(f'PyTorch {torch.__version__}, Python {sys.version.split()[0]}, {name}')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return f"{done.stdout.strip()}, programs on {device}, {time.strftime('%Y-%m-%d')}"


if __name__ == "__main__":
    main()
