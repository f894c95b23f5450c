"""Copies the next batch through pinned buffers on a stream of its own during a step.

Effect: a step takes less time; a second batch is on the GPU.
On the page: "Who holds it" by stream: the batches are on the copy stream.
"""

import torch
from _common import Experiment
from _models import TwoLayerNet

ROWS, WIDTH, HIDDEN = 16384, 1024, 4096


class Staging:
    """Copies batches through two pinned buffers, on a stream of its own."""

    def __init__(self, device):
        self.device = device
        self.buffers = [torch.empty(ROWS, WIDTH, pin_memory=True) for _ in range(2)]
        self.copied = [torch.cuda.Event() for _ in range(2)]
        self.stream = torch.cuda.Stream()

    def start(self, number, batch):
        """Starts the copy of a batch."""
        buffer, copied = self.buffers[number % 2], self.copied[number % 2]
        # The buffer is free once its last copy has ended.
        copied.synchronize()
        buffer.copy_(batch)
        with torch.cuda.stream(self.stream):
            staged = buffer.to(self.device, non_blocking=True)
            copied.record()
        return staged

    def finish(self, number, staged):
        """Makes the current stream wait for a batch, and returns it."""
        stream = torch.cuda.current_stream()
        stream.wait_event(self.copied[number % 2])
        # The batch was allocated on the copy stream, and is used on this one.
        staged.record_stream(stream)
        return staged


def main():
    with Experiment(__doc__, steps=8) as run:
        # The batches of the data set, in memory that the system may move.
        draw = torch.Generator().manual_seed(0)
        data = [torch.randn(ROWS, WIDTH, generator=draw) for _ in range(2)]
        model = TwoLayerNet(WIDTH, HIDDEN, WIDTH).to(run.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        staging = Staging(run.device) if run.is_with and run.on_gpu else None
        with run.category("input"):
            staged = staging.start(0, data[0]) if staging else None
        for step in run.each_step():
            with run.category("input"):
                x = staging.finish(step, staged) if staging else data[step % 2].to(run.device)
            loss = (model(x) - x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if staging:
                # The GPU is still busy with this step.
                with run.category("input"):
                    staged = staging.start(step + 1, data[(step + 1) % 2])
            run.losses.append(loss.item())
            del x
        run.results["batch_bytes"] = 4 * ROWS * WIDTH


if __name__ == "__main__":
    main()
