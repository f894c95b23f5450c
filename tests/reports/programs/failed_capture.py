"""Scores batches of tokens with a CUDA graph, or without one if it cannot be captured."""

import torch
from torch import nn

WIDTH, CANDIDATES, TOKENS = 1024, 9600, 8192


def load_tokens(count):
    return torch.linspace(-1, 1, count * WIDTH, device="cuda").view(count, WIDTH)


def score(model, tokens):
    scores = model(tokens)
    return scores, scores.amax()


def capture_scores(model, tokens):
    """Returns a graph and its output, or None."""
    score(model, tokens)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            scores, best = score(model, tokens)
            if best.item() > 1e6:
                scores = scores.clamp(max=1e6)
    except RuntimeError as error:
        print(f"no graph: {str(error).splitlines()[0]}")
        return None
    return graph, scores


def score_batch(model, tokens):
    scores, best = score(model, tokens)
    return scores.shape[0], best.item()


@torch.no_grad()
def main():
    torch.cuda.set_per_process_memory_fraction((1000 << 20) / torch.cuda.mem_get_info()[1])
    model = nn.Linear(WIDTH, CANDIDATES, bias=False).cuda()
    tokens = load_tokens(TOKENS)
    captured = capture_scores(model, tokens)
    torch.cuda.empty_cache()
    print(f"graph: {captured is not None}, reserved {torch.cuda.memory_reserved() >> 20} MiB")
    for step in range(10):
        count, best = score_batch(model, tokens)
        print(f"step {step}: {count} rows, best {best:.3f}")
    del tokens
    torch.cuda.empty_cache()
    count, best = score_batch(model, load_tokens(5 * TOKENS // 2))
    print(f"long batch: {count} rows, best {best:.3f}")


main()
