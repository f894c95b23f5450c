"""Trains a small language model by policy gradients on its own completions."""

import torch
from torch import nn

VOCABULARY, WIDTH, BATCH, LENGTH = 64_000, 512, 2, 1024


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.body = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.SiLU(), nn.Linear(4 * WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids):
        hidden = self.embedding(ids)
        return self.head(hidden + self.body(hidden))


def get_per_token_logps(policy, ids):
    logits = policy(ids[:, :-1])
    logits = logits.float()
    logps = logits.log_softmax(dim=-1)
    return logps.gather(-1, ids[:, 1:, None]).squeeze(-1)


def train_step(policy, optimizer, ids):
    advantages = torch.randn(BATCH, 1, device="cuda")
    logps = get_per_token_logps(policy, ids)
    loss = -(advantages * logps).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


def main():
    policy = Policy().to("cuda", torch.bfloat16)
    optimizer = torch.optim.SGD(policy.parameters(), lr=1e-3)
    weights = sum(it.nbytes for it in policy.parameters())
    for step in range(10):
        ids = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), device="cuda")
        with torch.profiler.record_function(f"step {step}"):
            loss = train_step(policy, optimizer, ids)
        print(f"step {step}: loss {loss:.3f}")
    print(f"weights {weights >> 20} MiB, peak {torch.cuda.max_memory_allocated() >> 20} MiB")


main()
