from .check import RuleReport, check_rule
from .register import LocalCall, register_rule, unregister_rule

__all__ = ["LocalCall", "RuleReport", "check_rule", "register_rule", "unregister_rule"]
