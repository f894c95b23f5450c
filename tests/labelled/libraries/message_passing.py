"""Trains a message-passing layer of the user's own with torch_geometric on batches of graphs."""

import torch
from progress import report
from torch import nn
from torch.nn import functional
from torch_geometric.data import Batch, Data
from torch_geometric.nn import MessagePassing, global_mean_pool

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class EdgeLayer(MessagePassing):
    def __init__(self, width):
        super().__init__(aggr="mean")
        self.net = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x, edges):
        return x + self.propagate(edges, x=x)

    def message(self, x_i, x_j):
        return self.net(torch.cat((x_i, x_j - x_i), dim=-1))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 128)
        self.layers = nn.ModuleList(EdgeLayer(128) for _ in range(3))
        self.last = nn.Linear(128, 1)

    def forward(self, batch):
        x = self.first(batch.x)
        for layer in self.layers:
            x = layer(x, batch.edge_index)
        return self.last(global_mean_pool(x, batch.batch)).squeeze(-1)


def random_graph():
    return Data(x=torch.randn(40, 16), edge_index=torch.randint(40, (2, 240)), y=torch.randn(1))


def main():
    torch.manual_seed(15)
    graphs = [random_graph() for _ in range(256)]
    model = Network().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(12):
        chosen = [graphs[index] for index in torch.randperm(256)[:96]]
        batch = Batch.from_data_list(chosen).to(DEVICE)
        loss = functional.mse_loss(model(batch), batch.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{step}: {loss.item():.3f}")
        report(step)


if __name__ == "__main__":
    main()
