#!/usr/bin/env python3
"""Compares what `vramscope diagnose` finds with the labels of the recordings.

    evaluate.py VRAMSCOPE [FOLDER...]     all folders by default

The first finding counts as right if it has the labelled problem and names one of the
labelled functions; a healthy recording must have none, those of `verdicts` and
`libraries` none above the lowest severity. Prints each recording that is wrong, and the
findings about healthy ones by rule. Exit status 1: fewer than 90% of a folder are right,
or a healthy recording has a finding that it must not have.
"""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
NEEDED = 0.9


def findings(vramscope, recording):
    """Returns the findings of a recording, the most serious first."""
    command = [str(vramscope), "diagnose", str(recording), "--json"]
    # Exit status 1 is a finding, 3 is "cannot tell".
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1, 3):
        sys.exit(done.stderr)
    return json.loads(done.stdout)["findings"]


def is_right(label, found, permits_advice):
    """Returns True if the first finding agrees with the label.

    `permits_advice` tells whether a healthy recording may have findings of the lowest severity.
    """
    if label["finding"] == "none" and permits_advice:
        return all(one["severity"] == "low" for one in found)
    if label["finding"] == "none" or not found:
        return label["finding"] == "none" and not found
    sites = label["sites"] or [label["site"]]
    names_site = any(site and site in found[0]["site"] for site in sites)
    return found[0]["id"] == label["finding"] and names_site


def evaluate(vramscope, folder):
    """Prints what is wrong in a folder; returns True if little enough is."""
    right, false_alarms, advice = 0, 0, Counter()
    permits_advice = folder.name in ("verdicts", "libraries")
    recordings = sorted([*folder.glob("*.pickle.gz"), *folder.glob("*.vram")])
    for recording in recordings:
        name = recording.name.partition(".")[0]
        label = json.loads(recording.with_name(f"{name}.json").read_text())
        found = findings(vramscope, recording)
        if label["finding"] == "none":
            advice.update(one["id"] for one in found)
        if is_right(label, found, permits_advice):
            right += 1
            continue
        false_alarms += label["finding"] == "none"
        first = f"{found[0]['id']} at {found[0]['site']}" if found else "no finding"
        print(f"{name}: {first}, not {label['finding']} at {label['sites']}")
    print(f"{folder.name}: {right} of {len(recordings)} right", end="")
    print(f", {false_alarms} false alarms on healthy recordings")
    for rule, number in sorted(advice.items()):
        print(f"  {rule}: {number} on healthy recordings")
    return right >= NEEDED * len(recordings) and not false_alarms


def main(arguments):
    folders = [Path(it) for it in arguments[1:]]
    folders = folders or [HERE / name for name in ("development", "heldout", "host", "verdicts", "libraries")]
    good = [evaluate(arguments[0], folder) for folder in folders]
    return 0 if all(good) else 1


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
