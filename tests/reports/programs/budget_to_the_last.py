"""Starts an inference engine: weights, then as much key-value cache as fits, then CUDA graphs."""

import torch

LAYERS, WIDTH, BUDGET_MIB, GRAPHS_MIB = 10, 1024, 1000, 64
BATCH_SIZES = [256, 192, 128, 96, 64, 48, 32, 16, 8, 4, 2, 1]


class Engine:
    def __init__(self):
        self.weights = [self.load_layer() for _ in range(LAYERS)]
        self.states = torch.zeros(BATCH_SIZES[0], WIDTH, dtype=torch.bfloat16, device="cuda")
        self.kv_cache = self.allocate_kv_cache()
        self.pool = torch.cuda.graph_pool_handle()
        self.graphs = {}

    def load_layer(self):
        return torch.ones(25 * WIDTH, WIDTH, dtype=torch.bfloat16, device="cuda")

    def allocate_kv_cache(self):
        """Returns the key-value cache of each layer."""
        available = BUDGET_MIB - (torch.cuda.memory_reserved() >> 20) - GRAPHS_MIB
        blocks = available // LAYERS // 2
        print(f"key-value cache: {blocks * 2 * LAYERS} MiB")
        shape = (blocks * 2 * 512, WIDTH)
        return [torch.zeros(shape, dtype=torch.bfloat16, device="cuda") for _ in range(LAYERS)]

    def decode(self, states):
        output = states * 2
        partial = torch.zeros(6 * WIDTH, WIDTH, dtype=torch.bfloat16, device="cuda")
        return output, partial

    def capture(self, batch_size):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            result = self.decode(self.states[:batch_size])
        self.graphs[batch_size] = graph, result


@torch.inference_mode()
def main():
    torch.cuda.set_per_process_memory_fraction((BUDGET_MIB << 20) / torch.cuda.mem_get_info()[1])
    engine = Engine()
    for batch_size in BATCH_SIZES:
        engine.capture(batch_size)
        print(f"graph for {batch_size}: reserved {torch.cuda.memory_reserved() >> 20} MiB")


main()
