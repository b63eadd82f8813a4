"""The public functions.

Planning alone needs no GPU, no process group and no real parameters::

    frontier = tensoropt_torch.find_frontier(model, (tokens, targets),
                                             cluster="h100-8", num_devices=8)
    plan = frontier.at(memory_bytes=60e9).plan

Training under torchrun::

    tensoropt_torch.init()
    parallel = tensoropt_torch.auto_parallel(model, (tokens, targets))
    optimizer = torch.optim.AdamW(parallel.parameters())
    loss = parallel(tokens, targets)

Each is found in its module when it is asked for, as ``__init__.pyi`` says.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
