"""Trains a module of the user's own with Lightning, with a validation in each epoch."""

import lightning
import torch
from progress import report
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(784, 2048), nn.ReLU(), nn.Dropout(0.1), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)
        )

    def training_step(self, batch, index):
        images, labels = batch
        loss = functional.cross_entropy(self.body(images), labels)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        images, labels = batch
        self.log("accuracy", (self.body(images).argmax(dim=1) == labels).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Reports(lightning.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        report(trainer.global_step)


def loader(count):
    return DataLoader(TensorDataset(torch.randn(count, 784), torch.randint(10, (count,))), batch_size=512)


def main():
    lightning.seed_everything(12)
    trainer = lightning.Trainer(
        max_epochs=3, accelerator="gpu" if DEVICE == "cuda" else "cpu", devices=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[Reports()],
    )  # fmt: skip
    trainer.fit(Classifier(), loader(2048), loader(1024))


if __name__ == "__main__":
    main()
