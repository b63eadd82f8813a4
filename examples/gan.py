"""Train a generator of handwritten digits against a discriminator.

torchrun --nproc-per-node 2 --local-ranks-filter 0 examples/gan.py [steps]
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset

import tensoropt_torch

NOISE, BATCH = 16, 64

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 40
device = tensoropt_torch.init()
torch.manual_seed(0)
images = torch.tensor(load_digits().images, dtype=torch.float32).flatten(1) / 8 - 1
loader = DataLoader(TensorDataset(images), batch_size=BATCH, shuffle=True, drop_last=True)

generator = nn.Sequential(
    nn.Linear(NOISE, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 64), nn.Tanh()
).to(device)
discriminator = nn.Sequential(
    nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Linear(128, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)
).to(device)
noise = torch.empty(BATCH, NOISE, device=device)
generator = tensoropt_torch.auto_parallel(generator, (noise,))
discriminator = tensoropt_torch.auto_parallel(discriminator, (images[:BATCH].to(device),))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
real, fake = torch.ones(BATCH, 1, device=device), torch.zeros(BATCH, 1, device=device)

step = 0
while step < steps:
    for (x,) in loader:
        made = generator(torch.randn(BATCH, NOISE, device=device))
        loss_d = binary_cross_entropy_with_logits(discriminator(x.to(device)), real)
        loss_d = loss_d + binary_cross_entropy_with_logits(discriminator(made.detach()), fake)
        optimizer_d.zero_grad()
        loss_d.backward()
        optimizer_d.step()

        loss_g = binary_cross_entropy_with_logits(discriminator(made), real)
        optimizer_g.zero_grad()
        loss_g.backward()
        optimizer_g.step()
        step += 1
        if step % 10 == 0:
            print(f"step {step}: discriminator {loss_d.item():.4f}, generator {loss_g.item():.4f}")
        if step == steps:
            break
generator.eval()
with torch.no_grad():
    samples = generator(torch.randn(5, NOISE, device=device))
print(f"samples of mean {samples.mean().item():.4f}")
torch.distributed.destroy_process_group()
