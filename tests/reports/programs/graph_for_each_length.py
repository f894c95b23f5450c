"""Serves prompts of different lengths with CUDA graphs."""

import random

import torch
from torch import nn

WIDTH, ROWS = 1024, 2560


class GraphRunner:
    """Runs a model by graphs that are captured when they are first needed."""

    def __init__(self, model):
        self.model = model
        self.graphs = {}

    def capture(self, length):
        prompt = torch.zeros(length * ROWS, WIDTH, device="cuda")
        self.model(prompt)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = self.model(prompt)
        return graph, prompt, output

    def run(self, tokens):
        length = tokens.shape[0] // ROWS
        if length not in self.graphs:
            self.graphs[length] = self.capture(length)
        graph, prompt, output = self.graphs[length]
        prompt.copy_(tokens)
        graph.replay()
        return output


def serve(runner, length):
    tokens = torch.randn(length * ROWS, WIDTH, device="cuda")
    return runner.run(tokens).mean().item()


runner = GraphRunner(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()).cuda())


@torch.no_grad()
def main():
    lengths = list(range(1, 11))
    random.Random(3).shuffle(lengths)
    for request, length in enumerate(lengths + random.Random(4).choices(lengths, k=20)):
        serve(runner, length)
        print(f"request {request}: length {length}, reserved {torch.cuda.memory_reserved() >> 20} MiB")


main()
