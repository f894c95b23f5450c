"""Trains a sentence-transformers model on pairs of sentences, and encodes sentences with it."""

import tempfile

import torch
from progress import report
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WORDS = [f"word{number}" for number in range(2000)]


def build_model(folder):
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=64
    ).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=384, num_hidden_layers=4, num_attention_heads=6,
        intermediate_size=1536,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    body = Transformer(folder, max_seq_length=64)
    return SentenceTransformer(modules=[body, Pooling(384)], device=DEVICE)


def sentences(count):
    return [" ".join(WORDS[index] for index in torch.randint(2000, (48,)).tolist()) for _ in range(count)]


def on_device(value):
    return value.to(DEVICE) if torch.is_tensor(value) else value


def main():
    torch.manual_seed(16)
    with tempfile.TemporaryDirectory() as folder:
        model = build_model(folder)
    criterion = MultipleNegativesRankingLoss(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    model.train()
    for step in range(10):
        texts = [model.preprocess(sentences(24)) for _ in range(2)]
        pairs = [{name: on_device(it) for name, it in text.items()} for text in texts]
        loss = criterion(pairs, torch.arange(24, device=DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{step}: {loss.item():.3f}")
        report(step)
    model.eval()
    print(model.encode(sentences(96), batch_size=32, show_progress_bar=False).shape)


if __name__ == "__main__":
    main()
