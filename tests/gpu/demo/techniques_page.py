"""Writes measured figures and pictures of the demo's techniques to docs/techniques.md.

    techniques_page.py VRAMSCOPE RESULTS [--docs DIR]

RESULTS is a folder that techniques.py wrote. Its figures replace those of the same device in
DIR/techniques.json; those of other devices stay. A picture of each technique goes to
DIR/images/techniques, drawn from the GPU's recordings where there are some. PyTorch's figures are
those of examples/pytorch/recordings/figures.json, which examples/pytorch/run_all.py writes; without
this file, the peaks of the recordings beside it. In DIR/techniques.md, the text between
`<!-- figures: NAME -->` and `<!-- end of figures -->` is replaced, for the name of each technique,
and for `overview`, `demo-and-pytorch` and `combinations`.
"""

import argparse
import functools
import json
import math
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from figures import (
    END,
    END_RESERVED,
    INACTIVE_SPLIT,
    PEAK,
    RESERVED,
    STATE,
    STEP_TIME,
    TITLES,
    arrow,
    percent,
    relative_change,
    shown,
)

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "pytorch"
FIGURES = EXAMPLES / "recordings" / "figures.json"
NO_FIGURES = (
    "no figures of PyTorch: on a machine with a GPU, run "
    "python3 examples/pytorch/run_all.py DIR --figures examples/pytorch/recordings/figures.json"
)
# Columns in their order: the device's key in results.json, and its heading.
DEVICES = {"host": "host", "cuda": "GPU"}
# How many times as large as the other one the larger of two relative changes may be.
FACTOR = 2.0
# The smallest relative change that counts as one.
SMALLEST_CHANGE = 0.02


@dataclass(frozen=True)
class Comparison:
    """The figure by which a technique's effect is compared with that of its script in PyTorch."""

    # The key of the figure in the reports of both.
    figure: str
    # The script in examples/pytorch, its variant with the technique, and the one without.
    script: str
    variant: str = "with"
    plain: str = "without"
    factor: float = FACTOR
    smallest_change: float = SMALLEST_CHANGE
    # Why `factor` or `smallest_change` is not the usual one.
    reason: str = ""


COMPARISONS = {
    "keep-outputs": Comparison(PEAK, "keep_outputs"),
    "keep-loss": Comparison(PEAK, "keep_loss"),
    "growing-list": Comparison(PEAK, "growing_list"),
    "free-early": Comparison(PEAK, "free_early"),
    "empty-cache-after-warm-up": Comparison(END_RESERVED, "empty_cache", "after_warm_up", "never"),
    "empty-cache-every-step": Comparison(END_RESERVED, "empty_cache", "every_step", "never"),
    "release-memory": Comparison(END_RESERVED, "release_memory"),
    "offload": Comparison(PEAK, "offload"),
    "accumulate": Comparison(PEAK, "accumulate"),
    "gradients-kept": Comparison(PEAK, "gradients_kept"),
    "zero-gradients": Comparison(PEAK, "zero_gradients", "to_zero", "to_none"),
    "checkpoint-blocks": Comparison(PEAK, "checkpoint_blocks"),
    "checkpoint-layers": Comparison(PEAK, "checkpoint_layers"),
    "mixed-bf16": Comparison(PEAK, "mixed_precision", "bf16", "fp32"),
    "mixed-f16": Comparison(PEAK, "mixed_precision", "f16", "fp32"),
    "adam-8bit": Comparison(STATE, "adam_8bit"),
    "sgd": Comparison(STATE, "optimizers", "sgd_momentum", "adamw"),
    "adam": Comparison(STATE, "optimizers", "adam", "adamw"),
    "expandable-segments": Comparison(RESERVED, "variable_lengths", "expandable_segments", "default"),
    "max-split": Comparison(INACTIVE_SPLIT, "variable_lengths", "max_split_size", "default"),
    "garbage-collection": Comparison(RESERVED, "variable_lengths", "garbage_collection", "default"),
    "roundup": Comparison(RESERVED, "variable_lengths", "roundup_power2", "default"),
    "allocator-async": Comparison(
        PEAK, "allocators", "cuda_malloc_async", "caching", smallest_change=0.05,
        reason="CUDA's pool and the caching allocators round sizes differently",
    ),
    "allocator-driver": Comparison(
        STEP_TIME, "allocators", "no_caching", "caching", factor=4.0,
        reason="the time of a step depends on the machine, and on the work of Python for each operation",
    ),
    "in-place": Comparison(PEAK, "in_place"),
    "inference-with-graph": Comparison(PEAK, "inference_no_grad", "with_graph", "no_grad"),
    "int8-weights": Comparison("weight_bytes", "int8_weights"),
    "kv-cache": Comparison(END, "kv_cache"),
    "loading-generator": Comparison(PEAK, "loading", "generator", "eager"),
    "loading-lazy": Comparison(PEAK, "loading", "lazy", "eager"),
    "pinned-staging": Comparison(RESERVED, "pinned_staging"),
    "batch-search": Comparison(RESERVED, "batch_search"),
    "record-stream": Comparison(RESERVED, "record_stream"),
    "no-record-stream": Comparison("overwritten_steps", "record_stream", "without", "with"),
    "graph-pools-shared": Comparison(RESERVED, "graph_pools", "shared_pool", "own_pools"),
}  # fmt: skip
# What PyTorch's variants change beside the technique.
LOW_PRECISION_SOFTMAX = (
    "Like the demo's model, the script's computes the softmax of the attention in the precision of its input; "
    "with PyTorch's autocast alone, it would compute it in float32 and keep it in both precisions."
)
NOTES = {"mixed-bf16": LOW_PRECISION_SOFTMAX, "mixed-f16": LOW_PRECISION_SOFTMAX}
# Only the pool is recorded: there is nothing to draw for other allocators.
NOT_RECORDED = {"allocator-async", "allocator-driver"}
ALWAYS_SHOWN = {PEAK, RESERVED, END, END_RESERVED, STEP_TIME}
# Most techniques change this figure, without being about it.
SHOWN_IF_COMPARED = {INACTIVE_SPLIT}
STORED = (*TITLES, "peak_requested_bytes")
BLOCK = re.compile(r"(<!-- figures: (\S+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)


def run(*command):
    """Runs a command and returns what it prints."""
    done = subprocess.run([str(it) for it in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def wrapped(text, indent=""):
    """Returns a paragraph in lines of at most 100 columns; `indent` begins all but the first."""
    return textwrap.fill(
        text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """The effect of a technique in the demo and in PyTorch."""

    name: str
    # Both effects, or what is missing.
    text: str
    # How they disagree; empty if they agree.
    problem: str


def disagreement(comparison, demo, pytorch):
    """Returns how the changes of a figure disagree, empty if they agree. `demo` and `pytorch` are
    pairs: the figure without the technique and with it."""
    changes = [relative_change(*demo), relative_change(*pytorch)]
    signs = [0 if abs(it) < comparison.smallest_change else math.copysign(1, it) for it in changes]
    if signs[0] != signs[1]:
        return "the signs differ"
    if signs[0] == 0:
        return ""
    # A figure that was 0 has no relative change: its values are compared.
    sizes = [demo[1], pytorch[1]] if changes == [math.inf] * 2 else [abs(it) for it in changes]
    ratio = max(sizes) / min(sizes)
    if ratio > comparison.factor:
        return f"one change is {ratio:.1f} times the other one, more than {comparison.factor:g}"
    return ""


def compare(name, demo, pytorch):
    """Compares a technique's effect in the demo and in PyTorch: two reports each, without the
    technique and with it; `pytorch` is None if it was not measured."""
    comparison = COMPARISONS[name]
    key = comparison.figure
    if not pytorch or any(key not in it for it in pytorch):
        return Outcome(name, "", f"no {key} of {comparison.script}.py in {FIGURES.name}")
    if any(key not in it for it in demo):
        return Outcome(name, "", f"no {key} in the demo's report")
    pairs = [[it[key] for it in reports] for reports in (demo, pytorch)]
    text = ", ".join(
        f"{who} {arrow(key, reports)} ({percent(reports, key)})"
        for who, reports in (("demo", demo), ("PyTorch", pytorch))
    )
    return Outcome(name, f"{TITLES[key]}: {text}", disagreement(comparison, *pairs))


def agreement(demo, examples):
    """Compares the effects of all techniques in `demo`, which has two reports of the GPU by
    technique, with those of the scripts in PyTorch, as `load_examples` returns them. Returns the
    outcomes; disagreements have a `problem`."""
    outcomes = []
    for name, reports in demo.items():
        if name in COMPARISONS:
            outcomes.append(compare(name, reports, example_reports(examples, name)))
        else:
            problem = f"no script in PyTorch: add {name} to COMPARISONS in {Path(__file__).name}"
            outcomes.append(Outcome(name, "", problem))
    return outcomes


def load_examples():
    """Returns the figures that examples/pytorch/run_all.py wrote, or None."""
    return json.loads(FIGURES.read_text()) if FIGURES.is_file() else None


def example_reports(examples, name):
    """Returns the figures of a technique's script without the technique and with it, or None."""
    comparison = COMPARISONS[name]
    variants = examples["scripts"].get(comparison.script, {})
    reports = [variants.get(it) for it in (comparison.plain, comparison.variant)]
    return reports if all(reports) else None


@functools.cache
def recorded_peaks(command, script, variant):
    """Returns the peaks of a script's recording, or None without one. Techniques share some."""
    file = EXAMPLES / "recordings" / f"{script}-{variant}.vram"
    if not file.is_file():
        return None
    device = json.loads(run(command, "info", file, "--json"))["devices"][0]
    return {key: device[key] for key in (PEAK, RESERVED)}


def pytorch_figures(command, examples, name):
    """Returns the figures of the technique's script in PyTorch, or None if there are none."""
    comparison = COMPARISONS[name]
    if examples:
        reports = example_reports(examples, name)
    else:
        variants = (comparison.plain, comparison.variant)
        reports = [recorded_peaks(command, comparison.script, it) for it in variants]
    if not reports or not all(reports):
        return None
    keys = ALWAYS_SHOWN | {comparison.figure}
    before, after = ({key: it[key] for key in keys if key in it} for it in reports)
    return {"before": before, "after": after}


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
        picture = docs / "images" / "techniques" / f"{name}.svg"
        if name not in NOT_RECORDED and (device == "cuda" or "cuda" not in entry):
            files = [results_folder / f"{name}-{part}.vram" for part in (f"1-{baseline}", f"2-{name}")]
            picture.parent.mkdir(parents=True, exist_ok=True)
            run(command, "report", *files, "-o", picture)
    stored.setdefault("combinations", {})[device] = [
        {
            "baseline": it["baseline"],
            "names": it["technique"],
            "reports": [{key: report[key] for key in STORED if key in report} for report in it["reports"]],
        }
        for it in results["combinations"]
        if "error" not in it
    ]
    add_pytorch(stored, command)
    path.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")
    page = docs / "techniques.md"
    text = page.read_text()
    marked = {it[2] for it in BLOCK.finditer(text)}
    for name in {"overview", "demo-and-pytorch", "combinations", *stored["techniques"]} - marked:
        print(f"{page}: no lines <!-- figures: {name} --> and <!-- end of figures -->", file=sys.stderr)
    page.write_text(BLOCK.sub(lambda it: it[1] + block(stored, it[2]) + it[3], text))


def add_pytorch(stored, command):
    """Adds PyTorch's figures to the techniques in `stored`, and what they were measured with."""
    examples = load_examples()
    stored.pop("pytorch", None)
    if examples:
        stored["pytorch"] = {key: examples[key] for key in ("date", "gpu", "pytorch")}
    else:
        print(f"techniques.md has only the peaks of recordings: {NO_FIGURES}", file=sys.stderr)
    for name in stored["techniques"].keys() & COMPARISONS.keys():
        stored["techniques"][name]["pytorch"] = pytorch_figures(command, examples, name)


def block(stored, name):
    """Returns the lines between the markers of `name`."""
    if name == "overview":
        return overview(stored)
    if name == "demo-and-pytorch":
        return demo_and_pytorch(stored)
    if name == "combinations":
        return combinations(stored)
    entry = stored["techniques"].get(name)
    if not entry or name not in COMPARISONS:
        return ""
    return picture(name, entry) + figures(name, entry) + pytorch(name, entry)


def on_gpu(stored):
    """Returns names and entries of the techniques that were measured on the GPU, in their order."""
    entries = ((name, stored["techniques"].get(name, {})) for name in COMPARISONS)
    return [(name, entry) for name, entry in entries if "cuda" in entry]


def reports_of(entry, part):
    """Returns the figures without the technique and with it of a device or of PyTorch, or None."""
    runs = entry.get(part)
    return [runs["before"], runs["after"]] if runs else None


def overview(stored):
    """Returns the table of all techniques, measured on the GPU."""
    lines = [
        "| technique | compared with | peak allocated | peak reserved | time of a step |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for name, entry in on_gpu(stored):
        before, after = reports_of(entry, "cuda")
        cells = [f"[{name}](#{name})", entry["baseline"]]
        cells += [arrow(key, (before, after)) for key in (PEAK, RESERVED, STEP_TIME)]
        lines.append(f"| {' | '.join(cells)} |")
    measured = stored["measured"].items()
    machines = (f"{DEVICES[key]} ({it['name']}, {it['date']})" for key, it in sorted(measured))
    return "\n".join(lines) + f"\n\nMeasured on {' and '.join(machines)}.\n"


def combinations(stored):
    """Returns the table of combined techniques on each device."""
    lines = [
        "| techniques | compared with | device | peak allocated | peak reserved | optimizer state | time of a step |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for device, heading in DEVICES.items():
        for it in stored.get("combinations", {}).get(device, []):
            cells = [f"`{it['names']}`", it["baseline"], heading]
            cells += [arrow(key, it["reports"]) for key in (PEAK, RESERVED, STATE, STEP_TIME)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def demo_and_pytorch(stored):
    """Returns the table that compares the techniques' effects on the GPU with those in PyTorch."""
    lines = [
        "| technique | figure | demo | change | PyTorch | change | time of a step in PyTorch |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    problems = []
    for name, entry in on_gpu(stored):
        key = COMPARISONS[name].figure
        cells = [f"[{name}](#{name})", TITLES[key]]
        demo = reports_of(entry, "cuda")
        in_pytorch = reports_of(entry, "pytorch") or [{}, {}]
        for reports in (demo, in_pytorch):
            cells += [arrow(key, reports), percent(reports, key)]
        cells.append(arrow(STEP_TIME, in_pytorch))
        lines.append(f"| {' | '.join(cells)} |")
        outcome = compare(name, demo, in_pytorch)
        if outcome.text and outcome.problem:
            problems.append(f"- [{name}](#{name}): {outcome.problem}.")
    rule = (
        "The two changes of a technique must have the same sign, and the larger one must be at most "
        f"{FACTOR:g} times the smaller one. A change of less than {SMALLEST_CHANGE:.0%} counts as "
        "none. Exceptions:"
    )
    lines += ["", wrapped(rule), "", *(wrapped(it, "  ") for it in exceptions())]
    if problems:
        lines += ["", "Disagreements:", "", *(wrapped(it, "  ") for it in problems)]
    if "pytorch" in stored:
        measured = stored["pytorch"]
        lines += ["", f"PyTorch {measured['pytorch']} on {measured['gpu']}, {measured['date']}."]
    return "\n".join(lines) + "\n"


def exceptions():
    """Returns a line for each technique whose effects may differ more, with the reason."""
    lines = []
    for name, it in COMPARISONS.items():
        bounds = [f"up to {it.factor:g} times"] if it.factor != FACTOR else []
        if it.smallest_change != SMALLEST_CHANGE:
            bounds.append(f"less than {it.smallest_change:.0%} counts as none")
        if bounds:
            lines.append(f"- [{name}](#{name}), {', '.join(bounds)}: {it.reason}.")
    return lines


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
    for key, title in TITLES.items():
        values = [it.get(key) for it in runs]
        if has_row(key, values, COMPARISONS[name].figure):
            lines.append(f"| {title} | {' | '.join(shown(key, it) for it in values)} |")
    return "\n".join(lines) + "\n\n"


def has_row(key, values, compared):
    """Returns whether a figure has a row in the table of a technique that is compared by the figure
    `compared`. `values` are those without the technique and with it, on each device."""
    if key in ALWAYS_SHOWN:
        return True
    if key == compared:
        return any(it is not None for it in values)
    return key not in SHOWN_IF_COMPARED and None not in values and values[::2] != values[1::2]


def pytorch(name, entry):
    """Returns the sentences about the technique's script in PyTorch."""
    comparison = COMPARISONS[name]
    script, variant, plain = comparison.script, comparison.variant, comparison.plain
    text = f"PyTorch: [`{script}.py`](../examples/pytorch/{script}.py), "
    parts = []
    if reports := reports_of(entry, "pytorch"):
        for key in dict.fromkeys((PEAK, RESERVED, comparison.figure, STEP_TIME)):
            values = [it.get(key) for it in reports]
            # PyTorch counts no memory outside of its allocators: such figures are 0.
            if all(values) or (key == comparison.figure and None not in values):
                parts.append(f"{TITLES[key]} {arrow(key, reports)}")
    if parts:
        text += f"`{plain}` → `{variant}`: {', '.join(parts)}."
    else:
        text += f"variants `{plain}` and `{variant}`."
    text += f" {NOTES[name]}" if name in NOTES else ""
    return wrapped(text) + "\n"


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
