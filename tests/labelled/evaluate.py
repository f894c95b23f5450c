#!/usr/bin/env python3
"""Compares what `vramscope diagnose` finds with the labels of the recordings.

    evaluate.py VRAMSCOPE [FOLDER...]     development, heldout and host by default

The first finding counts as right if it has the labelled problem and names one of the
labelled functions; a healthy recording must have none. Prints each recording that is
wrong. Exit status 1: fewer than 90% of a folder are right, or a healthy recording has
a finding.
"""

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
NEEDED = 0.9


def findings(vramscope, recording):
    """Returns the findings of a recording, the most serious first."""
    command = [str(vramscope), "diagnose", str(recording), "--json"]
    # Exit status 1 is a finding.
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        sys.exit(done.stderr)
    return json.loads(done.stdout)["findings"]


def is_right(label, found):
    """Returns True if the first finding agrees with the label."""
    if label["finding"] == "none" or not found:
        return label["finding"] == "none" and not found
    sites = label["sites"] or [label["site"]]
    names_site = any(site and site in found[0]["site"] for site in sites)
    return found[0]["id"] == label["finding"] and names_site


def evaluate(vramscope, folder):
    """Prints what is wrong in a folder; returns True if little enough is."""
    right, false_alarms = 0, 0
    recordings = sorted([*folder.glob("*.pickle.gz"), *folder.glob("*.vram")])
    for recording in recordings:
        name = recording.name.partition(".")[0]
        label = json.loads(recording.with_name(f"{name}.json").read_text())
        found = findings(vramscope, recording)
        if is_right(label, found):
            right += 1
            continue
        false_alarms += label["finding"] == "none"
        first = f"{found[0]['id']} at {found[0]['site']}" if found else "no finding"
        print(f"{name}: {first}, not {label['finding']} at {label['sites']}")
    print(f"{folder.name}: {right} of {len(recordings)} right", end="")
    print(f", {false_alarms} findings on healthy recordings")
    return right >= NEEDED * len(recordings) and not false_alarms


def main(arguments):
    folders = [Path(it) for it in arguments[1:]]
    folders = folders or [HERE / name for name in ("development", "heldout", "host")]
    good = [evaluate(arguments[0], folder) for folder in folders]
    return 0 if all(good) else 1


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
