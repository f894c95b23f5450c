"""Trains a small GPT-2 of transformers."""

import torch
from progress import report
from transformers import GPT2Config, GPT2LMHeadModel

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def train_step(model, optimizer, tokens):
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def main():
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=4000, n_positions=256, n_embd=384, n_layer=4, n_head=6)
    model = GPT2LMHeadModel(config).to(DEVICE)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(12):
        tokens = torch.randint(4000, (8, 256), device=DEVICE)
        print(f"{step}: {train_step(model, optimizer, tokens):.3f}")
        report(step)


if __name__ == "__main__":
    main()
