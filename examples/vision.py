"""Train a small ResNet on handwritten digits, with validation and checkpoints.

torchrun --nproc-per-node 2 --local-ranks-filter 0 examples/vision.py [epochs] [checkpoint]
"""

import os
import sys

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import tensoropt_torch


class Residual(nn.Module):
    """Two convolutions and what they add to."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(b, inputs, h, w) -> (b, outputs, h / stride, w / stride)."""
        return torch.relu(self.body(x) + self.skip(x))


epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
checkpoint = sys.argv[2] if len(sys.argv) > 2 else "vision.pt"
device = tensoropt_torch.init()
torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
data = TensorDataset(images, torch.tensor(digits.target))
train_data, valid_data = torch.utils.data.random_split(data, [1500, 297])
train = DataLoader(train_data, batch_size=64, shuffle=True, drop_last=True)
valid = DataLoader(valid_data, batch_size=64)

model = nn.Sequential(
    Residual(1, 16, 1),
    Residual(16, 32, 2),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(32, 10),
).to(device)
model = tensoropt_torch.auto_parallel(model, (images[:64].to(device),))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

start = 0
if os.path.exists(checkpoint):
    saved = torch.load(checkpoint, map_location=device)
    model.load_state_dict(saved["model"])
    tensoropt_torch.load_optimizer(optimizer, saved["optimizer"])
    start = saved["epoch"]
for epoch in range(start, epochs):
    model.train()
    total = 0.0
    for x, y in train:
        loss = criterion(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item()
    model.eval()
    with torch.no_grad():
        right = sum((model(x.to(device)).argmax(1) == y.to(device)).sum().item() for x, y in valid)
    print(f"epoch {epoch + 1}: loss {total / len(train):.4f}, {right} of {len(valid_data)} right")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
    tensoropt_torch.save(state, checkpoint)
torch.distributed.destroy_process_group()
