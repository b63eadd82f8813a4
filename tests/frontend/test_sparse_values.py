"""Sparse and nested tensors are refused by name, before anything is planned with them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import capture
from tests.distributed.sparse_models import Neighbours

DENSE = torch.eye(4)


class _Graph(nn.Module):
    def __init__(self, adjacent: Tensor | None = None, trained: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        if trained:
            self.weights = nn.Parameter(adjacent)
        else:
            self.register_buffer("adjacent", adjacent)

    def forward(self, x: Tensor, adjacent: Tensor | None = None) -> Tensor:
        own = self.adjacent if adjacent is None else adjacent
        return torch.sparse.mm(own, self.layer(x)).square().mean()


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("to_sparse", [Tensor.to_sparse, Tensor.to_sparse_csr, Tensor.to_mkldnn])
def test_inputs_buffers_and_parameters_are_named(to_sparse: Callable[[Tensor], Tensor]) -> None:
    special = to_sparse(DENSE)
    x = torch.randn(4, 4)
    with pytest.raises(TensorOptError, match=r"input args\[1\] of _Graph is a .* tensor"):
        capture(_Graph(), (x, special))
    with pytest.raises(TensorOptError, match=r"input adjacent of _Graph is a .* tensor"):
        capture(_Graph(), (x,), {"adjacent": special})
    with pytest.raises(TensorOptError, match=r"buffer 'adjacent' of _Graph is a .* dense parts"):
        capture(_Graph(special), (x,))
    if special.is_sparse:
        with pytest.raises(TensorOptError, match=r"parameter 'weights' of _Graph is a sparse"):
            capture(_Graph(special, trained=True), (x,))


def test_nested_tensors_and_targets_are_named() -> None:
    nested = torch.nested.nested_tensor([DENSE, DENSE], layout=torch.jagged)
    loss = nn.functional.mse_loss
    with pytest.raises(TensorOptError, match=r"input targets\[0\] of Linear is a nested tensor"):
        capture(nn.Linear(4, 4), (DENSE,), loss_fn=loss, targets=(nested,))


class _Scaled(Neighbours):
    def forward(self, x: Tensor) -> Tensor:
        adjacent = torch.sparse_coo_tensor(self.edges, self.weights, (4, 4)) * 2
        return self.last(torch.sparse.mm(adjacent, self.first(x)).relu()).square().mean()


@pytest.mark.filterwarnings("ignore:operator 'aten")
def test_a_sparse_operand_of_what_may_be_split_is_refused() -> None:
    with pytest.raises(TensorOptError, match=r"'mul' \(aten.mul.Tensor\) reads a sparse tensor"):
        capture(_Scaled(), (torch.randn(4, 6),))
    capture(Neighbours(), (torch.randn(4, 6),))
