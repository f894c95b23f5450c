"""Programs whose recording cannot be written: only the recording may be lost, never the job."""

import contextlib
import os
import resource
import subprocess
import time

from outcomes import Run, compare

#: Size of a disk that is full at once, in bytes. All modes record to it at the same time.
DISK_BYTES = 12 << 10
#: Size that a file may have, in bytes.
FILE_BYTES = 4 << 10
LIMIT = 120
#: How the program is watched. The command that attaches writes the recording itself.
MODES = ("run", "watch", "attach", "pool")


@contextlib.contextmanager
def mounted(folder, *options):
    """Mounts a file system in memory; yields None, or why that is not possible."""
    os.makedirs(folder)
    done = subprocess.run(["mount", "-t", "tmpfs", *options, "harm", folder], capture_output=True, text=True)
    if done.returncode != 0:
        yield f"cannot mount: {done.stderr.strip()[:120]}"
        return
    try:
        yield None
    finally:
        subprocess.run(["umount", "--lazy", folder], check=False)


def _limit_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))


def rows(tool, device, work, deadline, executor):
    """Returns the rows of the table: each place of the recording, in each mode."""
    plain = {}

    def run(mode, name, record=None, variable="HARM_RECORD", **options):
        left = deadline - time.monotonic()
        if left < 20:
            return None
        run = Run(tool, "training", mode, os.path.join(work, f"disk-{name}-{mode}"), device, min(LIMIT, left - 10))
        if record:
            run.record_folder = record
            run.environment[variable] = os.path.join(record, f"{mode}-{variable}.vram")
        return run.outcome(**options)

    def row(name, mode, record, **options):
        found = run(mode, name, record, **options)
        base = {"program": name, "mode": mode}
        if found is None or plain["outcome"] is None:
            return base | {"status": "not run", "text": "no time left"}
        # The command that attaches reports what it cannot write; the job does not notice.
        refusals = found.pop("attach_errors")
        differences = compare(plain["outcome"], plain["outcome"], found | {"attach_errors": []})
        has_not_begun = not found["stdout"] and (mode == "run" or "WatchError" in "".join(found["stderr"]))
        is_refused = has_not_begun or refusals and not differences
        differences += refusals[:1]
        status = "PASS" if not differences else "refused" if is_refused else "FAIL"
        return base | {
            "status": status, "text": "; ".join(differences[:3]),
            "differences": differences, "seconds": found["seconds"], "stacks": found["stacks"],
            "messages": [line for line in found["messages"] if "listening:" not in line][:5],
        }

    plain["outcome"] = run("plain", "plain")
    found = []
    full, read_only = os.path.join(work, "full"), os.path.join(work, "read-only")
    with mounted(full, "-o", f"size={DISK_BYTES}") as full_problem, mounted(read_only, "-o", "ro") as read_problem:
        # The write permission does not matter to root, but it is all that another user can change.
        if read_problem and os.geteuid() != 0:
            os.chmod(read_only, 0o555)
            read_problem = None
        cells = []
        for name, folder, problem in (("full disk", full, full_problem), ("read-only folder", read_only, read_problem)):
            if problem:
                found.append({"program": name, "mode": "all", "status": "skipped", "text": problem})
                continue
            cells += [(name, mode, folder, {}) for mode in MODES]
            cells.append((f"{name}, VRAMSCOPE_RECORD", "watch", folder, {"variable": "VRAMSCOPE_RECORD"}))
        for mode in ("run", "watch", "pool"):
            cells.append(("limit on file sizes", mode, None, {"preexec_fn": _limit_files}))
        found += executor.map(lambda cell: row(*cell[:3], **cell[3]), cells)
    return found
