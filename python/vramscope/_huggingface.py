"""The callback for the ``Trainer`` of Hugging Face Transformers."""

from transformers import TrainerCallback

from ._callbacks import TrainingSession


class HuggingFaceCallback(TrainerCallback):
    """Watches a training of a Hugging Face ``Trainer``: ``Trainer(callbacks=[HuggingFaceCallback()])``.

    The arguments are those of ``vramscope.watch``. The session starts when the training begins and
    stops when it ends; a session in progress is used and goes on. Epochs, steps and evaluations
    become spans, checkpoints marks.
    """

    def __init__(self, listen=None, record=None, stacks="python"):
        self._session = TrainingSession(listen, record, stacks)

    def on_train_begin(self, args, state, control, model=None, optimizer=None, **kwargs):
        self._session.start()
        self._session.annotate(model, optimizer)

    def on_epoch_begin(self, args, state, control, **kwargs):
        self._session.end("epoch")
        self._session.begin(f"epoch {int(state.epoch or 0) + 1}")

    def on_epoch_end(self, args, state, control, **kwargs):
        self._session.end("epoch")

    def on_step_begin(self, args, state, control, **kwargs):
        self._session.end("step")
        self._session.begin(f"step {state.global_step + 1}")

    def on_step_end(self, args, state, control, **kwargs):
        self._session.end("step")

    def on_prediction_step(self, args, state, control, **kwargs):
        # The trainer does not tell when an evaluation begins: this is after its first batch.
        if self._session.is_active and not self._session.is_in("evaluation"):
            self._session.begin(f"evaluation after step {state.global_step}")

    def on_evaluate(self, args, state, control, **kwargs):
        self._session.end("evaluation")

    def on_save(self, args, state, control, **kwargs):
        self._session.mark(f"checkpoint of step {state.global_step}")

    def on_train_end(self, args, state, control, **kwargs):
        self._session.stop()
