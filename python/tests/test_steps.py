"""Step marks: of one optimizer at a time, with and without call stacks."""

import json

from harness import ProgramTest


class StepsTest(ProgramTest):
    def steps(self, code, stacks="python", **environment):
        """Runs code in a session and returns the numbers of the steps that are marked."""
        indented = code.strip("\n").replace("\n", "\n    ")
        program = (
            "import gc\nimport torch\nimport vramscope\n\n"
            "def optimizer():\n"
            "    return torch.optim.Adam(torch.nn.Linear(8, 8, device='cuda').parameters())\n\n"
            f"with vramscope.record('run.vram', stacks={stacks!r}) as session:\n"
            "    torch.empty(1, device='cuda')\n"
            "    wait_until(lambda: session.status != 'waiting')\n"
            f"    {indented}\n"
        )
        self.run_program(program, **environment)
        marks = [name for name in self.marks() if name.startswith("step ")]
        self.assertEqual(marks, [f"step {number}" for number in range(1, len(marks) + 1)])
        return len(marks)

    def test_second_training_has_steps(self):
        # The first optimizer is gone.
        self.assertEqual(self.steps("train(2)\ngc.collect()\ntrain(3)"), 5)
        # It is still there: the second one takes over at its second step.
        self.assertEqual(self.steps("kept = train(2)\nkept += train(3)\nkept += train(1)"), 4)

    def test_optimizers_in_turns_have_a_step_a_round(self):
        alternate = """
first, second = optimizer(), optimizer()
for _ in range(5):
    for _ in range({}):
        first.step()
    for _ in range({}):
        second.step()
"""
        self.assertEqual(self.steps(alternate.format(1, 1)), 5)
        # Several steps of the first one, such as of a discriminator, are a step each.
        self.assertEqual(self.steps(alternate.format(5, 1)), 25)
        # The second one takes over only in the first round, from its second to its fifth step.
        self.assertEqual(self.steps(alternate.format(1, 5)), 5 + 4)

    def test_steps_are_marked_without_stacks(self):
        self.assertEqual(self.steps("kept = train(8)", stacks=None), 8)
        categories = {row["category"] for row in self.events() if row["kind"] == "relabel"}
        self.assertEqual(categories, {"parameter", "optimizer state"})

    def test_steps_are_marked_if_stacks_cannot_be_read(self):
        code = """
from vramscope import _interpreter

def refuse(_torch):
    raise RuntimeError("expected")

"""
        self.run_program(
            code + "import vramscope\n_interpreter.checked = refuse\n"
            "with vramscope.record('run.vram') as session:\n"
            "    import torch\n    torch.empty(1, device='cuda')\n    wait_until_live(session)\n    kept = train(3)\n"
        )
        self.assertEqual([name for name in self.marks() if name.startswith("step ")], ["step 1", "step 2", "step 3"])

    def test_spans_and_steps_begin_before_the_first_use_of_a_device_is_noticed(self):
        for start in ("", "torch.cuda.init()\n"):
            self.run_program(
                "import torch\nimport vramscope\nfrom torch.profiler import record_function\n\n"
                f"{start}"
                "with vramscope.record('run.vram'):\n"
                "    with record_function('on the host'):\n        pass\n"
                "    for number in range(1, 4):\n"
                "        with record_function(f'round {number}'):\n"
                "            torch.empty(4096, dtype=torch.uint8, device='cuda')\n"
                "    kept = train(2)\n"
            )
            requests = [row for row in self.events() if row["name"].startswith("round") or row["requested"] == "4096"]
            rows = [row for row in requests if row["kind"] in ("mark", "alloc")]
            order = [row["stage"] or row["kind"] for row in rows]
            self.assertEqual(order, 3 * ["begin", "alloc", "end"])
            self.assertEqual([row["name"] for row in rows[::3]], ["round 1", "round 2", "round 3"])
            steps = [name for name in self.marks() if name.startswith("step ")]
            self.assertEqual(steps, ["step 1", "step 2"])
            if not start:
                self.assertNotIn("on the host", self.marks(), "it ended before CUDA was initialized")
            spans = json.loads(self.vramscope("table", "run.vram", "--by", "phase", "--json"))["devices"][0]["spans"]
            self.assertIn(("round", 3), [(span["name"], span["count"]) for span in spans])

    def test_steps_are_marked_while_polling(self):
        self.assertEqual(self.steps("kept = train(3)", version="2.16.0"), 3)
