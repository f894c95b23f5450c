"""Returns the memory of a training to the device: `del`, garbage collection, `empty_cache`.

Effect: `del` alone frees nothing, because of a reference cycle; the collection frees the tensors,
and `empty_cache` returns their segments.
On the page: the three steps down at the end of the timeline.
"""

import gc

import torch
from _common import Experiment, tensor_bytes
from _models import Gpt, GptConfig, gpt_loss, token_batch

CONFIG = GptConfig(layers=4)
BATCH = 16


class Trainer:
    def __init__(self, device):
        self.model = Gpt(CONFIG).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        # A reference cycle, as callbacks make: `del` alone frees nothing.
        self.callback = self.train

    def train(self, tokens):
        # The gradients of the last step stay until the end.
        self.optimizer.zero_grad(set_to_none=True)
        loss = gpt_loss(self.model, tokens)
        loss.backward()
        self.optimizer.step()
        return loss.item()


def main():
    with Experiment(__doc__) as run:
        # Otherwise Python collects cycles at a moment of its own.
        gc.disable()
        trainer = Trainer(run.device)
        for step in run.each_step():
            tokens = token_batch(CONFIG, BATCH, step).to(run.device)
            run.losses.append(trainer.train(tokens))
        run.results["model_bytes"] = tensor_bytes(trainer.model.parameters())
        del tokens
        after = run.results["after"] = {}
        after["training"] = [run.allocated_bytes(), run.reserved_bytes()]
        if run.is_with:
            del trainer
            after["del"] = [run.allocated_bytes(), run.reserved_bytes()]
            gc.collect()
            after["gc"] = [run.allocated_bytes(), run.reserved_bytes()]
            if run.on_gpu:
                torch.cuda.empty_cache()
            after["empty_cache"] = [run.allocated_bytes(), run.reserved_bytes()]


if __name__ == "__main__":
    main()
