"""Trains a GPT under autocast, in bfloat16 or float16, and in float32.

Effect: most activations take half the memory; parameters and optimizer state do not change.
Autocast alone would compute the softmax of the attention in float32, and keep the probabilities in
both precisions: by the sizes of the tensors, activations would fall by only about an eighth. As in
`vramscope demo`, the model of all variants computes the softmax in the precision of its input
(`low_precision_softmax`), which in `fp32` is float32.
On the page: "Compare" by category, at the peaks of both.
"""

import torch
from _common import Experiment, difference
from _models import Gpt, GptConfig, gpt_loss, token_batch

PRECISIONS = {"bf16": torch.bfloat16, "f16": torch.float16, "fp32": None}
CONFIG = GptConfig(vocabulary=256, heads=8, length=256, low_precision_softmax=True)
BATCH = 16


def main():
    with Experiment(__doc__, variants=tuple(PRECISIONS)) as run:
        model = Gpt(CONFIG).to(run.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        # Gradients of float16 would become zero: they are scaled up, and scaled down for the step.
        is_scaled = run.variant == "f16"
        scaler = torch.amp.GradScaler(run.device, init_scale=1024.0, enabled=is_scaled)
        for step in run.each_step():
            tokens = token_batch(CONFIG, BATCH, step).to(run.device)
            before = run.allocated_bytes()
            with torch.autocast(run.device, PRECISIONS[run.variant], enabled=run.is_with):
                loss = gpt_loss(model, tokens)
            # Copies of the weights in the lower precision are included.
            run.results["activation_bytes"] = difference(run.allocated_bytes(), before)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            run.losses.append(loss.item())


if __name__ == "__main__":
    main()
