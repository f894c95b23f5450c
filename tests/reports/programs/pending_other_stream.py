"""Gathers the parameters of each layer and sends them to other ranks on a second stream."""

import torch

GATHERED_MIB, NORMS_MIB, LAYERS = 700, 100, 10


def buffer(mib):
    return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")


def gather(layer):
    """Returns a buffer for the full parameters of a layer."""
    try:
        return buffer(GATHERED_MIB)
    except torch.OutOfMemoryError as error:
        print(f"layer {layer}: {str(error).partition('.')[0]}; trying again")
    return buffer(GATHERED_MIB)


def broadcast(parameters, stream):
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(400_000_000)
        parameters.add_(1)
    parameters.record_stream(stream)


def load_norms():
    checkpoint = buffer(GATHERED_MIB + NORMS_MIB)
    checkpoint.zero_()


def forward_layer(layer, stream):
    parameters = gather(layer)
    parameters.zero_()
    broadcast(parameters, stream)


def main():
    torch.cuda.set_per_process_memory_fraction((1000 << 20) / torch.cuda.mem_get_info()[1])
    stream = torch.cuda.Stream()
    load_norms()
    first = gather(0)
    norms = buffer(NORMS_MIB)
    norms.zero_()
    del first
    for layer in range(LAYERS):
        forward_layer(layer, stream)
    torch.cuda.synchronize()
    print(f"norms {norms.nbytes >> 20} MiB, reserved {torch.cuda.memory_reserved() >> 20} MiB")


main()
