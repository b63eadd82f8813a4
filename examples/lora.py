"""Fine-tune a small Llama with LoRA, and write the adapter.

torchrun --nproc-per-node 2 --local-ranks-filter 0 examples/lora.py [steps] [folder]
"""

import sys
from pydoc_data.topics import topics

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM

import tensoropt_torch

LENGTH, BATCH = 32, 8

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20
folder = sys.argv[2] if len(sys.argv) > 2 else "adapter"
device = tensoropt_torch.init()
torch.manual_seed(0)
text = "\n".join(topics[name] for name in sorted(topics)).encode()
rows = torch.frombuffer(bytearray(text), dtype=torch.uint8)[: len(text) // LENGTH * LENGTH]
rows = rows.view(-1, LENGTH).long()
train = DataLoader(TensorDataset(rows), batch_size=BATCH, shuffle=True, drop_last=True)

config = LlamaConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)
model = LlamaForCausalLM(config)  # from_pretrained("...") with a model of the hub
lora = LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=64, target_modules="all-linear")
model = get_peft_model(model, lora).to(device)
ids = rows[:BATCH].to(device)
model = tensoropt_torch.auto_parallel(model, (), {"input_ids": ids, "labels": ids})
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)

batches = iter(train)
for step in range(1, steps + 1):
    (ids,) = next(batches)
    ids = ids.to(device)
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 5 == 0:
        print(f"step {step}: loss {loss.item():.4f}")
tensoropt_torch.save_pretrained(model, folder)
torch.distributed.destroy_process_group()
