"""Plans of a model in stages: given, or searched; and the modules that run them."""

from tensoropt_torch.staging.finding import find_stages
from tensoropt_torch.staging.found import with_stage_search
from tensoropt_torch.staging.grids import with_grids
from tensoropt_torch.staging.options import StageOptions
from tensoropt_torch.staging.parts import plan_stages
from tensoropt_torch.staging.running import stages_of

__all__ = [
    "StageOptions",
    "find_stages",
    "plan_stages",
    "stages_of",
    "with_grids",
    "with_stage_search",
]
