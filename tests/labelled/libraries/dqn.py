"""Trains a Q network with a target network and a replay buffer in host memory."""

import collections
import copy
import random

import torch
from progress import report
from torch import nn
from torch.nn import functional

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def network():
    return nn.Sequential(
        nn.Conv2d(4, 32, 8, stride=4), nn.ReLU(), nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
        nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 6),
    )  # fmt: skip


@torch.no_grad()
def play(model, replay):
    for _ in range(8):
        frames = torch.randint(256, (1, 4, 84, 84), dtype=torch.uint8)
        action = model(frames.to(DEVICE).float() / 255).argmax().item()
        replay.append((frames[0], action, random.random(), torch.randint(256, (4, 84, 84), dtype=torch.uint8)))


def learn(model, target, optimizer, replay):
    frames, actions, rewards, later = zip(*random.choices(replay, k=256))
    frames = torch.stack(frames).to(DEVICE).float() / 255
    later = torch.stack(later).to(DEVICE).float() / 255
    values = model(frames).gather(1, torch.tensor(actions, device=DEVICE)[:, None]).squeeze(1)
    with torch.no_grad():
        wanted = torch.tensor(rewards, device=DEVICE) + 0.99 * target(later).amax(dim=1)
    loss = functional.smooth_l1_loss(values, wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    torch.manual_seed(21)
    random.seed(21)
    model = network().to(DEVICE)
    target = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    replay = collections.deque(maxlen=1000)
    for step in range(16):
        play(model, replay)
        loss = learn(model, target, optimizer, replay)
        if step % 4 == 3:
            target.load_state_dict(model.state_dict())
        print(f"{step}: {loss:.4f}")
        report(step)


if __name__ == "__main__":
    main()
