"""Trains a GCN of torch_geometric on the whole of one random graph."""

import torch
from progress import report
from torch import nn
from torch.nn import functional
from torch_geometric.nn import GCNConv

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = GCNConv(128, 256), GCNConv(256, 16)

    def forward(self, x, edges):
        x = functional.relu(self.first(x, edges))
        return self.second(functional.dropout(x, training=self.training), edges)


def main():
    torch.manual_seed(13)
    nodes = 10_000
    x = torch.randn(nodes, 128, device=DEVICE)
    edges = torch.randint(nodes, (2, 8 * nodes), device=DEVICE)
    labels = torch.randint(16, (nodes,), device=DEVICE)
    known = torch.rand(nodes, device=DEVICE) < 0.5
    model = Network().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for step in range(16):
        model.train()
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x, edges)[known], labels[known])
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            right = (model(x, edges).argmax(dim=1) == labels)[~known].float().mean().item()
        print(f"{step}: {loss.item():.3f} {right:.2f}")
        report(step)


if __name__ == "__main__":
    main()
