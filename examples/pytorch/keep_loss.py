"""Adds up the losses of an evaluation, as tensors (the mistake) or as numbers.

Effect: the sum keeps the graph and the activations of every batch, about 150 MiB a step.
On the page: "Leaks and growth" names the lines that grow.
"""

from _common import Experiment
from _models import Gpt, GptConfig, gpt_loss, token_batch

CONFIG = GptConfig(layers=4)
BATCH = 16


def main():
    with Experiment(__doc__) as run:
        model = Gpt(CONFIG).to(run.device).eval()
        total = 0.0
        # An evaluation that forgot `no_grad`: no backward pass frees the activations.
        for step in run.each_step():
            tokens = token_batch(CONFIG, BATCH, step).to(run.device)
            loss = gpt_loss(model, tokens)
            total += loss if run.is_with else loss.item()
            run.losses.append(loss.item())
            del loss
        run.results["mean_loss"] = float(total) / run.steps


if __name__ == "__main__":
    main()
