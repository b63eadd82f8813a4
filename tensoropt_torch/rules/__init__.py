"""Rules of operators: checking them by running them, and registering rules for
operators of the user's own."""

from tensoropt_torch.rules.check import RuleReport, check_rule
from tensoropt_torch.rules.register import LocalCall, register_rule, unregister_rule

__all__ = ["LocalCall", "RuleReport", "check_rule", "register_rule", "unregister_rule"]
