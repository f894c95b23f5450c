"""Runs every script with and without its technique, and checks the effect of each.

    run_all.py DIR [--only NAME,NAME] [--jobs N] [--device cuda|cpu] [--steps N] [--no-record]
               [--figures FILE] [--vramscope COMMAND]

Writes DIR/NAME-VARIANT.vram and DIR/results.json, and prints a table and all checks. `--figures`
also writes the figures of each variant to FILE, which docs/techniques.md is made of; figures of
scripts that are not run stay. The exit status is 1 if a script fails or a check does not pass. With
`--jobs` above 1, times mean little, and checks of times are skipped.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

from _checks import CHECKS, MIB, recording_checks
from _vramscope import add_command_option, table

HERE = Path(__file__).resolve().parent
VARIANTS = {
    "inference_no_grad": ("no_grad", "with_graph"),
    "empty_cache": ("after_warm_up", "every_step", "never"),
    "zero_gradients": ("to_zero", "to_none"),
    "mixed_precision": ("bf16", "f16", "fp32"),
    "loading": ("lazy", "generator", "eager"),
    "graph_pools": ("shared_pool", "own_pools"),
    "variable_lengths": (
        "expandable_segments", "max_split_size", "garbage_collection", "roundup_power2", "default",
    ),
    "allocators": ("caching", "cuda_malloc_async", "no_caching"),
    "optimizers": ("adamw", "adam", "sgd_momentum", "sgd"),
}  # fmt: skip
# vramscope follows PyTorch's caching allocator only.
NOT_RECORDED = {("allocators", "cuda_malloc_async"), ("allocators", "no_caching")}
# Longest time of one script. The slowest takes some seconds on a GPU.
TIMEOUT_S = {"cuda": 120, "cpu": 600}


def is_recorded(name, variant, options):
    return options.device == "cuda" and options.record and (name, variant) not in NOT_RECORDED


def examine(recording, command):
    """Returns what a recording's tables say: the share of bytes without a category at the peak, the
    number of spans named `step`, and the live bytes at the end by line and by category."""

    def device(by, at):
        return table(command, recording, by, at)["devices"][0]

    def live_bytes(by, at):
        return {row["name"]: row["bytes"] for row in device(by, at)["rows"] if row["bytes"]}

    at_peak = live_bytes("category", "peak")
    spans = {span["name"]: span["count"] for span in device("phase", "end")["spans"]}
    return {
        "unknown_share_at_peak": at_peak.get("unknown", 0) / sum(at_peak.values()),
        "steps": spans.get("step", 0),
        "end_bytes_by_line": live_bytes("line", "end"),
        "end_bytes_by_category": live_bytes("category", "end"),
    }


def run_script(name, variant, options):
    """Runs a script in a process of its own and returns its line of JSON, or the error."""
    option = "--mode" if name == "loading" else "--variant"
    command = [sys.executable, str(HERE / f"{name}.py"), option, variant]
    command += ["--device", options.device]
    if options.steps:
        command += ["--steps", str(options.steps)]
    record = options.folder / f"{name}-{variant}.vram"
    if is_recorded(name, variant, options):
        command += ["--record", str(record)]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    # Scripts that compare settings of the allocator set them, the others use the defaults.
    environment.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    environment.pop("PYTORCH_ALLOC_CONF", None)
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, env=environment,
            timeout=TIMEOUT_S[options.device], stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": f"stopped after {TIMEOUT_S[options.device]} s"}
    lines = process.stdout.splitlines()
    if process.returncode != 0 or not lines:
        return {"error": f"status {process.returncode}: {process.stderr[-2000:]}"}
    result = json.loads(lines[-1])
    # Warnings, such as vramscope's lines about a recording that is incomplete.
    result["messages"] = process.stderr[-2000:]
    result["recording_bytes"] = None
    if is_recorded(name, variant, options):
        result["recording_bytes"] = record.stat().st_size
        try:
            result["recording"] = examine(record, options.vramscope)
        except (OSError, subprocess.CalledProcessError) as error:
            result["messages"] += f"no tables of {record.name}: {error}"
    return result


def figures_of(result):
    """Returns the numbers of a script's line of JSON: memory, times, and the technique's own."""
    numbers = {name: value for name, value in result.items() if isinstance(value, (int, float))}
    # Not of the script, but of its recording.
    numbers.pop("recording_bytes", None)
    return numbers


def update_figures(path, results):
    """Writes the figures of `results` to a file. Those of other scripts stay if they are of the
    same GPU and PyTorch. A script with a variant that failed keeps its earlier figures."""
    complete = {
        name: variants
        for name, variants in results.items()
        if not any("error" in it for it in variants.values())
    }
    lines = [it for variants in complete.values() for it in variants.values()]
    if not lines:
        return
    # All scripts ran on this machine.
    machine = {key: lines[0][key] for key in ("gpu", "pytorch")}
    stored = json.loads(path.read_text()) if path.is_file() else {}
    if any(stored.get(key, value) != value for key, value in machine.items()):
        print(
            f"{path}: the figures of {stored['gpu']}, PyTorch {stored['pytorch']}, are dropped",
            file=sys.stderr,
        )
        stored = {}
    scripts = stored.get("scripts", {}) | {
        name: {variant: figures_of(it) for variant, it in variants.items()}
        for name, variants in complete.items()
    }
    stored = {"date": datetime.now(timezone.utc).date().isoformat(), **machine, "scripts": scripts}
    path.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")


def in_mib(value):
    return "-" if value is None else f"{value / MIB:.1f}"


def print_table(results):
    heads = ("peak MiB", "reserved", "end MiB", "step ms", "file KiB")
    print(f"{'script':20} {'variant':20} " + " ".join(f"{head:>9}" for head in heads))
    for name, variants in results.items():
        for variant, it in variants.items():
            if "error" in it:
                reason = it["error"].strip().splitlines()[-1][:100]
                print(f"{name:20} {variant:20} FAILED: {reason}")
                continue
            step = "-" if it["step_ms"] is None else f"{it['step_ms']:.2f}"
            size = "-" if it["recording_bytes"] is None else f"{it['recording_bytes'] / 1024:.1f}"
            memory = ("peak_allocated_bytes", "peak_reserved_bytes", "end_allocated_bytes")
            columns = [*(in_mib(it[key]) for key in memory), step, size]
            print(f"{name:20} {variant:20} " + " ".join(f"{column:>9}" for column in columns))


def print_checks(checks):
    words = {True: "PASS", False: "FAIL", None: "----"}
    for name, outcomes in checks.items():
        for it in outcomes:
            if it.get("is_skipped"):
                print(f"SKIP  {name}: {it['what']}: times mean little with --jobs above 1")
                continue
            value = "not measured" if it["value"] is None else f"measured {it['value']:.6g}"
            print(f"{words[it['passed']]}  {name}: {it['what']}: {value}, expected {it['bound']}")


def outcome_of(check, results, options):
    """Returns a check's outcome; times are not checked if several scripts ran at a time."""
    if check.is_of_times and options.jobs > 1:
        return {"what": check.what, "bound": check.bound(), "passed": None, "is_skipped": True}
    return check.evaluate(results)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", metavar="DIR", type=Path, help="Folder for the results")
    parser.add_argument("--only", metavar="NAMES", help="Scripts to run, separated by commas")
    parser.add_argument("--jobs", type=int, default=1, help="Scripts at a time [default: 1]")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--steps", type=int, help="Steps of each script [default: its own]")
    parser.add_argument("--no-record", dest="record", action="store_false", help="No recordings")
    parser.add_argument("--figures", metavar="FILE", type=Path, help="Also update this JSON file")
    add_command_option(parser)
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(CHECKS)
    unknown = sorted(set(names) - set(CHECKS))
    if unknown:
        parser.error(f"no script {', '.join(unknown)}: use {', '.join(CHECKS)}")
    options.names = names
    if options.figures and (options.device != "cuda" or options.jobs > 1 or options.steps):
        parser.error("--figures needs a GPU, one script at a time, and the scripts' own steps")
    return options


def main():
    options = arguments()
    options.folder.mkdir(parents=True, exist_ok=True)
    pairs = [
        (name, variant)
        for name in options.names
        for variant in VARIANTS.get(name, ("with", "without"))
    ]
    results = {name: {} for name in options.names}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        outcomes = pool.map(lambda pair: run_script(*pair, options), pairs)
        for (name, variant), result in zip(pairs, outcomes, strict=True):
            results[name][variant] = result
            print(f"{name} {variant}: {'failed' if 'error' in result else 'done'}", file=sys.stderr)
    all_checks = {name: list(CHECKS[name]) for name in options.names}
    for name, variant in pairs:
        if is_recorded(name, variant, options):
            all_checks[name] += recording_checks(name, variant)
    checks = {
        name: [outcome_of(check, results[name], options) for check in each]
        for name, each in all_checks.items()
    }
    with open(options.folder / "results.json", "w") as file:
        json.dump({"results": results, "checks": checks}, file, indent=1)
    if options.figures:
        update_figures(options.figures, results)
    print_table(results)
    print()
    print_checks(checks)
    every = [it for each in checks.values() for it in each]
    skipped = sum("is_skipped" in it for it in every)
    outcomes = [it["passed"] for it in every if "is_skipped" not in it]
    errors = sum("error" in it for each in results.values() for it in each.values())
    print(f"\n{outcomes.count(True)} checks passed, {outcomes.count(False)} failed,", end=" ")
    print(f"{outcomes.count(None)} not measured, {skipped} skipped; {errors} scripts failed")
    # On the CPU there are no figures of memory; on a GPU every check needs its figures.
    is_incomplete = options.device == "cuda" and None in outcomes
    return 1 if errors or False in outcomes or is_incomplete else 0


if __name__ == "__main__":
    sys.exit(main())
