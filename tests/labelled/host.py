#!/usr/bin/env python3
"""Records the demo on the host, with techniques whose memory problem is known.

    host.py VRAMSCOPE OUT

Each technique of TECHNIQUES is recorded as OUT/NAME.vram and labelled in OUT/NAME.json, with the
fields `finding`, `sites`, `technique`, `arguments` and `limit_bytes` of README.md. Recordings have
no call stacks but the line of each request, so `sites` are files of the demo.
"""

import json
import subprocess
import sys
from pathlib import Path

MODEL, SMALL = "gpt.rs", ["--layers", "3", "--width", "96"]
# Technique, finding, file at fault.
TECHNIQUES = [
    ("keep-outputs", "growth.outputs", MODEL),
    ("keep-loss", "growth.summed_loss", MODEL),
    ("growing-list", "growth.cache", MODEL),
    ("empty-cache-every-step", "segments.empty_cache", "memory.rs"),
    ("empty-cache-after-warm-up", "peak.start", MODEL),
    ("graph-pools", "pools.private", "perceptron.rs"),
    ("variable-lengths", "fragmentation.near_failure", MODEL),
    ("train", "none", None),
    ("adamw", "none", None),
    ("sgd", "none", None),
    ("checkpoint-blocks", "none", None),
    ("expandable-segments", "none", None),
    ("inference", "none", None),
    ("kv-cache", "none", None),
    ("side-stream", "none", None),
]
# Programs that have no sizes of a GPT, or that need the default ones to fragment.
ONE_SIZE = {"graph-pools", "variable-lengths", "side-stream"}


def record(vramscope, out, name, technique, arguments, finding, file):
    command = [vramscope, "demo", "--technique", technique, "--device", "host", "--json"]
    path = out / f"{name}.vram"
    subprocess.run([*command, *arguments, "--record", path], check=True, stdout=subprocess.DEVNULL)
    sites = [file] if file else []
    label = {
        "finding": finding,
        "site": file,
        "sites": sites,
        "technique": technique,
        "arguments": arguments,
        "limit_bytes": None,
    }
    path.with_suffix(".json").write_text(json.dumps(label, indent=1) + "\n")


def main(vramscope, out):
    out.mkdir(parents=True, exist_ok=True)
    for technique, finding, file in TECHNIQUES:
        name = technique.replace("-", "_")
        record(vramscope, out, f"host_{name}_1", technique, ["--steps", "12"], finding, file)
        if finding != "none":
            other = ["--steps", "16", "--seed", "2", *([] if technique in ONE_SIZE else SMALL)]
            record(vramscope, out, f"host_{name}_2", technique, other, finding, file)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], Path(sys.argv[2]))
