"""Deletes the logits before the backward pass, and keeps them.

Effect: the peak falls by the size of the logits (64 MiB): their memory serves the gradients.
On the page: "Peak"; "Compare" for both recordings.
"""

import torch
from _common import Experiment
from _models import Gpt, GptConfig, token_batch
from torch.nn import functional

# With a large vocabulary, the logits are the largest tensor.
CONFIG = GptConfig(vocabulary=16384, layers=2)
BATCH = 8


def main():
    with Experiment(__doc__) as run:
        model = Gpt(CONFIG).to(run.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        for step in run.each_step():
            tokens = token_batch(CONFIG, BATCH, step).to(run.device)
            logits = model(tokens[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            if run.is_with:
                # The graph keeps what the backward pass needs: the logarithms of the softmax.
                del logits
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.losses.append(loss.item())
        run.results["logits_bytes"] = 4 * BATCH * CONFIG.length * CONFIG.vocabulary


if __name__ == "__main__":
    main()
