"""Samples the latents of a short clip, then decodes them to frames."""

import torch
from torch import nn

FRAMES, CHANNELS, SIZE, STEPS = 8, 16, 64, 12


class Denoiser(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(CHANNELS, width, 3, padding=1), nn.SiLU(), nn.Conv2d(width, CHANNELS, 3, padding=1)
        )

    def forward(self, latents):
        return self.layers(latents)


class Decoder(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.enter = nn.Conv2d(CHANNELS, width, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(3))
        self.leave = nn.Conv2d(width, 3, 3, padding=1)
        self.enlarge = nn.Upsample(scale_factor=2)

    def forward(self, latents):
        hidden = self.enter(latents)
        for block in self.blocks:
            hidden = self.enlarge(hidden)
            hidden = nn.functional.silu(block(hidden))
        return self.leave(hidden)


def sample(denoiser):
    latents = torch.randn(FRAMES, CHANNELS, SIZE, SIZE, device="cuda")
    for step in range(STEPS):
        with torch.profiler.record_function(f"step {step}"):
            latents = latents - denoiser(latents) / STEPS
    return latents


def decode(decoder, latents):
    return decoder(latents).clamp(-1, 1)


@torch.no_grad()
def main():
    torch.cuda.set_per_process_memory_fraction((1800 << 20) / torch.cuda.mem_get_info()[1])
    denoiser, decoder = Denoiser().cuda(), Decoder().cuda()
    latents = sample(denoiser)
    print(f"sampled {tuple(latents.shape)}, peak {torch.cuda.max_memory_allocated() >> 20} MiB")
    frames = decode(decoder, latents)
    print(f"decoded {tuple(frames.shape)}")


main()
