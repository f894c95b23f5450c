"""Writes measured figures and pictures of the demo's techniques to docs/techniques.md.

    techniques_page.py VRAMSCOPE RESULTS [--docs DIR]

RESULTS is a folder that techniques.py wrote. Its figures replace those of the same device in
DIR/techniques.json; those of other devices stay. A picture of each technique goes to
DIR/images/techniques, drawn from the GPU's recordings where there are some. In DIR/techniques.md,
the text between `<!-- figures: NAME -->` and `<!-- end of figures -->` is replaced.
"""

import argparse
import functools
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "pytorch"
# Columns in their order: the device's key in results.json, and its heading.
DEVICES = {"host": "host", "cuda": "GPU"}
# For each technique its script in examples/pytorch, the variant with it, and the one without.
EXAMPLE_OF = {
    "keep-outputs": ("keep_outputs", "with", "without"),
    "keep-loss": ("keep_loss", "with", "without"),
    "growing-list": ("growing_list", "with", "without"),
    "free-early": ("free_early", "with", "without"),
    "empty-cache-after-warm-up": ("empty_cache", "after_warm_up", "never"),
    "empty-cache-every-step": ("empty_cache", "every_step", "never"),
    "release-memory": ("release_memory", "with", "without"),
    "offload": ("offload", "with", "without"),
    "accumulate": ("accumulate", "with", "without"),
    "gradients-kept": ("gradients_kept", "with", "without"),
    "zero-gradients": ("zero_gradients", "to_zero", "to_none"),
    "checkpoint-blocks": ("checkpoint_blocks", "with", "without"),
    "checkpoint-layers": ("checkpoint_layers", "with", "without"),
    "mixed-bf16": ("mixed_precision", "bf16", "fp32"),
    "mixed-f16": ("mixed_precision", "f16", "fp32"),
    "adam-8bit": ("adam_8bit", "with", "without"),
    "sgd": ("optimizers", "sgd_momentum", "adamw"),
    "adam": ("optimizers", "adam", "adamw"),
    "expandable-segments": ("variable_lengths", "expandable_segments", "default"),
    "max-split": ("variable_lengths", "max_split_size", "default"),
    "garbage-collection": ("variable_lengths", "garbage_collection", "default"),
    "roundup": ("variable_lengths", "roundup_power2", "default"),
    "allocator-async": ("allocators", "cuda_malloc_async", "caching"),
    "allocator-driver": ("allocators", "no_caching", "caching"),
    "in-place": ("in_place", "with", "without"),
    "inference-with-graph": ("inference_no_grad", "with_graph", "no_grad"),
    "int8-weights": ("int8_weights", "with", "without"),
    "kv-cache": ("kv_cache", "with", "without"),
    "loading-generator": ("loading", "generator", "eager"),
    "loading-lazy": ("loading", "lazy", "eager"),
    "pinned-staging": ("pinned_staging", "with", "without"),
    "batch-search": ("batch_search", "with", "without"),
    "record-stream": ("record_stream", "with", "without"),
    "graph-pools-shared": ("graph_pools", "shared_pool", "own_pools"),
}
# Only the pool is recorded: there is nothing to draw for other allocators.
NOT_RECORDED = {"allocator-async", "allocator-driver"}
# Figures of a run: key in results.json, and the name of the row.
ALWAYS_SHOWN = {
    "peak_allocated_bytes": "peak allocated",
    "peak_reserved_bytes": "peak reserved",
    "end_allocated_bytes": "allocated at the end",
    "end_reserved_bytes": "reserved at the end",
}
SHOWN_IF_CHANGED = {
    "activation_bytes": "activations",
    "optimizer_bytes": "optimizer state",
    "parameter_bytes": "parameters",
    "device_allocations": "allocations by the device",
}
STEP_TIME = "step_ms"
STORED = (*ALWAYS_SHOWN, *SHOWN_IF_CHANGED, "peak_requested_bytes", STEP_TIME)
BLOCK = re.compile(r"(<!-- figures: (\S+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)


def run(*command):
    """Runs a command and returns what it prints."""
    done = subprocess.run([str(it) for it in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def size(count):
    """Returns a number of bytes with its unit."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            value = count / factor
            # Three digits, and all digits of 1000 to 1023.
            return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"
    return f"{count} B"


@functools.cache
def recorded_peaks(command, script, variant):
    """Returns the peaks of a script's recording, or None without one. Techniques share some."""
    file = EXAMPLES / "recordings" / f"{script}-{variant}.vram"
    if not file.is_file():
        return None
    device = json.loads(run(command, "info", file, "--json"))["devices"][0]
    return {key: device[key] for key in ("peak_allocated_bytes", "peak_reserved_bytes")}


def pytorch_figures(command, name):
    """Returns the peaks of the technique's script in PyTorch, or None without recordings."""
    script, variant, plain = EXAMPLE_OF[name]
    peaks = [recorded_peaks(command, script, it) for it in (plain, variant)]
    return {"before": peaks[0], "after": peaks[1]} if all(peaks) else None


def update(command, results_folder, docs):
    """Updates the JSON file, the pictures and the page with the results in `results_folder`."""
    results = json.loads((results_folder / "results.json").read_text())
    path = docs / "techniques.json"
    stored = json.loads(path.read_text()) if path.is_file() else {"measured": {}, "techniques": {}}
    device = results["device"]
    stored["measured"][device] = {"date": results["date"], "name": results["machine"]}
    for effect in results["effects"]:
        if "error" in effect:
            continue
        name, baseline = effect["technique"], effect["baseline"]
        entry = stored["techniques"].setdefault(name, {})
        entry["baseline"] = baseline
        before, after = (
            {key: report[key] for key in STORED if key in report} for report in effect["reports"]
        )
        entry[device] = {"before": before, "after": after}
        entry["pytorch"] = pytorch_figures(command, name)
        picture = docs / "images" / "techniques" / f"{name}.svg"
        if name not in NOT_RECORDED and (device == "cuda" or "cuda" not in entry):
            files = [results_folder / f"{name}-{part}.vram" for part in (f"1-{baseline}", f"2-{name}")]
            picture.parent.mkdir(parents=True, exist_ok=True)
            run(command, "report", *files, "-o", picture)
    path.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")
    page = docs / "techniques.md"
    filled = BLOCK.sub(lambda it: it[1] + block(stored, it[2]) + it[3], page.read_text())
    page.write_text(filled)


def block(stored, name):
    """Returns the lines between the markers of `name`."""
    if name == "overview":
        return overview(stored)
    entry = stored["techniques"].get(name)
    if not entry:
        return ""
    return picture(name, entry) + figures(name, entry) + pytorch(name, entry)


def overview(stored):
    """Returns the table of all techniques, measured on the GPU."""
    lines = [
        "| technique | compared with | peak allocated | peak reserved | time of a step |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for name in EXAMPLE_OF:
        entry = stored["techniques"].get(name)
        if not entry or "cuda" not in entry:
            continue
        before, after = entry["cuda"]["before"], entry["cuda"]["after"]
        cells = [f"[{name}](#{name})", entry["baseline"]]
        cells += [f"{size(before[key])} → {size(after[key])}" for key in list(ALWAYS_SHOWN)[:2]]
        cells.append(f"{before[STEP_TIME]:.2f} → {after[STEP_TIME]:.2f} ms")
        lines.append(f"| {' | '.join(cells)} |")
    measured = stored["measured"].items()
    machines = (f"{DEVICES[key]} ({it['name']}, {it['date']})" for key, it in sorted(measured))
    return "\n".join(lines) + f"\n\nMeasured on {' and '.join(machines)}.\n"


def picture(name, entry):
    """Returns the line that shows the technique's picture."""
    if name in NOT_RECORDED:
        return ""
    return f"![Memory over time: {entry['baseline']}, and {name}](images/techniques/{name}.svg)\n\n"


def figures(name, entry):
    """Returns the table of a technique: one row for each figure, two columns for each device."""
    devices = [device for device in DEVICES if device in entry]
    runs = [entry[device][part] for device in devices for part in ("before", "after")]
    heads = [f"{DEVICES[it]}: {run}" for it in devices for run in (entry["baseline"], name)]
    lines = [f"| | {' | '.join(heads)} |", "| --- |" + " ---: |" * len(heads)]
    rows = dict(ALWAYS_SHOWN)
    for key, title in SHOWN_IF_CHANGED.items():
        values = [it.get(key) for it in runs]
        if None not in values and values[::2] != values[1::2]:
            rows[key] = title
    for key, title in rows.items():
        show = size if key.endswith("bytes") else str
        lines.append(f"| {title} | {' | '.join(show(it[key]) for it in runs)} |")
    lines.append(f"| time of a step | {' | '.join(f'{it[STEP_TIME]:.2f} ms' for it in runs)} |")
    return "\n".join(lines) + "\n\n"


def pytorch(name, entry):
    """Returns the sentence about the technique's script in PyTorch."""
    script, variant, plain = EXAMPLE_OF[name]
    link = f"PyTorch: [`{script}.py`](../examples/pytorch/{script}.py)"
    peaks = entry["pytorch"]
    if not peaks:
        return f"{link},\nvariants `{plain}` and `{variant}`.\n"
    before, after = peaks["before"], peaks["after"]
    parts = (
        f"{what} {size(before[key])} → {size(after[key])}"
        for key, what in (("peak_allocated_bytes", "allocated"), ("peak_reserved_bytes", "reserved"))
    )
    return f"{link},\n`{plain}` → `{variant}`: peak {', '.join(parts)}.\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("vramscope", help="The vramscope binary")
    parser.add_argument("results", type=Path, help="Folder that techniques.py wrote")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", metavar="DIR")
    options = parser.parse_args()
    update(options.vramscope, options.results, options.docs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
