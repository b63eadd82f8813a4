"""Character-level text that every CPython carries: its own language reference."""

from dataclasses import dataclass
from pydoc_data.topics import topics

import torch
from torch import Tensor

VOCAB_MULTIPLE = 16
TRAIN_SHARE = 0.9


@dataclass(frozen=True)
class CharText:
    """A text as character ids, with its vocabulary and a training split.

    Attributes:
        characters: the vocabulary, sorted; the id of a character is its index.
        ids: the training text, int64, (length,).
        vocab_size: len(characters) rounded up, so that it can be split evenly.

    """

    characters: str
    ids: Tensor
    vocab_size: int

    def batch(
        self, step: int, batch_size: int, block_size: int, seed: int = 0
    ) -> tuple[Tensor, Tensor]:
        """The global batch of a step: the same on every rank.

        Returns:
            Inputs and targets, int64, both (batch_size, block_size); a target is
            the character after its input.

        """
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        last = len(self.ids) - block_size
        starts = torch.randint(last, (batch_size, 1), generator=generator)
        windows = self.ids[starts + torch.arange(block_size + 1)]
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def load_text() -> CharText:
    """The topics of ``pydoc`` (about half a megabyte), by name."""
    text = "\n".join(topics[name] for name in sorted(topics))
    characters = "".join(sorted(set(text)))
    id_of = {character: index for index, character in enumerate(characters)}
    train = text[: int(TRAIN_SHARE * len(text))]
    return CharText(
        characters=characters,
        ids=torch.tensor([id_of[character] for character in train]),
        vocab_size=-(-len(characters) // VOCAB_MULTIPLE) * VOCAB_MULTIPLE,
    )
