"""Rules of operators: checking them by running them, and registering rules for
operators of the user's own."""

from tensoropt_torch.frontend.python_calls import use_prover
from tensoropt_torch.rules.call_rules import prover
from tensoropt_torch.rules.check import RuleReport, check_rule
from tensoropt_torch.rules.register import (
    LocalCall,
    declare_found,
    register_rule,
    unregister_rule,
)

use_prover(prover(declare_found))

__all__ = ["LocalCall", "RuleReport", "check_rule", "register_rule", "unregister_rule"]
