"""Loads training data lazily from a file, from a generator, or all of it at once.

Effect: the GPU holds one batch instead of the data of all steps.
On the page: "Who holds it" by category: input.
"""

import tempfile

import torch
from _common import Experiment
from _models import TwoLayerNet

ROWS, WIDTH = 4096, 1024


def make_batch(step):
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(step))


def eager(steps, device, _file):
    """Yields batches of data that is on the device as a whole."""
    data = torch.stack([make_batch(step) for step in range(steps)]).to(device)
    yield from data


def generator(steps, device, _file):
    """Yields batches that are made when they are needed."""
    for step in range(steps):
        yield make_batch(step).to(device)


def lazy(steps, device, file):
    """Yields batches of a file that is mapped into memory: only pages in use are read."""
    data = torch.from_file(file, size=steps * ROWS * WIDTH).view(steps, ROWS, WIDTH)
    for batch in data:
        yield batch.to(device)


MODES = {"lazy": lazy, "generator": generator, "eager": eager}


def main():
    with (
        tempfile.NamedTemporaryFile() as file,
        Experiment(__doc__, variants=tuple(MODES), steps=8, variant_option="--mode") as run,
    ):
        run.technique = f"loading_{run.variant}"
        if run.variant == "lazy":
            for step in range(run.steps):
                file.write(make_batch(step).numpy())
            file.flush()
        model = TwoLayerNet(WIDTH, WIDTH, WIDTH).to(run.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        batches = MODES[run.variant](run.steps, run.device, file.name)
        for _ in run.each_step():
            with run.category("input"):
                x = next(batches)
            with run.category("activation"):
                loss = (model(x) - x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.losses.append(loss.item())
            # Otherwise this batch is still allocated when the next one is loaded.
            del x
        run.results["batch_bytes"] = 4 * ROWS * WIDTH
        run.results["data_bytes"] = 4 * ROWS * WIDTH * run.steps


if __name__ == "__main__":
    main()
