"""The callbacks for trainers, called as the trainers of stand-ins for their packages call them."""

import os

from harness import ProgramTest

#: A stand-in for Transformers: the calls of its ``Trainer`` in a training of two epochs with two
#: steps, an evaluation after each, and a checkpoint at the end.
TRANSFORMERS = """
import types

class TrainerCallback:
    def _nothing(self, args, state, control, **kwargs):
        pass

    on_init_end = on_train_begin = on_train_end = on_epoch_begin = on_epoch_end = on_step_begin = _nothing
    on_pre_optimizer_step = on_optimizer_step = on_step_end = on_prediction_step = on_evaluate = on_save = _nothing

class Trainer:
    def __init__(self, model, optimizer, run_step, callbacks):
        self.model, self.optimizer, self.run_step, self.callbacks = model, optimizer, run_step, callbacks
        self.state = types.SimpleNamespace(global_step=0, epoch=None)
        self.call("on_init_end")

    def call(self, hook):
        for callback in self.callbacks:
            getattr(callback, hook)(
                None, self.state, None, model=self.model, optimizer=self.optimizer, train_dataloader=None
            )

    def train(self):
        self.state.epoch = 0.0
        self.call("on_train_begin")
        for epoch in range(2):
            self.call("on_epoch_begin")
            for step in range(2):
                self.call("on_step_begin")
                self.run_step()
                self.call("on_pre_optimizer_step")
                self.optimizer.step()
                self.call("on_optimizer_step")
                self.optimizer.zero_grad()
                self.state.global_step += 1
                self.state.epoch = epoch + (step + 1) / 2
                self.call("on_step_end")
            self.call("on_epoch_end")
            for _ in range(3):
                self.call("on_prediction_step")
            self.call("on_evaluate")
        self.call("on_save")
        self.call("on_train_end")
"""

#: A stand-in for Lightning: the calls of its ``Trainer`` in a training of one epoch with four
#: batches, two of which make a step, with a validation and a checkpoint.
LIGHTNING = """
class Callback:
    def _nothing(self, *arguments, **keywords):
        pass

    setup = teardown = on_train_start = on_train_end = on_train_epoch_start = on_train_epoch_end = _nothing
    on_train_batch_start = on_train_batch_end = on_validation_start = on_validation_end = _nothing
    on_sanity_check_start = on_sanity_check_end = on_save_checkpoint = on_exception = _nothing

class Trainer:
    def __init__(self, callbacks):
        self.callbacks, self.global_step, self.current_epoch, self.optimizers = callbacks, 0, 0, []

    def call(self, hook, *arguments, **keywords):
        for callback in self.callbacks:
            getattr(callback, hook)(self, self.module, *arguments, **keywords)

    def fit(self, module, run_step):
        self.module = module
        self.call("setup", stage="fit")
        try:
            self.optimizers = [module.optimizer]
            self.call("on_sanity_check_start")
            self.call("on_validation_start")
            self.call("on_validation_end")
            self.call("on_sanity_check_end")
            self.call("on_train_start")
            self.call("on_train_epoch_start")
            for batch_idx in range(4):
                self.call("on_train_batch_start", None, batch_idx)
                run_step()
                if batch_idx % 2:
                    module.optimizer.step()
                    module.optimizer.zero_grad()
                    self.global_step += 1
                self.call("on_train_batch_end", None, None, batch_idx)
            self.call("on_validation_start")
            self.call("on_validation_end")
            self.call("on_train_epoch_end")
            self.call("on_save_checkpoint", {})
            self.call("on_train_end")
        except Exception as error:
            self.call("on_exception", error)
            raise
        self.call("teardown", stage="fit")
"""

#: The spans of the trainings above.
TRANSFORMERS_SPANS = [
    "epoch 1 begin", "step 1 begin", "step 1 end", "step 2 begin", "step 2 end", "epoch 1 end",
    "evaluation after step 2 begin", "evaluation after step 2 end",
    "epoch 2 begin", "step 3 begin", "step 3 end", "step 4 begin", "step 4 end", "epoch 2 end",
    "evaluation after step 4 begin", "evaluation after step 4 end", "checkpoint of step 4",
]
LIGHTNING_SPANS = [
    "sanity check begin", "sanity check end", "epoch 1 begin", "step 1 begin", "step 1 end", "step 2 begin",
    "step 2 end", "validation after step 2 begin", "validation after step 2 end", "epoch 1 end",
    "checkpoint of step 2",
]

MODEL = """
import torch
from torch import nn

torch.cuda.synchronize()
model = nn.Sequential(nn.Linear(64, 256, device="cuda"), nn.ReLU(), nn.Linear(256, 8, device="cuda"))
model.optimizer = torch.optim.Adam(model.parameters())

def run_step():
    model(torch.empty(32, 64, device="cuda")).backward()
"""


class CallbackTest(ProgramTest):
    def setUp(self):
        super().setUp()
        for name, code in (
            ("transformers.py", TRANSFORMERS),
            ("pytorch_lightning.py", LIGHTNING),
            ("lightning/__init__.py", ""),
            ("lightning/pytorch.py", LIGHTNING),
        ):
            path = os.path.join(self.folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write(code)

    def spans(self, name="run.vram"):
        """Returns the marks that are not of optimizers or of passes, with the stage of spans."""
        rows = [row for row in self.events(name) if row["kind"] in ("mark", "annotation")]
        names = [f"{row['name']} {row['stage']}".removesuffix(" instant").strip() for row in rows]
        left_out = ("snapshot", "Optimizer.", "process", "forward", "backward")
        return [name for name in names if not name.startswith(left_out)]

    def train(self, trainer, callback, after=""):
        run = {
            "transformers": "trainer = Trainer(model, model.optimizer, run_step, [callback]); trainer.train()",
            "lightning.pytorch": "trainer = Trainer([callback]); trainer.fit(model, run_step)",
        }
        run["pytorch_lightning"] = run["lightning.pytorch"]
        lines = ["import vramscope", MODEL, f"from {trainer} import Trainer", callback, run[trainer], after]
        return self.run_program("\n".join(lines))

    def test_transformers_training_is_recorded(self):
        output, errors = self.train(
            "transformers",
            "callback = vramscope.HuggingFaceCallback(listen='127.0.0.1:0', record='run.vram')",
            "from transformers import TrainerCallback\n"
            "print(isinstance(callback, TrainerCallback), vramscope._watch._current)",
        )
        self.assertEqual(output, "True None\n")
        self.assertEqual(errors.count("vramscope: listening: http://127.0.0.1:"), 1, errors)
        self.assertEqual(self.spans(), TRANSFORMERS_SPANS)
        self.assertEqual([self.marks().count(name) for name in ("forward", "backward")], [8, 8])
        self.assertNotIn("not labelled", errors)
        categories = {row["category"] for row in self.events() if row["kind"] == "relabel"}
        self.assertEqual(categories, {"parameter", "gradient", "optimizer state", "input"})

    def test_lightning_training_is_recorded(self):
        for package in "lightning.pytorch", "pytorch_lightning":
            with self.subTest(package=package):
                output, _ = self.train(
                    package,
                    "callback = vramscope.LightningCallback(listen='127.0.0.1:0', record='run.vram')",
                    f"from {package} import Callback\n"
                    "print(isinstance(callback, Callback), vramscope._watch._current)",
                )
                self.assertEqual(output, "True None\n")
                self.assertEqual(self.spans(), LIGHTNING_SPANS)

    def test_steps_are_marked_without_stacks(self):
        self.train(
            "transformers",
            "callback = vramscope.HuggingFaceCallback(listen='127.0.0.1:0', record='run.vram', stacks=None)",
        )
        self.assertEqual(self.spans(), TRANSFORMERS_SPANS)
        self.assertEqual({row["stack"] for row in self.events() if row["kind"] == "alloc"}, {""})

    def test_session_in_progress_is_kept(self):
        output, errors = self.train(
            "transformers",
            "session = vramscope.watch(listen='127.0.0.1:0', record='run.vram')\n"
            "callback = vramscope.HuggingFaceCallback(record='other.vram')",
            "print(vramscope._watch._current is session)\nvramscope.mark('after')\nsession.stop()",
        )
        self.assertEqual(output, "True\n")
        self.assertEqual(errors.count("listening"), 1, errors)
        self.assertEqual(self.spans(), [*TRANSFORMERS_SPANS, "after"])
        self.assertFalse(os.path.exists(os.path.join(self.folder, "other.vram")))

    def test_session_of_on_oom_gets_the_page_and_the_file(self):
        output, errors = self.train(
            "transformers",
            "vramscope.on_oom('oom.vram')\n"
            "callback = vramscope.HuggingFaceCallback(listen='127.0.0.1:0', record='run.vram')",
            "print(vramscope._watch._current.starter)",
        )
        self.assertEqual(output, "on_oom()\n")
        self.assertEqual(errors.count("listening"), 1, errors)
        self.assertEqual(self.spans(), TRANSFORMERS_SPANS)

    def test_each_training_has_its_own_file(self):
        self.train(
            "transformers",
            "callback = vramscope.HuggingFaceCallback(listen='127.0.0.1:0', record='run.vram')",
            "trainer.state.global_step = 100\ntrainer.train()",
        )
        self.assertEqual(self.spans(), TRANSFORMERS_SPANS)
        self.assertEqual(self.spans("run-2.vram")[1], "step 101 begin")

    def test_failed_training_ends_the_recording(self):
        output, _ = self.run_program(
            "import vramscope\n" + MODEL + "from lightning.pytorch import Trainer\n"
            "callback = vramscope.LightningCallback(listen='127.0.0.1:0', record='run.vram')\n"
            "def fail(): raise ValueError('expected')\n"
            "try: Trainer([callback]).fit(model, fail)\n"
            "except ValueError as error: print(error, vramscope._watch._current)\n"
        )
        self.assertEqual(output, "expected None\n")
        self.assertEqual(
            self.spans(), ["sanity check begin", "sanity check end", "epoch 1 begin", "step 1 begin", "step 1 end",
                           "epoch 1 end"]
        )

    def test_training_continues_if_it_cannot_be_watched(self):
        output, errors = self.train(
            "transformers",
            # No address of this machine.
            "callback = vramscope.HuggingFaceCallback(listen='192.0.2.1:7791')",
            "print(trainer.state.global_step)",
        )
        self.assertEqual(output, "4\n")
        self.assertEqual(errors.count("vramscope: the training is not watched: "), 1, errors)

    def test_packages_are_imported_when_a_callback_is_used(self):
        output, _ = self.run_program(
            """
            import vramscope

            packages = "torch", "transformers", "lightning", "pytorch_lightning"
            print([name for name in packages if name in sys.modules])
            from vramscope import LightningCallback

            print([name for name in packages if name in sys.modules])
            import pickle

            copy = pickle.loads(pickle.dumps(LightningCallback(record="run.vram")))
            print(type(copy) is LightningCallback)
            import pytorch_lightning

            both = vramscope.LightningCallback
            print(issubclass(both, (sys.modules["lightning.pytorch"].Callback)))
            print(issubclass(both, pytorch_lightning.Callback))
            try:
                vramscope.NoCallback
            except AttributeError as error:
                print(error)
            try:
                vramscope.HuggingFaceCallback(stacks="c++")
            except ValueError as error:
                print(error)
            """
        )
        self.assertEqual(
            output.splitlines(),
            [
                "[]", "['lightning']", "True", "True", "True", "module 'vramscope' has no attribute 'NoCallback'",
                "stacks must be one of ('python', 'all', None), not 'c++'",
            ],
        )
