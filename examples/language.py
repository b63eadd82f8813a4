"""Train a small GPT-2 on text, with accumulated gradients and a schedule of the learning rate.

torchrun --nproc-per-node 2 --local-ranks-filter 0 examples/language.py [steps]
"""

import sys
from pydoc_data.topics import topics

import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup

import tensoropt_torch

LENGTH, BATCH, ACCUMULATED = 64, 8, 2

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 30
device = tensoropt_torch.init()
torch.manual_seed(0)
text = "\n".join(topics[name] for name in sorted(topics)).encode()
rows = torch.frombuffer(bytearray(text), dtype=torch.uint8)[: len(text) // LENGTH * LENGTH]
rows = rows.view(-1, LENGTH).long()
train = DataLoader(TensorDataset(rows[:-20]), batch_size=BATCH, shuffle=True, drop_last=True)
valid = DataLoader(TensorDataset(rows[-20:]), batch_size=BATCH)

config = GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4)
config.bos_token_id = config.eos_token_id = 0
config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
model = GPT2LMHeadModel(config).to(device)
ids = rows[:BATCH].to(device)
model = tensoropt_torch.auto_parallel(model, (), {"input_ids": ids, "labels": ids})
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
schedule = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=5, num_training_steps=steps)


def validate() -> float:
    """The mean loss of the rows that are not trained on."""
    model.eval()
    total = 0.0
    with torch.no_grad():
        for (ids,) in valid:
            ids = ids.to(device)
            total += model(input_ids=ids, labels=ids).loss.item() * len(ids)
    model.train()
    return total / len(valid.dataset)


batches = iter(train)
for step in range(1, steps + 1):
    total = 0.0
    for _ in range(ACCUMULATED):
        ids = next(batches)[0].to(device)
        loss = model(input_ids=ids, labels=ids).loss / ACCUMULATED
        loss.backward()
        total += loss.item()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    if step % 10 == 0:
        print(f"step {step}: loss {total:.4f}, norm {norm.item():.4f}, valid {validate():.4f}")
torch.distributed.destroy_process_group()
