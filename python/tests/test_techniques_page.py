"""The comparison of the demo's techniques with the scripts of ``examples/pytorch``."""

import argparse
import contextlib
import io
import json
import os
import re
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import harness

EXAMPLES = Path(harness.ROOT, "examples/pytorch")
TECHNIQUES = Path(harness.ROOT, "crates/demo/src/techniques")
sys.path[:0] = [str(EXAMPLES), os.path.join(harness.ROOT, "tests/gpu/demo")]
# They need no PyTorch.
import _checks
import run_all
import techniques_page
import variable_lengths

MIB = 1 << 20


def reports(before, after, key="peak_allocated_bytes"):
    return [{key: before}, {key: after}]


class AgreementTest(unittest.TestCase):
    def problem(self, demo, pytorch, name="in-place"):
        return techniques_page.compare(name, demo, pytorch).problem

    def test_signs_must_be_equal(self):
        self.assertEqual(self.problem(reports(100, 80), reports(100, 120)), "the signs differ")
        self.assertEqual(self.problem(reports(100, 80), reports(100, 99)), "the signs differ")
        self.assertEqual(self.problem(reports(100, 101), reports(100, 99)), "", "both count as no change")

    def test_sizes_must_be_similar(self):
        self.assertEqual(self.problem(reports(100, 80), reports(1000, 620)), "")
        expected = "one change is 2.5 times the other one, more than 2"
        self.assertEqual(self.problem(reports(100, 80), reports(1000, 500)), expected)
        self.assertEqual(self.problem(reports(100, 50), reports(100, 80)), expected)

    def test_techniques_have_bounds_of_their_own(self):
        demo, pytorch = reports(100, 600, "step_ms"), reports(100, 300, "step_ms")
        self.assertEqual(self.problem(demo, pytorch, "allocator-driver"), "")
        demo, pytorch = reports(100, 600), reports(100, 300)
        self.assertIn("2.5 times", self.problem(demo, pytorch, "in-place"))
        self.assertEqual(self.problem(reports(100, 100), reports(100, 104), "allocator-async"), "")

    def test_counts_that_were_0_are_compared(self):
        key = "overwritten_steps"
        for after, expected in ((8, ""), (5, ""), (0, "the signs differ")):
            self.assertEqual(self.problem(reports(0, 8, key), reports(0, after, key), "no-record-stream"), expected)
        self.assertIn("4.0 times", self.problem(reports(0, 8, key), reports(0, 2, key), "no-record-stream"))

    def test_missing_figures_are_problems(self):
        examples = {"scripts": {"in_place": {"with": {"peak_allocated_bytes": 80}}}}
        demo = {"in-place": reports(100, 80), "new": reports(1, 2)}
        problems = [it.problem for it in techniques_page.agreement(demo, examples)]
        expected = [
            "no peak_allocated_bytes of in_place.py in figures.json",
            "no script in PyTorch: add new to COMPARISONS in techniques_page.py",
        ]
        self.assertEqual(problems, expected)
        examples["scripts"]["in_place"]["without"] = {"peak_allocated_bytes": 100}
        outcome = techniques_page.agreement({"in-place": reports(100, 80)}, examples)[0]
        text = "peak allocated: demo 100 B → 80 B (-20.0%), PyTorch 100 B → 80 B (-20.0%)"
        self.assertEqual((outcome.text, outcome.problem), (text, ""))


class PageTest(unittest.TestCase):
    def stored(self):
        key = "peak_inactive_split_bytes"
        runs = [
            dict.fromkeys(techniques_page.ALWAYS_SHOWN, value * MIB) | {"step_ms": value, key: value * MIB}
            for value in (10, 5)
        ]
        before, after = runs
        entry = {"baseline": "b", "cuda": {"before": before, "after": after}}
        return {
            "measured": {"cuda": {"name": "GPU", "date": "2026-01-01"}},
            "pytorch": {"gpu": "H200", "date": "2026-01-02", "pytorch": "2.11.0"},
            "techniques": {
                "max-split": entry | {"pytorch": {"before": before, "after": after}},
                "in-place": entry | {"pytorch": {"before": after, "after": before}},
                "offload": entry,
            },
        }

    def test_both_effects_and_disagreements_are_shown(self):
        text = techniques_page.block(self.stored(), "demo-and-pytorch")
        for part in (
            "| [max-split](#max-split) | peak inactive split | 10 MiB → 5 MiB | -50.0% | 10 MiB → 5 MiB | -50.0% | "
            "10.00 ms → 5.00 ms |",
            "| [offload](#offload) | peak allocated | 10 MiB → 5 MiB | -50.0% | not measured | – | not measured |",
            "- [in-place](#in-place): the signs differ.",
            "- [allocator-driver](#allocator-driver), up to 4 times: ",
            "PyTorch 2.11.0 on H200, 2026-01-02.",
        ):
            self.assertIn(part, text)
        self.assertNotIn("- [offload]", text, "nothing to compare")

    def test_section_has_the_compared_figure_and_times_of_pytorch(self):
        stored = self.stored()
        text = techniques_page.block(stored, "max-split")
        self.assertIn("| peak inactive split | 10 MiB | 5 MiB |", text)
        self.assertIn("time of a step 10.00 ms → 5.00 ms.", text.replace("\n", " "))
        self.assertNotIn("inactive split", techniques_page.block(stored, "in-place"))

    def test_exceptions_have_reasons(self):
        usual = (techniques_page.FACTOR, techniques_page.SMALLEST_CHANGE)
        for name, it in techniques_page.COMPARISONS.items():
            self.assertEqual((it.factor, it.smallest_change) != usual, bool(it.reason), name)
            self.assertIn(it.figure, techniques_page.TITLES, name)

    def test_page_needs_no_figures_of_pytorch(self):
        stored = {"techniques": {"in-place": {}}}
        errors = io.StringIO()
        with (
            mock.patch.object(techniques_page, "FIGURES", Path("/nonexistent/figures.json")),
            mock.patch.object(techniques_page, "recorded_peaks", lambda *_: None),
            contextlib.redirect_stderr(errors),
        ):
            techniques_page.add_pytorch(stored, "vramscope")
        self.assertEqual(stored["techniques"]["in-place"], {"pytorch": None})
        self.assertIn("run_all.py DIR --figures", errors.getvalue())


class ScriptsTest(unittest.TestCase):
    def test_each_technique_of_the_demo_has_a_script(self):
        registry = (TECHNIQUES / "registry.rs").read_text()
        names = set(re.findall(r'Technique \{\s+name: "([\w-]+)"', registry))
        names -= set(re.findall(r'baseline: "([\w-]+)"', registry))
        self.assertEqual(set(techniques_page.COMPARISONS), names)
        readme = (EXAMPLES / "README.md").read_text()
        for name, it in techniques_page.COMPARISONS.items():
            variants = run_all.VARIANTS.get(it.script, ("with", "without"))
            self.assertLessEqual({it.variant, it.plain}, set(variants), name)
            row = next(line for line in readme.splitlines() if line.startswith(f"| `{it.script}.py` |"))
            self.assertIn(f"`{name}`", row)

    def test_settings_of_variable_lengths_are_those_of_the_demo(self):
        settings = re.findall(r'alloc_conf\.push\("(.*?)"\)', (TECHNIQUES / "registry.rs").read_text())
        self.assertEqual(set(settings), set(filter(None, variable_lengths.SETTINGS.values())))
        function = (TECHNIQUES / "sizes.rs").read_text().partition("fn variable_lengths(")[2].partition("\n}\n")[0]
        lengths = re.search(r"lengths = vec!\[(.*?)\]", function)[1]
        self.assertEqual(tuple(map(int, lengths.split(","))), variable_lengths.LENGTHS)
        limit = re.search(r"limit_bytes = Some\(settings\.pick\(\d+, (\d+)\) << 20\)", function)[1]
        self.assertEqual(int(limit) * MIB, variable_lengths.CAP_BYTES)


class FiguresTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name, "figures.json")

    def update(self, gpu="H200", **scripts):
        """Writes the figures of scripts with one variant: each has a step time or an error."""

        def result(step_ms):
            if step_ms is None:
                return {"error": "status 1"}
            line = {"technique": "x", "gpu": gpu, "pytorch": "2.11.0", "step_ms": step_ms, "losses": [1.0]}
            return line | {"end_allocated_bytes": None, "move_ms": 2, "recording_bytes": 9}

        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            run_all.update_figures(self.path, {name: {"with": result(it)} for name, it in scripts.items()})
        figures = json.loads(self.path.read_text())
        times = {name: variants["with"]["step_ms"] for name, variants in figures["scripts"].items()}
        return figures, times, errors.getvalue()

    def test_numbers_of_scripts_are_written(self):
        figures, times, _ = self.update(offload=1.5)
        self.assertEqual(figures["scripts"]["offload"]["with"], {"step_ms": 1.5, "move_ms": 2})
        self.assertEqual((figures["gpu"], figures["pytorch"]), ("H200", "2.11.0"))
        self.assertRegex(figures["date"], r"^\d{4}-\d\d-\d\d$")
        self.assertEqual(self.update(in_place=2.5)[1], {"offload": 1.5, "in_place": 2.5})
        self.assertEqual(self.update(in_place=None)[1], {"offload": 1.5, "in_place": 2.5}, "it failed")

    def test_figures_of_another_gpu_are_dropped(self):
        self.update(offload=1.5)
        _, times, errors = self.update(gpu="H100", in_place=2.5)
        self.assertEqual(times, {"in_place": 2.5})
        self.assertIn("the figures of H200, PyTorch 2.11.0, are dropped", errors)

    def test_times_are_not_checked_with_several_jobs(self):
        for it in (it for each in _checks.CHECKS.values() for it in each):
            self.assertEqual(it.is_of_times, "time" in it.what, it.what)
        check = _checks.step_time("a / b", "a", "b", 2)
        results = {"a": {"step_ms": 3}, "b": {"step_ms": 2}}
        outcomes = [run_all.outcome_of(check, results, argparse.Namespace(jobs=jobs)) for jobs in (1, 4)]
        self.assertEqual(outcomes[0]["passed"], False)
        self.assertTrue(outcomes[1]["is_skipped"])
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            run_all.print_checks({"x": outcomes})
        self.assertIn("FAIL  x: time of a step, a / b: measured 1.5", output.getvalue())
        self.assertIn("SKIP  x: time of a step, a / b: times mean little with --jobs above 1", output.getvalue())
