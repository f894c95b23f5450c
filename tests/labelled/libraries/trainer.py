"""Fine-tunes a small DistilBERT with the Trainer of transformers."""

import tempfile

import torch
from progress import report
from transformers import DistilBertConfig, DistilBertForSequenceClassification, Trainer, TrainerCallback
from transformers import TrainingArguments

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Reports(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        report(state.global_step)


class Texts(torch.utils.data.Dataset):
    def __init__(self, count):
        self.tokens = torch.randint(3000, (count, 96))
        self.labels = torch.randint(3, (count,))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.labels[index]}


def main():
    torch.manual_seed(6)
    config = DistilBertConfig(vocab_size=3000, dim=384, n_layers=3, n_heads=6, hidden_dim=1536, num_labels=3)
    model = DistilBertForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=16, max_steps=12, save_strategy="no", report_to=[],
            logging_steps=4, disable_tqdm=True, use_cpu=DEVICE == "cpu",
        )  # fmt: skip
        trainer = Trainer(model=model, args=arguments, train_dataset=Texts(256), callbacks=[Reports()])
        trainer.train()
        trainer.eval_dataset = Texts(48)
        print(trainer.evaluate())


if __name__ == "__main__":
    main()
