"""Generates text with a cache of keys and values, and without one.

Effect: a step computes one token instead of the whole text: it takes less time. The cache takes
memory for the longest sequence from the start. Peaks are those after the first step, which computes
the whole prompt with and without a cache.
On the page: "Who holds it" by line: the cache is at the lines of `KeyValueCache` in `_models.py`.
"""

import torch
from _common import Experiment, tensor_bytes
from _models import Gpt, GptConfig, KeyValueCache, token_batch

CONFIG = GptConfig(layers=4, width=512, heads=8, length=256)
BATCH, PROMPT = 32, 192


@torch.no_grad()
def main():
    with Experiment(__doc__, steps=12) as run:
        model = Gpt(CONFIG).to(run.device).eval()
        text = token_batch(CONFIG, BATCH, 0)[:, :PROMPT].to(run.device)
        caches = None
        if run.is_with:
            with run.category("activation"):
                caches = [KeyValueCache(CONFIG, BATCH, run.device) for _ in model.blocks]
        # Each step generates a token; the first one computes the whole prompt in both variants.
        for step in run.each_step():
            is_first = step == 0
            logits = model(text if is_first or not caches else text[:, -1:], caches)[:, -1]
            text = torch.cat([text, logits.argmax(-1, keepdim=True)], dim=1)
            run.losses.append(logits.square().mean().item())
            # A slice keeps the logits of all tokens.
            del logits
            if is_first:
                run.reset_peak()
        cached = [tensor for it in caches or [] for tensor in (it.keys, it.values)]
        run.results["cache_bytes"] = tensor_bytes(cached)
        run.results["text"] = text[0, PROMPT:].tolist()


if __name__ == "__main__":
    main()
