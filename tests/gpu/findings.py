"""Checks `vramscope diagnose` and `vramscope diff` on programs that run on a GPU.

    findings.py VRAMSCOPE OUT [--set development|heldout] [NAME...]

Runs each program of tests/labelled again and compares:

- two runs of one program have the same findings, at the same calls;
- where the mistake is one line of the program, `diff` of the version without it and the version
  with it names that line first, or, if the line requests no memory itself, the function whose
  requests it affects.

Writes OUT/findings.json; exits with 1 if a check fails.
"""

import argparse
import concurrent.futures
import difflib
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
LABELLED = HERE.parent / "labelled"
sys.path.insert(0, str(LABELLED))

from generate import run  # noqa: E402
from programs.catalog import SETS  # noqa: E402
from programs.compose import Options  # noqa: E402

JOBS = 8


def report(command):
    """Returns the JSON of a command. Exit status 1 is a finding."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{command[:3]}: {done.stderr[-800:]}")
    return json.loads(done.stdout)


def findings(vramscope, recording):
    """Returns the id and the call of each finding."""
    found = report([vramscope, "diagnose", recording, "--json"])["findings"]
    return [(finding["id"], finding["site"]) for finding in found]


def changed_line(before, after):
    """Returns the file and numbers of the only line that differs, or None."""
    changes = []
    for file, text in after.files.items():
        old, new = before.files[file].splitlines(), text.splitlines()
        codes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        changes += [(file, code) for code in codes if code[0] != "equal"]
    if len(changes) != 1:
        return None
    file, (_, old_from, old_to, new_from, new_to) = changes[0]
    if old_to - old_from > 1 or new_to - new_from > 1:
        return None
    return file, old_from + 1, new_from + 1


def differences(vramscope, before, after):
    """Returns the stacks of all sites, those that differ first.

    A stack has pairs of file:line and function, the innermost first.
    """
    sites = report([vramscope, "diff", before, after, "--json"])["sites"]
    sites.sort(key=lambda site: site["delta_bytes"] == 0 and not site["is_first_difference"])
    return [[frame.rpartition("/")[2].split(" ", 1) for frame in site["stack"]] for site in sites]


def check(vramscope, out, kind, name):
    entry = SETS[kind][name]
    program = entry.compose(Options())
    again = out / "again"
    result = run(name, program, out=again, seed=entry.seed)
    if "failed" in result:
        return {"name": name, "failed": result["failed"]}
    recorded, recorded_again = LABELLED / kind / f"{name}.pickle.gz", again / f"{name}.pickle.gz"
    first, second = findings(vramscope, recorded), findings(vramscope, recorded_again)
    row = {"name": name, "findings": first, "again": second, "same": first == second}
    fixed = entry.compose(Options(fixed=True)) if program.has_fix else None
    line = changed_line(fixed, program) if fixed else None
    if line is not None:
        result = run(name, fixed, out=out / "fixed", seed=entry.seed)
        if "failed" not in result:
            file, old, new = line
            stacks = differences(vramscope, out / "fixed" / f"{name}.pickle.gz", recorded_again)
            frames = stacks[0] if stacks else []
            row |= {"changed": [file, old, new], "first_difference": frames}
            lines, functions = [[frame[part] for frame in frames] for part in (0, 1)]
            names = {f"{file}:{new}", f"{file}:{old}"}
            row["line_first"] = bool(names & set(lines))
            row["line_requests"] = any(frame[0] in names for frames in stacks for frame in frames)
            # An emptied cache changes no site's bytes.
            row["named_first"] = row["line_first"] or not frames or any(it in functions for it in program.sites)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("vramscope")
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--set", choices=list(SETS), default="development", dest="kind")
    options = parser.parse_args()
    for folder in ["again", "fixed"]:
        (options.out / folder).mkdir(parents=True, exist_ok=True)
    names = [name for name in SETS[options.kind] if not options.names or name in options.names]
    alone = [name for name in names if SETS[options.kind][name].compose(Options()).alone]

    def work(name):
        return check(options.vramscope, options.out, options.kind, name)

    with concurrent.futures.ThreadPoolExecutor(JOBS) as executor:
        rows = list(executor.map(work, [name for name in names if name not in alone]))
    rows += [work(name) for name in alone]
    failed = 0
    for row in rows:
        is_good = row.get("same", False) and row.get("named_first", True)
        failed += not is_good
        if not is_good:
            print(json.dumps(row))
    pairs = [row for row in rows if "named_first" in row]
    print(f"{sum(row.get('same', False) for row in rows)} of {len(rows)} have the same findings in two runs")
    lines, functions = [sum(row[key] for row in pairs) for key in ("line_first", "named_first")]
    requesting = [row for row in pairs if row["line_requests"]]
    print(f"of {len(pairs)} pairs, {lines} name the changed line first, {functions} it or its function")
    named = sum(row["line_first"] for row in requesting)
    print(f"the changed line requests memory in {len(requesting)}, and is named first in {named}")
    (options.out / "findings.json").write_text(json.dumps(rows, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
