"""Hugging Face Accelerate: one line after `prepare`. `save_state` and `load_state` see to the rest.

torchrun --standalone --nproc-per-node 2 examples/with_accelerate.py
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gradwire as gw
from gradwire.integrations.accelerate import attach
from gradwire.lab.mnist import load_mnist, perceptron


def main() -> None:
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    digits, model = load_mnist(), perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(
        TensorDataset(digits.train.inputs, digits.train.targets), batch_size=32, shuffle=True
    )
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    handle = attach(accelerator, model, gw.QSGD(bits=2), error_feedback=True)

    for images, labels in loader:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(images), labels))
        optimizer.step()

    outputs = accelerator.unwrap_model(model)(digits.test.inputs)
    right = (outputs.argmax(1) == digits.test.targets).float().mean()
    accelerator.print(f"accuracy {right:.1%}")
    if handle is not None:  # None: a single process has nobody to send gradients to
        handle.close()
        accelerator.print(f"{handle.stats().bytes_per_step:,.0f} bytes a step")
    accelerator.end_training()


if __name__ == "__main__":
    main()
