"""Searches the largest batch under a memory cap: it grows until it runs out of memory.

After that, it tries batches between the largest that fits and the smallest that does not.

Effect: the search recovers from each out-of-memory error and reserves most of the cap.
On the page: "Out of memory" has a card for each failed request.
"""

import gc

import torch
from _common import MIB, Experiment
from _models import Gpt, GptConfig, gpt_loss, token_batch

CONFIG = GptConfig(layers=2)
CAP_BYTES = 512 * MIB
FIRST_BATCH = 8
# Largest batch of the imitated failure on the CPU.
CPU_BATCH = 24


def train_step(run, model, optimizer, batch, step=0):
    if not run.on_gpu and batch > CPU_BATCH:
        raise torch.OutOfMemoryError("imitated")
    loss = gpt_loss(model, token_batch(CONFIG, batch, step).to(run.device))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


def fits(run, model, optimizer, batch):
    """Returns whether two steps with this batch succeed, and frees what they left.

    Two, because the second begins with the blocks that the first has cached: it can fail where the
    first step found room."""
    try:
        train_step(run, model, optimizer, batch)
        train_step(run, model, optimizer, batch)
        return True
    except torch.OutOfMemoryError:
        optimizer.zero_grad(set_to_none=True)
        return False
    finally:
        # The exception's frames, which refer to the step's tensors, end with the `except` block.
        gc.collect()
        if run.on_gpu:
            torch.cuda.empty_cache()


def search(run, model, optimizer):
    """Returns the largest batch that fits, to an eighth, and all batches that were tried."""
    tried, good, bad = [], 0, FIRST_BATCH
    while fits(run, model, optimizer, bad):
        tried.append([bad, True])
        good, bad = bad, 2 * bad
    tried.append([bad, False])
    while bad - good > max(1, good // 8):
        middle = (good + bad) // 2
        tried.append([middle, fits(run, model, optimizer, middle)])
        good, bad = (middle, bad) if tried[-1][1] else (good, middle)
    return good, tried


def main():
    with Experiment(__doc__, steps=3) as run:
        if run.on_gpu:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(CAP_BYTES / total)
        model = Gpt(CONFIG).to(run.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batch, tried = search(run, model, optimizer) if run.is_with else (FIRST_BATCH, [])
        for step in run.each_step():
            run.losses.append(train_step(run, model, optimizer, batch, step))
        run.results.update(batch=batch, tried=tried, cap_bytes=CAP_BYTES)
        run.results["out_of_memory_errors"] = sum(not is_good for _, is_good in tried)


if __name__ == "__main__":
    main()
