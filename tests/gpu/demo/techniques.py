"""Measures every technique of the demo, and compares the host with a GPU.

    techniques.py VRAMSCOPE [--device cuda|host|both] [--out DIR] [--docs DIR] [--jobs N]

Runs `vramscope demo --compare BASELINE,TECHNIQUE` for each technique, at the device's own scale,
and prints a table of the effects. With a GPU, also runs each technique at the small scale on both
devices: the peak of requested bytes must be equal, and losses must agree. Each effect on the GPU
must have the sign and about the size of that in PyTorch, whose figures
examples/pytorch/run_all.py has written before. Writes results.json and the recordings of the
comparisons to DIR, with `both` to DIR/host and DIR/cuda. `--docs docs` also updates
docs/techniques.md. The exit status is 1 if a run fails, bytes differ, or demo and PyTorch disagree.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import techniques_page

MIB = 1 << 20
NOT_ON_HOST = {"allocator-async"}
# The host cannot record kernels: a replay computes again, and requests memory for it.
BYTES_MAY_DIFFER = {"graph-pools", "graph-pools-shared"}
# Combinations of techniques, and what they are compared with.
COMBINATIONS = (
    ("train", "checkpoint-blocks+mixed-bf16+adam-8bit"),
    ("train", "accumulate+free-early"),
    ("variable-lengths", "checkpoint-blocks+expandable-segments"),
    ("resnet", "resnet+mixed-bf16"),
    ("resnet", "resnet+adam-8bit+expandable-segments"),
    ("inference", "int8-weights+expandable-segments"),
)
# Losses of one program on two devices differ by rounding.
LOSS_TOLERANCE = 2e-3
# This mistake overwrites values on a GPU only: on the host, operations do not overlap.
LOSSES_MAY_DIFFER = {"no-record-stream"}


def demo(options, *arguments):
    """Runs `vramscope demo` and returns its reports, or the error."""
    command = [options.vramscope, "demo", *arguments, "--json"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    except subprocess.TimeoutExpired:
        return {"error": "stopped after 180 s"}
    if process.returncode != 0:
        return {"error": process.stderr.strip().splitlines()[-1] if process.stderr else "no message"}
    return {"reports": json.loads(process.stdout)["reports"]}


def compare_devices(options, name):
    """Runs a technique at the small scale on both devices and returns what differs."""
    reports = []
    for device in ("host", "cuda"):
        result = demo(options, "--technique", name, "--device", device, "--scale", "small")
        if "error" in result:
            return {"technique": name, "error": f"{device}: {result['error']}"}
        reports.append(result["reports"][0])
    host, cuda = reports
    differences = [abs(a - b) for a, b in zip(host["losses"], cuda["losses"], strict=True)]
    return {
        "technique": name,
        "host_requested_bytes": host["peak_requested_bytes"],
        "cuda_requested_bytes": cuda["peak_requested_bytes"],
        "largest_loss_difference": max(differences, default=0.0),
    }


def effect(options, device, folder, technique):
    """Runs a technique and its baseline and returns both reports."""
    name, baseline = technique["name"], technique["baseline"]
    recording = ["--record", str(folder / f"{name}.vram")]
    result = demo(options, "--compare", f"{baseline},{name}", "--device", device, *recording)
    return {"technique": name, "baseline": baseline, **result}


def show_effects(results):
    print(f"{'technique':<26} {'baseline':<18} {'peak MiB':>17} {'reserved MiB':>17} {'step ms':>15}")
    for result in results:
        if "error" in result:
            print(f"{result['technique']:<26} FAILED: {result['error']}")
            continue
        before, after = result["reports"]
        columns = [
            f"{before[key] / MIB:8.1f} {after[key] / MIB:8.1f}"
            for key in ("peak_allocated_bytes", "peak_reserved_bytes")
        ]
        times = f"{before['step_ms']:7.2f} {after['step_ms']:7.2f}"
        print(f"{result['technique']:<26} {result['baseline']:<18} {columns[0]} {columns[1]} {times}")


def show_devices(results):
    """Prints how the devices differ and returns the number of problems."""
    problems = 0
    for result in results:
        if "error" in result:
            problems += 1
            print(f"FAIL  {result['technique']}: {result['error']}")
            continue
        name, difference = result["technique"], result["largest_loss_difference"]
        host, cuda = result["host_requested_bytes"], result["cuda_requested_bytes"]
        is_equal = host == cuda or name in BYTES_MAY_DIFFER
        is_good = is_equal and (difference <= LOSS_TOLERANCE or name in LOSSES_MAY_DIFFER)
        problems += not is_good
        verdict = "PASS" if is_good else "FAIL"
        print(f"{verdict}  {name}: requested {host} and {cuda} B, losses differ by {difference:.2g}")
    return problems


def show_agreement(effects):
    """Prints how the effects agree with those in PyTorch and returns the number of problems."""
    examples = techniques_page.load_examples()
    if examples is None:
        print(f"FAIL  demo and PyTorch: {techniques_page.NO_FIGURES}")
        return 1
    measured = {it["technique"]: it["reports"] for it in effects if "error" not in it}
    outcomes = techniques_page.agreement(measured, examples)
    for it in outcomes:
        text = ": ".join(part for part in (it.text, it.problem) if part)
        print(f"{'FAIL' if it.problem else 'PASS'}  {it.name}: {text}")
    return sum(bool(it.problem) for it in outcomes)


def machine(device):
    """Returns the name of the first GPU, as nvidia-smi prints it, or the number of cores."""
    if device == "host":
        return f"{os.cpu_count()} cores"
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]


def measure(options, techniques, device, folder):
    """Measures all techniques on a device, writes the results to `folder`, and returns the number
    of problems."""
    folder.mkdir(parents=True, exist_ok=True)
    on_device = [it for it in techniques if device == "cuda" or it["name"] not in NOT_ON_HOST]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        compared = [it for it in on_device if it["baseline"] != it["name"]]
        effects = list(pool.map(lambda it: effect(options, device, folder, it), compared))
        combined = [{"baseline": baseline, "name": names} for baseline, names in COMBINATIONS]
        combinations = list(pool.map(lambda it: effect(options, device, folder, it), combined))
        show_effects(effects + combinations)
        devices = []
        if device == "cuda":
            names = [it["name"] for it in techniques if it["name"] not in NOT_ON_HOST]
            devices = list(pool.map(lambda name: compare_devices(options, name), names))
    problems = sum("error" in it for it in effects + combinations) + show_devices(devices)
    if device == "cuda":
        problems += show_agreement(effects)
    results = {
        "device": device,
        "machine": machine(device),
        "date": datetime.now(UTC).date().isoformat(),
        "effects": effects,
        "combinations": combinations,
        "devices": devices,
    }
    (folder / "results.json").write_text(json.dumps(results))
    if options.docs:
        techniques_page.update(options.vramscope, folder, options.docs)
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("vramscope", help="The vramscope binary")
    parser.add_argument("--device", choices=["cuda", "host", "both"], default="cuda")
    parser.add_argument("--out", type=Path, default=Path("techniques"), metavar="DIR")
    parser.add_argument("--docs", type=Path, metavar="DIR", help="Update DIR/techniques.md")
    parser.add_argument("--jobs", type=int, default=1, help="Runs at a time [default: 1]")
    options = parser.parse_args()
    listed = subprocess.run(
        [options.vramscope, "demo", "--list", "--json"], capture_output=True, text=True, check=True
    )
    techniques = json.loads(listed.stdout)["techniques"]
    if options.device == "both":
        folders = {device: options.out / device for device in ("host", "cuda")}
    else:
        folders = {options.device: options.out}
    problems = sum(measure(options, techniques, *it) for it in folders.items())
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
