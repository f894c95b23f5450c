"""Runs inference of a GPT under `torch.no_grad()`, and with the graph.

Effect: without a graph no activations are kept: the peak is about a fifth.
On the page: "Peak" by category; "Compare" for both recordings.
"""

import contextlib

import torch
from _common import Experiment, difference
from _models import Gpt, GptConfig, token_batch

CONFIG = GptConfig(layers=6)
BATCH = 32


def main():
    with Experiment(__doc__, variants=("no_grad", "with_graph")) as run:
        model = Gpt(CONFIG).to(run.device).eval()
        grad_mode = torch.no_grad() if run.is_with else contextlib.nullcontext()
        with grad_mode:
            for step in run.each_step():
                tokens = token_batch(CONFIG, BATCH, step).to(run.device)
                before = run.allocated_bytes()
                logits = model(tokens[:, :-1])
                # What the output keeps, the output itself included.
                run.results["kept_by_output_bytes"] = difference(run.allocated_bytes(), before)
                with run.category("activation"):
                    run.losses.append(logits.square().mean().item())
                del logits


if __name__ == "__main__":
    main()
