"""Steps of Lightning and ``transformers`` whose rows are in several dims, whose calls are chained,
or whose batches have other lengths on each rank, against one process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import lightning
import torch
import torch.distributed as dist
import transformers
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, DistributedSampler, SequentialSampler

from tensoropt_torch import PlanningOptions
from tensoropt_torch.integrations.lightning import TensorOptStrategy
from tensoropt_torch.integrations.transformers import Trainer
from tests.distributed.parity import whole

SHARE, TIME, WIDTH, STEPS = 4, 5, 8, 4
RATE = 0.2
TOLERANCE = 1e-4  # of parameters after the steps, in float32
OFF = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}


class Recurrent(nn.Module):
    """Time first, with a state (layers, rows, width) and position ids (3, rows, time)."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Embedding(8, WIDTH)
        self.rnn, self.head = nn.GRU(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, state: Tensor, positions: Tensor, table: Tensor) -> Any:
        x = x + self.positions(positions).sum(0).transpose(0, 1) + table
        hidden, last = self.rnn(x, state)
        return self.head(hidden), last, self.scale.exp()


class Data(Dataset[Tensor]):
    def __init__(self, count: int) -> None:
        self.rows = torch.randn(count, TIME, WIDTH, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        return self.rows[index]


TABLE = torch.linspace(-1, 1, WIDTH)


def loss_of(module: nn.Module, rows: Tensor) -> Tensor:
    """Of two calls, the second of what the first gives."""
    x = rows.transpose(0, 1)
    positions = (rows[..., :3].permute(2, 0, 1).abs() * 4).long() % 8
    hidden, state, scale = module(x, rows[:, 0].tanh()[None], positions, TABLE)
    hidden, state, scale = module(x * scale, state, positions, TABLE)
    return (hidden * scale - x).square().mean() + state.square().mean()


class Step(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = Recurrent()

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return loss_of(self.model, batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=RATE)


def with_lightning(accumulated: int) -> list[str]:
    """What differs after steps of so many batches each."""
    world, rank = dist.get_world_size(), dist.get_rank()
    data = Data(SHARE * world * STEPS * accumulated)
    strategy = TensorOptStrategy(planning=PlanningOptions(measure=False))
    trainer = lightning.Trainer(
        devices=world, accelerator="cpu", strategy=strategy, max_epochs=1,
        accumulate_grad_batches=accumulated, use_distributed_sampler=False,
        enable_model_summary=False, **OFF,
    )  # fmt: skip
    sampler: Any = DistributedSampler(data, world, rank, shuffle=False)
    trainer.fit(Step(), DataLoader(data, SHARE, sampler=sampler))
    settings = strategy.parallel_module.plan.settings
    assert dict(settings.input_dims) == {"x": 1, "state": 1, "positions": 1}
    assert settings.whole_inputs == ("table",)
    one = Step().model
    optimizer = torch.optim.SGD(one.parameters(), lr=RATE)
    for number, batch in enumerate(data.rows.split(SHARE * world)):
        losses = [loss_of(one, batch[r::world]) for r in range(world)]
        (torch.stack(losses).mean() / accumulated).backward()
        if number % accumulated == accumulated - 1:
            optimizer.step()
            optimizer.zero_grad()
    return list(differences(strategy.parallel_module, one))


class Words(nn.Module):
    """Classifies words of different lengths; what is padded has no weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(32, WIDTH), nn.Linear(WIDTH, 3)

    def forward(
        self, ids: Tensor, mask: Tensor, positions: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        hidden = self.embedding(ids) * positions.sum(0)[..., None].cos()
        mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        logits = self.head(mean.tanh())
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def words(count: int) -> list[dict[str, Any]]:
    made = torch.Generator().manual_seed(2)
    lengths = [2 + 5 * number % 7 for number in range(count)]
    ids = [torch.randint(32, (length,), generator=made) for length in lengths]
    return [{"ids": found, "labels": int(found.sum()) % 3} for found in ids]


def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    lengths = [len(row["ids"]) for row in rows]
    ids = torch.zeros(len(rows), max(lengths), dtype=torch.long)
    for number, row in enumerate(rows):
        ids[number, : lengths[number]] = row["ids"]
    places = torch.arange(max(lengths)).expand(3, *ids.shape).contiguous()
    mask = (places[0] < torch.tensor(lengths)[:, None]).float()
    labels = torch.tensor([row["labels"] for row in rows])
    return {"ids": ids, "mask": mask, "positions": places, "labels": labels}


class InOrder(Trainer):
    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        return SequentialSampler(self.train_dataset)


def rarely_long(count: int, first: int) -> list[dict[str, Any]]:
    """Words that are padded to one length, but for the one at ``first``, which nobody looks at
    before it comes."""
    found = words(count)
    found[first] = {**found[first], "ids": torch.arange(13)}
    return found


def collate_in_eights(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """As ``pad_to_multiple_of=8``."""
    batch = collate(rows)
    more = -batch["ids"].shape[1] % 8
    padded = {name: F.pad(batch[name], (0, more)) for name in ("ids", "mask", "positions")}
    return {**padded, "labels": batch["labels"]}


def with_rare_lengths(_: None) -> list[str]:
    """The second batch of rank 0 is longer than all that was seen."""
    data = rarely_long(400, first=SHARE * dist.get_world_size() + 1)
    return trained(data, collate_in_eights, {})


def with_trainer(options: dict[str, Any]) -> list[str]:
    return trained(words(SHARE * dist.get_world_size() * STEPS), collate, options)


def trained(
    data: list[dict[str, Any]], collate: Callable[..., Any], options: dict[str, Any]
) -> list[str]:
    world = dist.get_world_size()
    model = Words()
    holder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(holder, 0)
    args = transformers.TrainingArguments(
        output_dir=str(holder[0]), use_cpu=True, per_device_train_batch_size=SHARE,
        max_steps=STEPS, learning_rate=RATE, lr_scheduler_type="constant", max_grad_norm=0,
        report_to="none", save_strategy="no", disable_tqdm=True, remove_unused_columns=False,
        **options,
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    trainer = InOrder(
        model=model, args=args, train_dataset=data, eval_dataset=data[: SHARE * world + 1],
        data_collator=collate, planning=PlanningOptions(measure=False),
        optimizers=(optimizer, None),
    )  # fmt: skip
    trainer.train()
    one = Words()
    own = torch.optim.SGD(one.parameters(), lr=RATE)
    for step in range(STEPS):
        own.zero_grad()
        one(**collate(data[step * SHARE * world : (step + 1) * SHARE * world]))["loss"].backward()
        own.step()
    found = list(differences(trainer.model, one))
    logits = torch.tensor(trainer.predict(data[: SHARE * world + 1]).predictions)
    wanted = one(**collate(data[: SHARE * world + 1]))["logits"]
    if not torch.allclose(logits, wanted, rtol=TOLERANCE, atol=TOLERANCE):
        found.append(f"predictions are off by {float((logits - wanted).abs().max())}")
    return found


def differences(parallel: nn.Module, one: nn.Module) -> Iterator[str]:
    theirs = dict(parallel.named_parameters())
    for name, parameter in one.named_parameters():
        error = float((whole(theirs[name]) - parameter).abs().max())
        if not error <= TOLERANCE:
            yield f"{name} is off by {error}"


class Graphs(lightning.LightningModule):
    """Nodes of all graphs of a batch in one dim, and edges between them."""

    def __init__(self, make: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.make = make
        self.model = nn.Bilinear(WIDTH, WIDTH, 1)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        out: Tensor = self.model(*self.make(batch))
        return out.mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=RATE)


def refused(inputs: dict[str, Any] | None) -> str:
    """What is said of nodes in dim 0."""
    world, rank = dist.get_world_size(), dist.get_rank()
    data = Data(SHARE * world * STEPS)
    strategy = TensorOptStrategy(planning=PlanningOptions(measure=False), inputs=inputs)
    trainer = lightning.Trainer(
        devices=world, accelerator="cpu", strategy=strategy, max_epochs=1, max_steps=1,
        use_distributed_sampler=False, enable_model_summary=False, **OFF,
    )  # fmt: skip
    sampler: Any = DistributedSampler(data, world, rank, shuffle=False)
    step = Graphs(lambda batch: (batch.flatten(0, 1), batch.flatten(0, 1)))
    try:
        trainer.fit(step, DataLoader(data, SHARE, sampler=sampler))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"
