"""What the scripts of ``examples/pytorch`` share: steps, categories and checks of recordings."""

import os
import sys
import unittest

import harness
from harness import ProgramTest

EXAMPLES = os.path.join(harness.ROOT, "examples/pytorch")
sys.path.insert(0, EXAMPLES)
# They need no PyTorch.
import _checks
import run_all

CODE = f"""
    import types
    import torch

    sys.path.insert(0, {EXAMPLES!r})
    # The stand-in lacks what makes results reproducible.
    torch.manual_seed = torch.use_deterministic_algorithms = lambda _: None
    torch.utils = types.SimpleNamespace(deterministic=types.SimpleNamespace())
    torch.cuda.init = torch.cuda.synchronize
    torch.cuda.reset_peak_memory_stats = lambda: None
    sys.argv = ["script.py", "--record", "run.vram", "--steps", "3"]
    from _common import Experiment

    def request():
        return torch.empty(4096, dtype=torch.uint8, device="cuda")

    with Experiment("A script.\\n\\nEffect: none.") as run:
        import vramscope._watch
        torch.cuda.synchronize()
        wait_until_live(vramscope._watch._current)
        kept = []
        for step in run.each_step():
            with run.category("input"):
                kept.append(request())
            train(1)
"""


class ExamplesTest(ProgramTest):
    def test_steps_are_spans_and_categories_are_recorded(self):
        self.run_program(CODE)
        rows = self.events()
        spans = [
            (row["name"], row["stage"])
            for row in rows
            if row["name"].startswith("step ") and row["stage"] in ("begin", "end")
        ]
        expected = [(f"step {number}", stage) for number in (1, 2, 3) for stage in ("begin", "end")]
        self.assertEqual(spans, expected)
        requests = [row for row in rows if row["kind"] == "alloc" and row["requested"] == "4096"]
        self.assertEqual([row["category"] for row in requests], 3 * ["input"])

    def test_recordings_are_examined(self):
        self.run_program(CODE)
        found = run_all.examine(os.path.join(self.folder, "run.vram"), harness.BINARY)
        self.assertEqual(found["steps"], 3)
        self.assertLessEqual(found["unknown_share_at_peak"], 1)
        self.assertEqual(found["end_bytes_by_category"]["input"], 3 * 4096)
        total = sum(found["end_bytes_by_category"].values())
        self.assertEqual(sum(found["end_bytes_by_line"].values()), total)


class ChecksTest(unittest.TestCase):
    def outcomes(self, results, name="gradients_kept"):
        checks = _checks.recording_checks(name, "with")
        return [check.evaluate(results)["passed"] for check in checks]

    def test_gradients_must_be_at_the_forward_pass(self):
        def results(at_layers, elsewhere):
            lines = {"script.py:3": 500 + elsewhere, "_models.py:7": at_layers + 20}
            recording = {
                "unknown_share_at_peak": 0.01,
                "steps": 2,
                "end_bytes_by_line": lines,
                "end_bytes_by_category": {"gradient": 1000, "parameter": 500},
            }
            without = {"end_bytes_by_line": {"script.py:3": 500, "_models.py:7": 20}}
            return {
                "with": {"recording": recording, "step_allocated_bytes": [1, 1], "gradient_bytes": 1000},
                "without": {"recording": without},
            }

        self.assertEqual(self.outcomes(results(1000, 0)), [True, True, True, True])
        self.assertEqual(self.outcomes(results(980, 20)), [True, True, True, False])

    def test_recordings_without_categories_or_steps_fail(self):
        recording = {"unknown_share_at_peak": 0.02, "steps": 1}
        results = {"with": {"recording": recording, "step_allocated_bytes": [1, 1]}}
        self.assertEqual(self.outcomes(results, "in_place"), [False, False])
        self.assertEqual(self.outcomes({"with": {}}, "in_place"), [None, None], "not measured")
