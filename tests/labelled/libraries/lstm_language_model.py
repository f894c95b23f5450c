"""Trains an LSTM language model by truncated backpropagation; the states are detached."""

import torch
from progress import report
from torch import nn
from torch.nn import functional

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Model(nn.Module):
    def __init__(self, width=512, vocabulary=5000):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.cells = nn.LSTM(width, width, num_layers=2, dropout=0.2)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens, state):
        x, state = self.cells(self.tokens(tokens), state)
        return self.head(x), state


def main():
    torch.manual_seed(23)
    model = Model().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    text = torch.randint(5000, (16 * 48 + 1, 32), device=DEVICE)
    state = None
    for step in range(16):
        inputs, targets = text[48 * step : 48 * step + 48], text[48 * step + 1 : 48 * step + 49]
        if state is not None:
            state = tuple(it.detach() for it in state)
        outputs, state = model(inputs, state)
        loss = functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        print(f"{step}: {loss.item():.3f}")
        report(step)


if __name__ == "__main__":
    main()
