#!/usr/bin/env python3
"""Records PyTorch programs with a known memory problem, or applies a remedy to one of them.

    generate.py OUT [--set development|heldout|verdicts|kinds] [--only NAME] [--seed N] [--jobs N]
                [--verify]
    generate.py --apply NAME [--alloc-conf CONF] [--batch-scale X] [--checkpoint blocks] ...
    generate.py --show NAME | --list

Recording writes OUT/NAME.pickle.gz and OUT/NAME.json for each program, each run in a process of
its own. `--apply` runs one program again with changes, without a recording, and prints its peaks
as JSON. Needs an NVIDIA GPU and PyTorch 2.11; `--device cpu` only checks that the programs run.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from programs.catalog import SETS, find
from programs.compose import Options

HERE = Path(__file__).resolve().parent
TIMEOUT_SECONDS = 300
# The remedy of a finding, which must not help a healthy program that nearly has it.
NEAR_REMEDIES = {"waste.reserved": "expandable_segments:True"}
# Fields of `Program` that NAME.json has.
FACTS = """
    label finding site sites line line_function bytes remedy family defect near late_history max_entries
""".split()


def run(
    name, program, device="cuda", out=None, conf=None, seed=None, empty_cache_after=None, limit_bytes=None,
    stop_after=None,
):
    """Runs a program in a process of its own, and returns its line of results.

    `limit_bytes` replaces the program's cap of the pool; 0 removes it. The program ends after
    `stop_after` reports.
    """
    conf = program.conf if conf is None else conf
    facts = {key: getattr(program, key) for key in FACTS}
    facts |= {"conf": conf, "seed": seed, "has_fix": program.has_fix}
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": conf, "PYTHONPATH": str(HERE)}
    environment.pop("PYTORCH_ALLOC_CONF", None)
    if empty_cache_after is not None:
        environment["LABELLED_EMPTY_CACHE_AFTER"] = str(empty_cache_after)
    if stop_after is not None:
        environment["LABELLED_STOP_AFTER"] = str(stop_after)
    with tempfile.TemporaryDirectory() as folder:
        folder = os.path.realpath(folder)
        for file, text in program.files.items():
            Path(folder, file).write_text(text)
        job = {"folder": folder, "name": name, "out": out and str(out), "facts": facts, "device": device}
        job["limit_bytes"] = limit_bytes
        path = Path(folder, "job.json")
        path.write_text(json.dumps(job))
        command = [sys.executable, str(HERE / "recorder.py"), str(path)]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return {"name": name, "failed": f"no end after {TIMEOUT_SECONDS} s"}
    if done.returncode != 0:
        return {"name": name, "failed": (done.stderr or done.stdout)[-1500:]}
    return json.loads(done.stdout.strip().splitlines()[-1])


@dataclass(frozen=True)
class Remedy:
    """How a remedy changes a run: arguments of `Options`, settings, and whether to empty caches."""

    changes: dict = field(default_factory=dict)
    conf: str | None = None
    empties_cache: bool = False


def remedy_of(program):
    """Returns how to apply the program's remedy, or that of the finding that it nearly has."""
    words = program.remedy or NEAR_REMEDIES.get(program.near, "")
    if words == "expandable_segments:True":
        return Remedy(conf=words)
    if words == "checkpoint blocks":
        return Remedy({"checkpoint": True})
    if words == "smaller batch":
        return Remedy({"batch_scale": 0.1})
    if words == "empty_cache before":
        return Remedy(empties_cache=True)
    if words.startswith("no ") and program.conf:
        return Remedy(conf="expandable_segments:True" if "expandable" in program.conf else "")
    return Remedy({"fixed": True}) if program.has_fix else None


def verify(options, name, entry, seed):
    """Runs a recorded program with its remedy, and adds the result to NAME.json."""
    plain = Options(options.batch_scale, device=options.device)
    program = entry.compose(plain, seed)
    remedy = remedy_of(program)
    path = Path(options.out, f"{name}.json")
    if remedy is None or not path.exists():
        return []
    facts = json.loads(path.read_text())
    after = facts["reports_before_oom"] if remedy.empties_cache else None
    changed = entry.compose(replace(plain, **remedy.changes), seed)
    result = run(name, changed, options.device, conf=remedy.conf, empty_cache_after=after)
    facts["with_remedy"] = {key: value for key, value in result.items() if key != "name"}
    path.write_text(json.dumps(facts, indent=1))
    return [{"remedy": program.remedy, **result}]


def record(options, kind):
    """Records the programs of a set. Returns True if all ran."""
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    entries = {name: it for name, it in SETS[kind].items() if not options.only or name in options.only}
    seeds = {name: it.seed if options.seed is None else options.seed for name, it in entries.items()}
    plain = Options(options.batch_scale, device=options.device)
    composed = {name: it.compose(plain, seeds[name]) for name, it in entries.items()}

    def work(name):
        results = []
        if not options.verify_only:
            results.append(run(name, composed[name], options.device, out, seed=seeds[name]))
        if options.verify or options.verify_only:
            results += verify(options, name, entries[name], seeds[name])
        return results

    together = [name for name in composed if not composed[name].alone]
    alone = [name for name in composed if composed[name].alone]
    results = []

    def collect(several):
        for result in several:
            print(json.dumps(result), flush=True)
            results.append(result)

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as executor:
        for several in executor.map(work, together):
            collect(several)
    for name in alone:
        collect(work(name))
    return not any("failed" in it for it in results)


def replace_text(program, old, new):
    """Replaces text that occurs once in a program's files. `\\n` stands for the end of a line."""
    old, new = (text.replace("\\n", "\n") for text in (old, new))
    files = [name for name, text in program.files.items() if text.count(old) == 1]
    if len(files) != 1:
        raise SystemExit(f"cannot replace {old!r}: it does not occur once in the program")
    program.files[files[0]] = program.files[files[0]].replace(old, new)


def apply(options):
    """Runs one program with changes, and prints its peaks."""
    kind, entry = find(options.apply)
    if options.checkpoint not in (None, "blocks"):
        raise SystemExit(f"cannot checkpoint {options.checkpoint}: only blocks can be checkpointed")
    changes = Options(options.batch_scale, options.checkpoint is not None, options.fixed, options.device)
    program = entry.compose(changes, options.seed)
    after = None
    if options.empty_cache_before:
        path = HERE / kind / f"{options.apply}.json"
        after = json.loads(path.read_text())["reports_before_oom"]
        if not after:
            raise SystemExit(f"cannot empty the caches before the failure: {path} has no step before a failure")
    for old, new in options.replace or []:
        replace_text(program, old, new)
    result = run(
        options.apply,
        program,
        options.device,
        conf=options.alloc_conf,
        empty_cache_after=after,
        limit_bytes=options.limit_bytes,
        stop_after=options.stop_after,
    )
    print(json.dumps(result))
    return "failed" not in result


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("out", nargs="?", metavar="OUT", help="Folder for the recordings")
    parser.add_argument("--set", choices=list(SETS), action="append", help="Set of programs [default: all]")
    parser.add_argument("--only", metavar="NAME", action="append", help="Record only this program; repeatable")
    parser.add_argument("--seed", type=int, help="Seed in place of the catalog's")
    parser.add_argument("--jobs", type=int, default=4, help="Programs at a time [default: %(default)s]")
    parser.add_argument("--verify", action="store_true", help="Run each program with its remedy, too")
    parser.add_argument("--verify-only", action="store_true", help="Verify the recordings that OUT has")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--apply", metavar="NAME", help="Run this program with the changes below")
    parser.add_argument("--alloc-conf", metavar="CONF", help="Allocator settings")
    parser.add_argument("--batch-scale", type=float, default=1.0, metavar="X", help="Factor for batch sizes")
    parser.add_argument("--checkpoint", metavar="MODULE", help="Checkpoint the model's blocks")
    parser.add_argument("--empty-cache-before", action="store_true", help="Empty the caches before the failure")
    parser.add_argument("--limit-bytes", type=int, metavar="N", help="Other cap of the pool; 0: none")
    parser.add_argument("--stop-after", type=int, metavar="N", help="End the program after N reports")
    parser.add_argument(
        "--replace", nargs=2, action="append", metavar=("OLD", "NEW"), help="Change the program's text; repeatable"
    )
    parser.add_argument("--fixed", action="store_true", help="Run without the mistake")
    parser.add_argument("--show", metavar="NAME", help="Print the program's source")
    parser.add_argument("--list", action="store_true", help="List names and labels")
    options = parser.parse_args()
    if options.list:
        for kind, entries in SETS.items():
            for name, entry in entries.items():
                print(f"{kind}: {name}: {entry.compose().label}")
        return 0
    if options.show:
        changes = Options(options.batch_scale, options.checkpoint is not None, options.fixed, options.device)
        program = find(options.show)[1].compose(changes, options.seed)
        for file, text in program.files.items():
            print(f"# {file}\n{text}")
        print(f"# {program.finding}: {program.site}: {program.line}")
        return 0
    if options.apply:
        return 0 if apply(options) else 1
    if options.out is None:
        parser.error("OUT is required")
    is_good = True
    for kind in options.set or SETS:
        is_good = record(options, kind) and is_good
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
