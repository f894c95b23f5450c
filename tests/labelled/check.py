#!/usr/bin/env python3
"""Checks by PyTorch's own counters that each labelled recording shows its problem.

    check.py [FOLDER...]     by default the sets of programs that have recordings here

Reads NAME.json only, and uses none of vramscope's analyses. Exit status 1: a recording does not
show what its label says, or a remedy that was run did not help.
"""

import json
import sys
from pathlib import Path

from programs.catalog import SETS

HERE = Path(__file__).resolve().parent
MAX_FILE_BYTES = 150_000
# Recordings with many events may be larger.
MAX_BYTES_PER_EVENT = 25
# How each remedy that was run is measured, where not by the peak of allocated bytes.
MEASURES = {
    "fragmentation.near_failure": "peak_reserved",
    "fragmentation.oversize": "peak_reserved",
    "fragmentation.ignored_threshold": "peak_reserved",
    "pools.private": "peak_reserved",
    "pools.stranded": "peak_reserved",
    "pools.unused": "peak_reserved",
    "segments.empty_cache": "device_frees",
    "segments.recreated": "device_frees",
    "streams.pending": "peak_active",
    "waste.reserved": "peak_reserved",
    "waste.rounding": "peak_reserved",
    "waste.small_tensors": "peak_reserved",
}
# Factor that the measure must fall below with the remedy, where not 0.95. A healthy program that
# nearly has the finding must stay above 0.9.
HELPS_BELOW = {"waste.reserved": 0.85, "peak.optimizer_step": 0.85, "copies.weights": 0.9, "copies.optimizer": 0.9}
NEAR_STAYS_ABOVE = 0.85
COUNTERS = {
    "peak_allocated": "allocated_bytes.all.peak",
    "peak_reserved": "reserved_bytes.all.peak",
    "peak_active": "active_bytes.all.peak",
    "device_frees": "num_device_free",
}


def growth_per_step(facts):
    """Returns the median growth of allocated bytes a step, without the first two steps."""
    allocated = [report["allocated"] for report in facts["reports"]][1:]
    changes = sorted(later - earlier for earlier, later in zip(allocated, allocated[1:], strict=False))
    return changes[len(changes) // 2] if changes else 0


def is_level(facts):
    """Returns True if the allocated bytes do not grow, but for a cache that is cleared."""
    allocated = [report["allocated"] for report in facts["reports"]][2:]
    half = len(allocated) // 2
    falls_back = half and min(allocated[half:]) - min(allocated[:half]) < 1 << 20
    return abs(growth_per_step(facts)) < 1 << 20 or falls_back


def shows_problem(facts):
    """Returns True if the counters agree with the label."""
    finding, counters = facts["finding"], facts["stats"]
    peak = {name: counters[f"{name}_bytes.all.peak"] for name in ("allocated", "reserved", "active", "requested")}
    steady = facts["reports"][-1]["allocated"] if facts["reports"] else 0
    kind = finding.partition(".")[0]
    if kind == "none":
        # torch.cuda.graph empties the caches before it captures.
        frees = 0 if facts.get("near") == "pools.unused" else counters["num_device_free"]
        is_calm = facts["ooms"] == 0 and counters["num_alloc_retries"] == 0 and frees == 0
        return is_calm and is_level(facts)
    if kind == "growth":
        return facts["ooms"] == 0 and growth_per_step(facts) > 4 << 20
    if kind == "oom":
        return facts["ooms"] >= 1
    if finding == "fragmentation.near_failure":
        return facts["ooms"] == 0 and counters["num_alloc_retries"] >= 1
    if kind == "fragmentation":
        return peak["reserved"] > 4 * peak["allocated"]
    if kind == "segments":
        return counters["num_device_free"] >= 2 * facts["steps"]
    if kind == "streams":
        return peak["active"] > 1.5 * peak["allocated"]
    if finding == "waste.reserved":
        return facts["ooms"] == 0 and peak["reserved"] > 1.18 * peak["allocated"]
    if finding == "peak.optimizer_step":
        return facts["bytes"] > 0.17 * peak["allocated"] and peak["allocated"] > 1.1 * steady
    if kind == "copies":
        return facts["bytes"] > 0.1 * peak["allocated"]
    if kind == "kept":
        kept = facts["bytes"] or steady - facts["reports"][0]["allocated"]
        return kept > 0.2 * peak["allocated"] and steady > kept
    if finding in ("pools.unused", "pools.stranded"):
        return facts["bytes"] > 0.25 * peak["reserved"]
    if kind == "waste":
        return peak["reserved"] > 1.25 * peak["requested"]
    if kind == "pools":
        return peak["reserved"] > 1.5 * peak["allocated"]
    if kind == "outside":
        return facts["ooms"] >= 2
    if kind == "peak":
        return peak["allocated"] > 1.5 * steady
    if finding == "dominant.activations":
        return peak["allocated"] > 4 * steady
    return kind == "dominant"


def remedy_helps(facts):
    """Returns True if no remedy was run, or the run with the remedy is as it should be.

    It must be better, or, if the program only nearly has the finding, about the same.
    """
    result = facts.get("with_remedy")
    if result is None:
        return True
    finding = facts.get("near") or facts["finding"]
    # A program that looks for its batch size fails with its remedy, too.
    expects_oom = finding == "kept.exception"
    if "failed" in result or (result["ooms"] and not expects_oom):
        return False
    if facts["ooms"] and not expects_oom:
        return True
    measure = MEASURES.get(finding, "peak_allocated")
    share = result[measure] / facts["stats"][COUNTERS[measure]]
    if facts.get("near"):
        return share > NEAR_STAYS_ABOVE
    return share < HELPS_BELOW.get(finding, 0.95)


def problems(folder, name, entry):
    """Yields what is wrong with one recording."""
    path, recording = folder / f"{name}.json", folder / f"{name}.pickle.gz"
    if not path.exists() or not recording.exists():
        yield "has no recording"
        return
    facts = json.loads(path.read_text())
    program = entry.compose()
    if (program.finding, program.line, program.site) != (facts["finding"], facts["line"], facts["site"]):
        yield "was recorded from another version of its program"
    if not shows_problem(facts):
        yield f"does not show {facts['finding']}"
    if facts["finding"] != "none" and not facts["site_events"]:
        yield f"has no event whose stack names {facts['site']}"
    if not remedy_helps(facts):
        if facts.get("near"):
            yield f"is better with the remedy of {facts['near']}"
        else:
            yield f"is not better with its remedy: {facts['remedy']}"
    if recording.stat().st_size > max(MAX_FILE_BYTES, MAX_BYTES_PER_EVENT * facts["events"]):
        yield f"has {recording.stat().st_size} bytes"


def main(arguments):
    folders = [Path(it) for it in arguments] or [HERE / kind for kind in SETS if (HERE / kind).is_dir()]
    count, bad = 0, 0
    for folder in folders:
        for name, entry in SETS[folder.name].items():
            count += 1
            for problem in problems(folder, name, entry):
                bad += 1
                print(f"{folder.name}/{name} {problem}")
    print(f"{count} recordings, {bad} problems")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
