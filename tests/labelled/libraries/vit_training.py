"""Trains a small ViT of transformers in bfloat16 autocast."""

import torch
from progress import report
from transformers import ViTConfig, ViTForImageClassification

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def train_step(model, optimizer, images, labels):
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        loss = model(pixel_values=images, labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


def main():
    torch.manual_seed(4)
    config = ViTConfig(
        hidden_size=384, num_hidden_layers=5, num_attention_heads=6, intermediate_size=1536, image_size=128,
        num_labels=50,
    )  # fmt: skip
    model = ViTForImageClassification(config).to(DEVICE).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(12):
        images = torch.randn(24, 3, 128, 128).to(DEVICE, non_blocking=True)
        labels = torch.randint(50, (24,)).to(DEVICE, non_blocking=True)
        print(f"{step}: {train_step(model, optimizer, images, labels):.3f}")
        report(step)


if __name__ == "__main__":
    main()
