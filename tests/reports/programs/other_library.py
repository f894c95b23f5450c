"""Trains a policy in PyTorch beside a physics simulation in a process of its own."""

import subprocess
import sys

import torch
from torch import nn

# The simulation takes its memory when it makes its first array.
SIMULATION = """
import sys, torch
arena = torch.empty(int(0.6 * torch.cuda.mem_get_info()[1]), dtype=torch.uint8, device="cuda")
state = arena[:1024].zero_()
torch.cuda.synchronize()
print("ready", flush=True)
sys.stdin.read()
"""
OBSERVATION, ACTIONS, BATCH = 1024, 64, 4096


def train_step(policy, optimizer):
    observations = torch.randn(BATCH, OBSERVATION, device="cuda")
    loss = policy(observations).logsumexp(dim=-1).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def make_replay_buffer(share):
    """Returns a buffer for observations that fills this share of the GPU."""
    count = int(share * torch.cuda.get_device_properties(0).total_memory) // OBSERVATION
    return torch.empty(count, OBSERVATION, dtype=torch.uint8, device="cuda")


def main():
    command = [sys.executable, "-c", SIMULATION]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as simulation:
        try:
            print(f"simulation: {simulation.stdout.readline().strip()}")
            policy = nn.Sequential(nn.Linear(OBSERVATION, 4096), nn.Tanh(), nn.Linear(4096, ACTIONS)).cuda()
            optimizer = torch.optim.Adam(policy.parameters())
            for step in range(10):
                print(f"step {step}: {train_step(policy, optimizer):.4f}")
            replay = make_replay_buffer(share=0.45)
            print(f"replay buffer: {replay.nbytes >> 20} MiB")
        finally:
            simulation.kill()


main()
