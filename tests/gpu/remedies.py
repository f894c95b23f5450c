"""Checks on a GPU the remedies that `vramscope autopsy` and `vramscope diagnose` call checked.

    remedies.py VRAMSCOPE OUT [NAME...]

For each recording of tests/labelled (all unless named), applies each checked remedy to the program
that was recorded, and compares its reserved peak with that of the unchanged program. A remedy works
if the run ends without out of memory. Its saving must be within 10% of the claim, or, where nothing
is claimed to be saved, its peak.

Recordings that end in out of memory are explained by `autopsy --json`. Their unchanged program runs
without a cap, and all runs are as long as the simulation followed the program. Of the others, the
first finding of `diagnose --json` is applied.

Prints a table and writes OUT/remedies.json; exits with 1 if a remedy fails.
"""

import concurrent.futures
import json
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
LABELLED = HERE.parent / "labelled"
TOLERANCE = 0.1
JOBS = 4
# Programs whose result depends on what else is on the device, or that need most of it.
ALONE = {
    "oom_never_fits_1",
    "oom_outside_1",
    "oom_outside_2",
    "kept_oom_never_fits",
    "kept_oom_outside",
}
MEAN = "    return distances.mean().item()"
PAIRS = "distances = (points[:, None] - points[None]).square().sum(dim=-1)"
PAIRS_IN_PARTS = (
    "parts = points.chunk($parts)\n"
    "    distances = torch.cat([(it[:, None] - points[None]).square().sum(dim=-1) for it in parts])"
)
# Moves the tensors of a growing cache to the CPU.
CACHE_ON_CPU = (
    "        report(step)",
    "        known.update([(rows, it.cpu()) for rows, it in known.items()])\n        report(step)",
)
# How a user would apply a remedy to a program: text and its replacement. `$parts` is the number of
# parts that the remedy names; changes without it avoid the temporary.
CHANGES = {
    ("growth_cache_1", "growth.cache"): [CACHE_ON_CPU],
    ("growth_cache_2", "growth.cache"): [CACHE_ON_CPU],
    ("kept_growth_cache", "growth.cache"): [CACHE_ON_CPU],
    ("oom_leak_1", "free_earlier"): [
        ("        report(step)", "        kept.clear()\n        report(step)")
    ],
    ("oom_leak_2", "free_earlier"): [
        ("        report(step)", "        known.clear()\n        report(step)")
    ],
    ("oom_fragmentation_1", "free_earlier"): [
        ("    live[-1] =", "    live.clear()\n    live[-1] =")
    ],
    ("oom_fragmentation_2", "free_earlier"): [
        ("    live[-1] =", "    live.clear()\n    live[-1] =")
    ],
    ("oom_other_stream_1", "free_earlier"): [
        (
            "    values = do_round()",
            "    table = torch.zeros(0)\n    values = do_round()",
        )
    ],
    ("oom_private_pool_1", "release_pool"): [
        (
            "    values = visit()",
            "    del graph\n    torch.cuda.empty_cache()\n    values = visit()",
        )
    ],
    ("oom_pending_frees_1", "free_earlier"): [
        ("    try:\n", "    table = torch.zeros(0)\n    try:\n")
    ],
    ("oom_pending_frees_1", "synchronize"): [
        ("print(torch.cuda.memory_reserved())", "torch.cuda.synchronize()")
    ],
    ("oom_temporary_1", "avoid_temporary"): [(PAIRS, PAIRS_IN_PARTS)],
    ("oom_temporary_1", "avoid_temporary_whole"): [
        (PAIRS, "distances = torch.cdist(points, points)")
    ],
    ("kept_oom_temporary", "avoid_temporary"): [(PAIRS, PAIRS_IN_PARTS)],
    ("kept_oom_temporary", "avoid_temporary_whole"): [
        (PAIRS, "distances = torch.cdist(points, points)")
    ],
    ("kept_oom_leak", "free_earlier"): [
        (
            "        report(step)",
            "        score = float(score)\n        report(step)",
        )
    ],
    ("kept_oom_fragmentation", "free_earlier"): [
        ("    live[-1] =", "    live.clear()\n    live[-1] =")
    ],
    ("kept_oom_other_stream", "free_earlier"): [
        (
            "    values = forward_pass()",
            "    table = torch.zeros(0)\n    values = forward_pass()",
        )
    ],
    ("kept_oom_private_pool", "release_pool"): [
        (
            "    values = forward_pass()",
            "    del graph\n    torch.cuda.empty_cache()\n    values = forward_pass()",
        )
    ],
    ("kept_oom_pending_frees", "free_earlier"): [
        ("    values = advance()", "    table = torch.zeros(0)\n    values = advance()")
    ],
    ("kept_oom_pending_frees", "synchronize"): [
        ("print(torch.cuda.memory_reserved())", "torch.cuda.synchronize()")
    ],
    ("kept_oom_never_fits", "avoid_temporary"): [
        (
            f"    distances = torch.cdist(points, points)\n{MEAN}",
            "    return sum(torch.cdist(it, points).mean().item() for it in points.chunk($parts))",
        )
    ],
    ("oom_never_fits_1", "avoid_temporary"): [
        (
            f"    distances = points @ points.T\n{MEAN}",
            "    return sum((it @ points.T).mean().item() for it in points.chunk($parts))",
        )
    ],
    ("oom_never_fits_2", "avoid_temporary"): [
        (
            f"    distances = points.new_zeros(len(points), len(points))\n{MEAN}",
            (
                "    parts = points.chunk($parts)\n"
                "    return sum(points.new_zeros(len(it), len(points)).mean().item() for it in parts)"
            ),
        )
    ],
}


class NotApplicable(Exception):
    """No way is known to apply a remedy to a program."""


def replacements(changes, parts=None):
    """Returns the arguments of generate.py for changes of text; `parts` has the number of parts."""
    arguments = []
    for old, new in changes:
        if "$parts" in new:
            new = new.replace("$parts", parts[1])
        arguments += ["--replace", old, new]
    return arguments


def arguments_of(name, remedy):
    """Returns the arguments of generate.py that apply a remedy."""
    kind, detail = remedy["kind"], remedy["detail"]
    if kind == "setting":
        conf = detail.partition("PYTORCH_CUDA_ALLOC_CONF=")[2] if "=" in detail else ""
        return ["--alloc-conf", conf]
    if kind == "empty_cache":
        return ["--empty-cache-before"]
    if kind == "smaller_batch":
        return ["--batch-scale", str(1 / int(re.search(r"1/(\d+)", detail)[1]))]
    if kind == "checkpoint":
        return ["--checkpoint", "blocks"]
    if kind == "larger_cap":
        return ["--limit-bytes", str(remedy["peak_reserved_bytes"])]
    parts = re.search(r"in (\d+) parts", detail)
    if kind == "avoid_temporary" and parts is None:
        kind += "_whole"
    if (name, kind) in CHANGES:
        return replacements(CHANGES[name, kind], parts)
    raise NotApplicable(f"{name}: {kind}: {detail}")


def apply(name, arguments):
    """Runs a program with changes, and returns its line of results."""
    command = [sys.executable, LABELLED / "generate.py", "--apply", name, *arguments]
    done = subprocess.run(
        [str(it) for it in command], capture_output=True, text=True, check=False
    )
    try:
        return json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return {"failed": (done.stderr or done.stdout)[-500:]}


def labelled(name):
    """Returns the path of a recording, its label, and the option with the cap of its pool."""
    recording = next(LABELLED.glob(f"*/{name}.pickle.gz"))
    facts = json.loads(recording.with_name(f"{name}.json").read_text())
    limit = (
        []
        if facts["limit_bytes"] is None
        else ["--limit-bytes", str(facts["limit_bytes"])]
    )
    return recording, facts, limit


def autopsy(vramscope, name):
    """Returns the first failure of a recording and its label."""
    recording, facts, limit = labelled(name)
    command = [str(vramscope), "autopsy", str(recording), "--json", *limit]
    # Exit status 1 is a finding.
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(done.stdout)["ooms"][0], facts


def arguments_of_finding(name, finding):
    """Returns the arguments of generate.py that apply the remedy of a finding."""
    remedy = finding["remedy"]
    if remedy.startswith("Set PYTORCH_CUDA_ALLOC_CONF="):
        return ["--alloc-conf", remedy.partition("=")[2].split()[0]]
    if remedy.startswith("Omit "):
        return ["--alloc-conf", ""]
    if finding["id"] == "dominant.activations":
        return ["--checkpoint", "blocks"]
    if (name, finding["id"]) in CHANGES:
        return replacements(CHANGES[name, finding["id"]])
    # The labelled program without its mistake.
    return ["--fixed"]


def check_finding(vramscope, name):
    """Returns a row for the first finding of a recording, if its remedy is checked."""
    recording, facts, limit = labelled(name)
    command = [str(vramscope), "diagnose", str(recording), "--json", *limit]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    finding = next(iter(json.loads(done.stdout)["findings"]), None)
    if finding is None or not finding["checked"]:
        return []
    unchanged_peak = facts["stats"]["reserved_bytes.all.peak"]
    result = apply(name, arguments_of_finding(name, finding))
    saved, text = judged(finding, result, unchanged_peak)
    row = {
        "name": name,
        "cause": finding["id"],
        "kind": finding["id"],
        "detail": finding["remedy"],
        "claimed": finding["saves_bytes"],
        "unchanged_peak": unchanged_peak,
        "is_measured": True,
        "saved": saved,
        "result": text,
        "peak": result.get("peak_reserved"),
        "claimed_peak": finding["peak_reserved_bytes"],
    }
    return [row]


def judged(remedy, result, unchanged_peak):
    """Returns the measured saving of a remedy, and whether the claim holds."""
    peak = result.get("peak_reserved")
    if "failed" in result or peak is None:
        return None, result.get("failed", "no result")
    if result["ooms"] or result["error"]:
        return None, "out of memory"
    saved, claimed = unchanged_peak - peak, remedy["saves_bytes"]
    if claimed == 0:
        is_near = (
            abs(peak - remedy["peak_reserved_bytes"])
            <= TOLERANCE * remedy["peak_reserved_bytes"]
        )
    else:
        is_near = abs(saved - claimed) <= TOLERANCE * claimed
    return saved, "works" if is_near else "not within 10%"


def check(vramscope, name):
    """Returns a row for each checked remedy of a recording."""
    return check_failure(vramscope, name) if "oom_" in name else check_finding(vramscope, name)


def check_failure(vramscope, name):
    """Returns a row for each checked remedy of a recording that ends in out of memory."""
    oom, facts = autopsy(vramscope, name)
    length = []
    if oom["follows"] == "next_step":
        # Reports before the failure, the failed step and one more.
        length = ["--stop-after", str(facts["reports_before_oom"] + 2)]
    unchanged = apply(name, ["--limit-bytes", "0", *length])
    is_measured = "failed" not in unchanged and not unchanged["ooms"]
    # A request that no device can hold has no measured peak.
    unchanged_peak = (
        unchanged["peak_reserved"] if is_measured else oom["unchanged_peak_bytes"]
    )
    rows = []
    for remedy in (it for it in oom["remedies"] if it["checked"]):
        row = {
            "name": name,
            "cause": oom["cause"],
            "kind": remedy["kind"],
            "detail": remedy["detail"],
        }
        row |= {
            "claimed": remedy["saves_bytes"],
            "unchanged_peak": unchanged_peak,
            "is_measured": is_measured,
        }
        try:
            result = apply(name, [*arguments_of(name, remedy), *length])
            row["saved"], row["result"] = judged(remedy, result, unchanged_peak)
            row |= {
                "peak": result.get("peak_reserved"),
                "claimed_peak": remedy["peak_reserved_bytes"],
            }
        except NotApplicable as error:
            row |= {"saved": None, "result": f"cannot be applied: {error}"}
        rows.append(row)
    return rows


def mib(value):
    return "" if value is None else f"{value / (1 << 20):,.0f}"


def main(arguments):
    vramscope, out, names = arguments[0], Path(arguments[1]), arguments[2:]
    out.mkdir(parents=True, exist_ok=True)
    found = sorted(
        path.name.partition(".")[0]
        for path in LABELLED.glob("*/*.pickle.gz")
    )
    names = names or found
    together = [name for name in names if name not in ALONE]
    with concurrent.futures.ThreadPoolExecutor(JOBS) as executor:
        rows = [
            row
            for several in executor.map(lambda name: check(vramscope, name), together)
            for row in several
        ]
    for name in names:
        if name in ALONE:
            rows += check(vramscope, name)
    print(
        "recording                   remedy                     claimed MiB   saved MiB   result"
    )
    for row in rows:
        print(
            f"{row['name']:27} {row['kind']:26} {mib(row['claimed']):>11} {mib(row['saved']):>11}   {row['result']}"
        )
    bad = [row for row in rows if row["result"] != "works"]
    print(f"{len(rows)} remedies of {len(names)} recordings, {len(bad)} fail")
    (out / "remedies.json").write_text(json.dumps(rows, indent=1))
    return 1 if bad else 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
