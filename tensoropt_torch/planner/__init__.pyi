from .frontier_page import Additions, write_frontier_page
from .why import WhyPlan, explain_plan
from .why_stages import WhyStages, explain_stages

__all__ = [
    "Additions",
    "WhyPlan",
    "WhyStages",
    "explain_plan",
    "explain_stages",
    "write_frontier_page",
]
