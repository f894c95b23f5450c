"""Trains a policy and a value by PPO on rollouts of fixed length on the GPU."""

import torch
from progress import report
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LENGTH, ENVIRONMENTS, FEATURES = 16, 512, 256


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, 1024), nn.Tanh(), nn.Linear(1024, 1024), nn.Tanh())
        self.policy, self.value = nn.Linear(1024, 8), nn.Linear(1024, 1)

    def forward(self, states):
        x = self.body(states)
        return torch.distributions.Categorical(logits=self.policy(x)), self.value(x).squeeze(-1)


@torch.no_grad()
def rollout(agent, states, actions, chances, values):
    state = torch.randn(ENVIRONMENTS, FEATURES, device=DEVICE)
    for time in range(LENGTH):
        policy, value = agent(state)
        action = policy.sample()
        states[time], actions[time], chances[time], values[time] = state, action, policy.log_prob(action), value
        state = 0.9 * state + 0.1 * torch.randn_like(state)


def update(agent, optimizer, states, actions, chances, values):
    rewards = torch.rand_like(values)
    advantages = rewards.flip(0).cumsum(0).flip(0) - values
    for _ in range(2):
        policy, value = agent(states.flatten(0, 1))
        ratio = (policy.log_prob(actions.flatten()) - chances.flatten()).exp()
        gain = torch.min(ratio * advantages.flatten(), ratio.clamp(0.8, 1.2) * advantages.flatten())
        error = (value - (advantages + values).flatten()).square()
        loss = (0.5 * error - gain - 0.01 * policy.entropy()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main():
    torch.manual_seed(22)
    agent = Agent().to(DEVICE)
    optimizer = torch.optim.Adam(agent.parameters(), lr=3e-4)
    states = torch.zeros(LENGTH, ENVIRONMENTS, FEATURES, device=DEVICE)
    actions = torch.zeros(LENGTH, ENVIRONMENTS, dtype=torch.long, device=DEVICE)
    chances, values = torch.zeros(2, LENGTH, ENVIRONMENTS, device=DEVICE)
    for step in range(10):
        rollout(agent, states, actions, chances, values)
        print(f"{step}: {update(agent, optimizer, states, actions, chances, values):.3f}")
        report(step)


if __name__ == "__main__":
    main()
