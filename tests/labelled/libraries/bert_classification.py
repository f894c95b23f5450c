"""Fine-tunes a small BERT of transformers for classification, and evaluates it in each epoch."""

import torch
from progress import report
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def loader(count, shuffle):
    tokens = torch.randint(3000, (count, 128))
    return DataLoader(TensorDataset(tokens, torch.randint(4, (count,))), batch_size=16, shuffle=shuffle)


@torch.no_grad()
def accuracy(model, batches):
    model.eval()
    right, total = 0, 0
    for tokens, labels in batches:
        logits = model(input_ids=tokens.to(DEVICE)).logits
        right += (logits.argmax(dim=-1).cpu() == labels).sum().item()
        total += len(labels)
    model.train()
    return right / total


def main():
    torch.manual_seed(2)
    config = BertConfig(
        vocab_size=3000, hidden_size=384, num_hidden_layers=4, num_attention_heads=6, intermediate_size=1536,
        num_labels=4,
    )  # fmt: skip
    model = BertForSequenceClassification(config).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    schedule = get_linear_schedule_with_warmup(optimizer, 2, 16)
    train, test = loader(64, True), loader(32, False)
    step = 0
    for _ in range(4):
        for tokens, labels in train:
            loss = model(input_ids=tokens.to(DEVICE), labels=labels.to(DEVICE)).loss
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            report(step)
            step += 1
        print(f"{loss.item():.3f} {accuracy(model, test):.2f}")


if __name__ == "__main__":
    main()
