"""Trains a GraphSAGE of torch_geometric on batches of sampled nodes of a graph in host memory."""

import torch
from progress import report
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE
from torch_geometric.utils import subgraph

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def sample(graph, count):
    nodes = torch.randperm(graph.num_nodes)[:count]
    edges, _ = subgraph(nodes, graph.edge_index, relabel_nodes=True, num_nodes=graph.num_nodes)
    return Data(x=graph.x[nodes], edge_index=edges, y=graph.y[nodes]).to(DEVICE)


def main():
    torch.manual_seed(14)
    nodes = 20_000
    graph = Data(
        x=torch.randn(nodes, 128),
        edge_index=torch.randint(nodes, (2, 20 * nodes)),
        y=torch.randint(20, (nodes,)),
    )
    model = GraphSAGE(128, hidden_channels=512, num_layers=3, out_channels=20, dropout=0.2).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    model.train()
    for step in range(16):
        batch = sample(graph, 8000)
        loss = functional.cross_entropy(model(batch.x, batch.edge_index), batch.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{step}: {loss.item():.3f}")
        report(step)


if __name__ == "__main__":
    main()
