"""Rules of operators: checking them by running them, and registering rules for
operators of the user's own.

Each name is found in its module when it is asked for, as ``__init__.pyi`` says; and what tries how
calls of Python can be split, when a model has one.
"""

import lazy_loader
from torch import fx

from tensoropt_torch.frontend.python_calls import Proof, use_prover

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def _prove(node: fx.Node) -> Proof:
    from tensoropt_torch.rules.call_rules import prover
    from tensoropt_torch.rules.register import declare_found

    return prover(declare_found)(node)


use_prover(_prove)
