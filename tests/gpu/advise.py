"""Checks predictions of `vramscope advise` on a GPU.

    advise.py VRAMSCOPE OUT [NAME...]

For each program of tests/labelled (twelve unless named), records it under its own settings, asks
`advise` for the best settings, and runs the program again under the best and five other settings.
PyTorch's reserved peak must equal the prediction to the byte, and no other setting tried may be
more than 1% better than the best. Writes OUT/advise.json; exits with 1 if a check fails.
"""

import concurrent.futures
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
GENERATE = HERE.parent / "labelled" / "generate.py"
# Programs whose requests do not depend on the allocator or on timing.
PROGRAMS = """healthy_train_1 healthy_train_3 healthy_lengths_1 near_failure_1 near_failure_2 rounding_1
    rounding_4 growth_outputs_2 activations_2 peak_logits_2 optimizer_states_2 start_warm_up_1""".split()
OTHERS = ["", "expandable_segments:True", "max_split_size_mb:32", "roundup_power2_divisions:8"]
JOBS = 6


def output_of(command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[:3]}: {done.stderr[-800:]}")
    return done.stdout


def reserved_peak(name, conf):
    result = json.loads(output_of([sys.executable, GENERATE, "--apply", name, "--alloc-conf", conf]))
    return result["peak_reserved"], result["ooms"]


def predicted_peak(vramscope, recording, limit, conf):
    report = json.loads(output_of([vramscope, "simulate", recording, "--alloc-conf", conf, "--json", *limit]))
    return report["devices"][0]["simulated"]["peak_reserved_bytes"]


def check(vramscope, out, name):
    output_of([sys.executable, GENERATE, out, "--only", name])
    recording = out / f"{name}.pickle.gz"
    limit_bytes = json.loads((out / f"{name}.json").read_text())["limit_bytes"]
    limit = [] if limit_bytes is None else ["--limit-bytes", limit_bytes]
    advice = json.loads(output_of([vramscope, "advise", recording, "--json", *limit]))["devices"][0]
    best = advice["best"]
    others = [conf for conf in OTHERS if conf != best["alloc_conf"]]
    tried = [trial["alloc_conf"] for trial in advice["tried"]]
    ranked = [conf for conf in tried if conf not in [best["alloc_conf"], *others]]
    rows = []
    for conf in [best["alloc_conf"], *others, *ranked[:2]]:
        measured, ooms = reserved_peak(name, conf)
        predicted = predicted_peak(vramscope, recording, limit, conf)
        rows.append({"conf": conf, "predicted": predicted, "measured": measured, "ooms": ooms})
    lowest = min(row["measured"] for row in rows)
    return {
        "name": name,
        "recorded": advice["recorded"]["peak_reserved_bytes"],
        "best": best["alloc_conf"],
        "rows": rows,
        "equal": all(row["predicted"] == row["measured"] for row in rows),
        "best_equal": rows[0]["predicted"] == rows[0]["measured"],
        "is_best": rows[0]["measured"] <= lowest * 1.01,
    }


def main():
    vramscope, out = sys.argv[1], Path(sys.argv[2])
    names = sys.argv[3:] or PROGRAMS
    out.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        results = list(pool.map(lambda name: check(vramscope, out, name), names))
    (out / "advise.json").write_text(json.dumps(results, indent=1))
    for result in results:
        passed = result["best_equal"] and result["is_best"]
        saved = 100 * (1 - result["rows"][0]["measured"] / result["recorded"])
        print(f"{'PASS' if passed else 'FAIL'} {result['name']}: {result['best'] or 'defaults'}, saves {saved:.1f}%")
        for row in result["rows"]:
            difference = row["measured"] - row["predicted"]
            print(f"    {row['conf'] or 'defaults'}: {row['predicted']} predicted, {row['measured']} measured"
                  f" ({difference:+d})")
    failed = [result["name"] for result in results if not (result["best_equal"] and result["is_best"])]
    print(f"{len(results) - len(failed)} of {len(results)} passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
