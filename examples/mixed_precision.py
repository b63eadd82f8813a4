"""Train a small network on handwritten digits in mixed precision.

torchrun --nproc-per-node 2 --local-ranks-filter 0 examples/mixed_precision.py [epochs]
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tensoropt_torch

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
device = tensoropt_torch.init()
torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
labels = torch.tensor(digits.target)
train = DataLoader(TensorDataset(images[:1500], labels[:1500]), 64, shuffle=True, drop_last=True)
valid = DataLoader(TensorDataset(images[1500:], labels[1500:]), 64)

model = nn.Sequential(
    nn.Linear(64, 256),
    nn.LayerNorm(256),
    nn.GELU(),
    nn.Linear(256, 64),
    nn.GELU(),
    nn.Linear(64, 10),
).to(device)
with torch.autocast(device.type, dtype=torch.float16):
    model = tensoropt_torch.auto_parallel(model, (images[:64].to(device),))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)

for epoch in range(epochs):
    model.train()
    total = 0.0
    for x, y in train:
        with torch.autocast(device.type, dtype=torch.float16):
            loss = criterion(model(x.to(device)), y.to(device))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        total += loss.item()
    model.eval()
    right = 0
    with torch.no_grad(), torch.autocast(device.type, dtype=torch.float16):
        for x, y in valid:
            right += (model(x.to(device)).argmax(1) == y.to(device)).sum().item()
    print(
        f"epoch {epoch + 1}: loss {total / len(train):.4f}, {right} of {len(valid.dataset)} right"
    )
print(f"scale {scaler.get_scale():.0f}")
torch.distributed.destroy_process_group()
