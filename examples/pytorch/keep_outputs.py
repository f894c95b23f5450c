"""Keeps small outputs in a list, with their graphs (the mistake) or detached.

Effect: each output keeps all activations of its batch, about 150 MiB a step.
On the page: "Leaks and growth" names the lines that grow.
"""

from _common import Experiment
from _models import Gpt, GptConfig, token_batch

CONFIG = GptConfig(layers=4)
BATCH = 16


def main():
    with Experiment(__doc__) as run:
        model = Gpt(CONFIG).to(run.device)
        outputs = []
        for step in run.each_step():
            tokens = token_batch(CONFIG, BATCH, step).to(run.device)
            # The prediction for the last token, which is small.
            output = model(tokens[:, :-1])[:, -1].mean(0)
            outputs.append(output if run.is_with else output.detach())
            run.losses.append(output.square().mean().item())
            del output


if __name__ == "__main__":
    main()
