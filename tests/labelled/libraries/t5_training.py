"""Trains a small T5 of transformers on pairs of texts, and generates from it at the end."""

import torch
from progress import report
from transformers import T5Config, T5ForConditionalGeneration

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main():
    torch.manual_seed(3)
    config = T5Config(
        vocab_size=3000, d_model=256, d_kv=32, d_ff=1024, num_layers=3, num_heads=8, decoder_start_token_id=0
    )
    model = T5ForConditionalGeneration(config).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model.train()
    for step in range(10):
        inputs = torch.randint(1, 3000, (12, 128)).to(DEVICE)
        labels = torch.randint(1, 3000, (12, 96)).to(DEVICE)
        loss = model(input_ids=inputs, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{step}: {loss.item():.3f}")
        report(step)
    model.eval()
    tokens = model.generate(torch.randint(1, 3000, (4, 64), device=DEVICE), max_new_tokens=8)
    print(tokens.shape)


if __name__ == "__main__":
    main()
