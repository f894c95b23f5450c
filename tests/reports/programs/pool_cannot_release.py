"""Loads a model into a pool that can be put to sleep, and pads its weights for kernels."""

import torch

LAYERS, ROWS, COLUMNS = 20, 20480, 1024


class SleepMode:
    """Keeps weights in a pool of their own."""

    def __init__(self):
        self.pool = torch.cuda.MemPool()

    def weights(self):
        return torch.cuda.use_mem_pool(self.pool)


def load_weights():
    state = {}
    for layer in range(LAYERS):
        state[f"layers.{layer}.weight"] = torch.ones(ROWS, COLUMNS, dtype=torch.uint8, device="cuda")
    return state


def pad_weight(weight):
    padded = torch.zeros(ROWS + COLUMNS, COLUMNS, dtype=torch.uint8, device="cuda")
    padded[:ROWS].copy_(weight)
    return padded


def process_weights(state):
    for name in list(state):
        state[name] = pad_weight(state[name])


sleep_mode = SleepMode()


def main():
    torch.cuda.set_per_process_memory_fraction((700 << 20) / torch.cuda.mem_get_info()[1])
    with sleep_mode.weights():
        state = load_weights()
        print(f"loaded: {torch.cuda.memory_allocated() >> 20} MiB")
        process_weights(state)
    print(f"ready: {torch.cuda.memory_allocated() >> 20} MiB, reserved {torch.cuda.memory_reserved() >> 20} MiB")


main()
