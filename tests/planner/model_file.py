"""A file that commands load a model from: ``FILE:build``."""

MODEL_FILE = """
import torch
def build():
    with torch.device("meta"):
        return torch.nn.Linear(64, 64), (torch.zeros(16, 64),)
"""
