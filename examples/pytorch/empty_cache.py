"""Calls `empty_cache` once after a large first step, in every step, or never.

Effect: reserved memory at the end falls to a quarter or less. Once is cheap; in every step the
segments are allocated again, which takes time.
On the page: the line of reserved memory in the timeline; "Pools and segments".
"""

import torch
from _common import Experiment
from _models import Gpt, GptConfig, gpt_loss, token_batch

CONFIG = GptConfig(layers=4)
# The first step is larger than the others, such as a benchmark or the longest sequence.
FIRST_BATCH, BATCH = 64, 8


def main():
    variants = ("after_warm_up", "every_step", "never")
    with Experiment(__doc__, variants, steps=8) as run:
        model = Gpt(CONFIG).to(run.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        reserved = []
        for step in run.each_step():
            tokens = token_batch(CONFIG, FIRST_BATCH if step == 0 else BATCH, step).to(run.device)
            loss = gpt_loss(model, tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.losses.append(loss.item())
            is_due = run.variant == "every_step" or (run.variant == "after_warm_up" and step == 0)
            if is_due and run.on_gpu:
                torch.cuda.empty_cache()
            reserved.append(run.reserved_bytes())
        run.results["step_reserved_bytes"] = reserved


if __name__ == "__main__":
    main()
