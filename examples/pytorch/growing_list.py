"""Keeps the outputs of an evaluation in a list, on the GPU (the mistake) or copied to the CPU.

Effect: memory grows by the logits of one batch in every step, 2 MiB.
On the page: "Leaks and growth" names the lines that grow.
"""

import torch
from _common import Experiment, tensor_bytes
from _models import Gpt, GptConfig, gpt_loss, held_out_batch, token_batch

CONFIG = GptConfig(layers=4)
BATCH, HELD_OUT = 16, 8


def main():
    with Experiment(__doc__, steps=8) as run:
        model = Gpt(CONFIG).to(run.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        outputs = []
        for step in run.each_step():
            loss = gpt_loss(model, token_batch(CONFIG, BATCH, step).to(run.device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.losses.append(loss.item())
            held_out = held_out_batch(CONFIG, HELD_OUT, step).to(run.device)
            with torch.no_grad():
                logits = model(held_out[:, :-1])
            outputs.append(logits if run.is_with else logits.cpu())
            # Not part of the list, and placed differently in each step.
            del loss, held_out, logits
        run.results["output_bytes"] = tensor_bytes(outputs[:1])


if __name__ == "__main__":
    main()
