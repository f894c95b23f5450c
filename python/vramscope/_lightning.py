"""The callback for the ``Trainer`` of Lightning, which has two packages of equal content:
``lightning`` and ``pytorch_lightning``."""

import functools
import importlib
import sys

from ._callbacks import TrainingSession

#: The modules that define ``Callback``.
MODULES = ("lightning.pytorch", "pytorch_lightning")


def callback_class():
    """Returns the class ``LightningCallback``, for the packages that the program has imported."""
    imported = [name for name in MODULES if name in sys.modules]
    if not imported:
        imported = [_import_first()]
    return _class_for(tuple(sys.modules[name].Callback for name in imported))


def _import_first():
    """Imports the first package that is installed and returns its name."""
    for name in MODULES:
        try:
            importlib.import_module(name)
            return name
        except ModuleNotFoundError as error:
            if name.partition(".")[0] != error.name:
                raise
    raise ModuleNotFoundError("LightningCallback needs Lightning: pip install lightning", name="lightning")


@functools.cache
def _class_for(bases):
    """Returns the class for the given classes ``Callback``."""
    return type("LightningCallback", (_Hooks, *bases), {"__doc__": _Hooks.__doc__, "__module__": "vramscope"})


class _Hooks:
    """Watches a training of a Lightning ``Trainer``: ``Trainer(callbacks=[LightningCallback()])``.

    The arguments are those of ``vramscope.watch``. The session starts before the model is moved to
    its device and stops after the training; a session in progress is used and goes on. Epochs,
    steps and validations become spans, checkpoints marks.
    """

    def __init__(self, listen=None, record=None, stacks="python"):
        super().__init__()
        self._session = TrainingSession(listen, record, stacks)
        self._step = 0

    def setup(self, trainer, pl_module, stage):
        if stage == "fit":
            self._session.start()

    def on_train_start(self, trainer, pl_module):
        optimizers = trainer.optimizers
        self._session.annotate(pl_module, optimizers[0] if optimizers else None)

    def on_train_epoch_start(self, trainer, pl_module):
        self._session.end("epoch")
        self._session.begin(f"epoch {trainer.current_epoch + 1}")

    def on_train_epoch_end(self, trainer, pl_module):
        self._session.end("epoch")

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        # With accumulated gradients, a step has several batches.
        if not self._session.is_in("step"):
            self._step = trainer.global_step
            self._session.begin(f"step {self._step + 1}")

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step > self._step:
            self._session.end("step")

    def on_sanity_check_start(self, trainer, pl_module):
        self._session.begin("sanity check")

    def on_sanity_check_end(self, trainer, pl_module):
        self._session.end("sanity")

    def on_validation_start(self, trainer, pl_module):
        if not self._session.is_in("sanity"):
            self._session.begin(f"validation after step {trainer.global_step}")

    def on_validation_end(self, trainer, pl_module):
        self._session.end("validation")

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        self._session.mark(f"checkpoint of step {trainer.global_step}")

    def on_exception(self, trainer, pl_module, exception):
        self._session.stop()

    def teardown(self, trainer, pl_module, stage):
        if stage == "fit":
            self._session.stop()
