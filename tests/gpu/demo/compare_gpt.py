"""Compares the demo's GPT with PyTorch's: time of a step, peak of memory, and losses.

    compare_gpt.py GPT [--turns N] [--steps N] [--out FILE]

GPT is the example `gpt` of `vramscope-demo`. Both train from equal weights and tokens, one after
the other, in turns. Under bf16, PyTorch computes the softmax in float32 and keeps it twice; the
precision `bf16, softmax too` keeps it in bf16, as the demo does. The exit status is 1 if a target
is missed: a step within 1.5 times PyTorch's, a peak that is not higher, and losses within 1e-3
(fp32 and tf32) or 2e-2 (bf16).
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

REFERENCE = Path(__file__).resolve().parents[3] / "examples" / "pytorch" / "compare_gpt.py"
MAX_RATIO = 1.5
# Name, precision of both, options of PyTorch's program, and the largest difference of losses.
CASES = (
    ("fp32", "fp32", (), 1e-3),
    ("tf32", "tf32", (), 1e-3),
    ("bf16", "bf16", (), 2e-2),
    ("bf16, softmax too", "bf16", ("--low-precision-softmax",), 2e-2),
)


def run(*command):
    """Runs a program and returns its JSON."""
    process = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    if process.returncode != 0:
        raise SystemExit(f"{command[0]} failed: {process.stderr.strip()[-2000:]}")
    return json.loads(process.stdout)


def compare(options, folder, case):
    """Returns the figures of one precision, and prints them with PASS or FAIL."""
    name, precision, reference_options, tolerance = case
    common = ("--precision", precision, "--steps", str(options.steps))
    demos, references = [], []
    for _ in range(options.turns):
        demos.append(run(options.gpt, "--device", "cuda", *common))
        files = (str(folder / "weights.safetensors"), str(folder / "tokens.bin"))
        references.append(run(sys.executable, str(REFERENCE), *files, *common, *reference_options))
    times = [[it["step_ms"] for it in results] for results in (demos, references)]
    demo_ms, torch_ms = (statistics.median(it) for it in times)
    peaks = [results[0]["peak_allocated_bytes"] for results in (demos, references)]
    losses = zip(demos[0]["losses"], references[0]["losses"], strict=True)
    difference = max(abs(a - b) for a, b in losses)
    ratio = demo_ms / torch_ms
    passed = ratio <= MAX_RATIO and peaks[0] <= peaks[1] and difference <= tolerance
    spread = ", ".join(f"{min(it):.2f} to {max(it):.2f}" for it in times)
    print(
        f"{'PASS' if passed else 'FAIL'}  {name}: {demo_ms:.2f} ms against {torch_ms:.2f} ms "
        f"({ratio:.2f}; {spread}), peak {peaks[0] / 1e6:,.0f} against {peaks[1] / 1e6:,.0f} MB, "
        f"losses differ by {difference:.2g} (at most {tolerance:g})",
        flush=True,
    )
    return {
        "precision": name,
        "demo_ms": times[0],
        "torch_ms": times[1],
        "ratio": ratio,
        "demo_peak_bytes": peaks[0],
        "torch_peak_bytes": peaks[1],
        "loss_difference": difference,
        "passed": passed,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gpt", help="The example gpt of vramscope-demo")
    parser.add_argument("--turns", type=int, default=3, help="Runs of each program [default: 3]")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--out", type=Path, metavar="FILE", help="Write the figures here, as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # Writes the weights and tokens that all runs train with.
        run(options.gpt, "--device", "cuda", "--steps", str(options.steps), "--write", folder)
        results = [compare(options, Path(folder), case) for case in CASES]
    if options.out:
        options.out.write_text(json.dumps(results))
    return 0 if all(it["passed"] for it in results) else 1


if __name__ == "__main__":
    sys.exit(main())
