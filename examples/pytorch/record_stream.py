"""Reads a tensor on another stream than its own, with `record_stream` and without it.

Effect: without it, the memory is reused while the other stream still reads it: values are
overwritten. With it, the memory stays pending free until that stream is done.
On the page: "Device": blocks that are pending free; "Events": the two parts of each free.
"""

import torch
from _common import MIB, Experiment

COUNT = 16 * MIB // 4
# Keeps a stream busy for about 20 ms.
SLEEP_CYCLES = 40_000_000


def is_overwritten(run, side):
    """Makes a tensor on a side stream, reads it on the main one, and returns whether values were
    overwritten before they were read."""
    main_stream = torch.cuda.current_stream()
    with torch.cuda.stream(side), run.category("input"):
        data = torch.ones(COUNT, device=run.device)
    main_stream.wait_stream(side)
    # The main stream has other work first.
    torch.cuda._sleep(SLEEP_CYCLES)
    with run.category("temporary"):
        has_nan = data.isnan().any()
    if run.is_with:
        # The memory is not free before the main stream has come to this point.
        data.record_stream(main_stream)
    del data
    with torch.cuda.stream(side), run.category("temporary"):
        # It has the size and the stream of the first tensor, and gets its memory if that is free.
        torch.full((COUNT,), float("nan"), device=run.device)
    return has_nan.item()


def main():
    with Experiment(__doc__, steps=8) as run:
        overwritten = 0
        side = torch.cuda.Stream() if run.on_gpu else None
        for _ in run.each_step():
            if run.on_gpu:
                overwritten += is_overwritten(run, side)
        run.results["tensor_bytes"] = 4 * COUNT
        run.results["overwritten_steps"] = overwritten


if __name__ == "__main__":
    main()
