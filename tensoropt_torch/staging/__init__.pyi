from .asked import with_stage_search
from .contenders import find_contenders
from .finding import find_stages
from .grids import with_grids
from .options import StageOptions
from .parts import plan_stages
from .running import stages_of

__all__ = [
    "StageOptions",
    "find_contenders",
    "find_stages",
    "plan_stages",
    "stages_of",
    "with_grids",
    "with_stage_search",
]
