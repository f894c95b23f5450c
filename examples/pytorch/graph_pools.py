"""Captures three CUDA graphs in a shared memory pool, and in a pool each.

Effect: with a shared pool, one graph's memory serves the next: about half is reserved.
On the page: "Pools and segments" lists the private pools.
"""

import torch
from _common import Experiment
from _models import TwoLayerNet

# The largest first: the others then fit into its memory.
ROWS = (16384, 12288, 8192)
WIDTH, HIDDEN = 256, 2048


def capture(model, x, pool):
    """Returns a CUDA graph of a forward pass, and its output."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        output = model(x)
    return graph, output


@torch.no_grad()
def main():
    with Experiment(__doc__, variants=("shared_pool", "own_pools"), steps=4) as run:
        model = TwoLayerNet(WIDTH, HIDDEN, WIDTH).to(run.device)
        with run.category("input"):
            inputs = [torch.randn(rows, WIDTH).to(run.device) for rows in ROWS]
        # Also the warm-up: kernels are loaded and workspaces reserved before the capture.
        expected = [model(x).square().mean().item() for x in inputs]
        if run.on_gpu:
            torch.cuda.empty_cache()
            run.reset_peak()
            pool = torch.cuda.graph_pool_handle() if run.is_with else None
            before = run.reserved_bytes()
            graphs = [capture(model, x, pool) for x in inputs]
            run.results["graph_bytes"] = run.reserved_bytes() - before
        for _ in run.each_step():
            for index, x in enumerate(inputs):
                if run.on_gpu:
                    graph, output = graphs[index]
                    graph.replay()
                else:
                    output = model(x)
                # Read before the next graph, which may overwrite what this one no longer needs.
                run.losses.append(output.square().mean().item())
        results = zip(expected * run.steps, run.losses, strict=True)
        run.results["largest_error"] = max(abs(a - b) for a, b in results)


if __name__ == "__main__":
    main()
