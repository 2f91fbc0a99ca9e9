"""Lightning: one callback.

python examples/with_lightning.py    (Lightning starts the second worker itself)
"""

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import gradwire as gw
from gradwire.integrations.lightning import Compress
from gradwire.lab.mnist import load_mnist, perceptron


class Digits(lightning.LightningModule):
    """784-300-100-10 on MNIST."""

    def __init__(self) -> None:
        super().__init__()
        self.net = perceptron()

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the loss of a batch."""
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD with momentum."""
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def main() -> None:
    lightning.seed_everything(0)
    digits, model = load_mnist(), Digits()
    train = TensorDataset(digits.train.inputs, digits.train.targets)
    compress = Compress(gw.QSGD(bits=4))
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, callbacks=[compress],
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
    )  # fmt: skip
    trainer.fit(model, DataLoader(train, batch_size=32, shuffle=True))

    right = (model.net(digits.test.inputs).argmax(1) == digits.test.targets).float().mean()
    if trainer.is_global_zero and compress.handle is not None:
        stats = compress.handle.stats()
        print(f"accuracy {right:.1%}, {stats.bytes_per_step:,.0f} bytes a step")


if __name__ == "__main__":
    main()
