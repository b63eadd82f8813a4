"""What acts through Python beside the calls of operators, while a model is captured."""

from tensoropt_torch.frontend.watching.attribute_uses import (
    Attributes,
    Images,
    Owner,
    Place,
    owners_of,
    value_at,
)
from tensoropt_torch.frontend.watching.capturing import (
    capture_numbers,
    same_graphs,
    watched_capture,
)
from tensoropt_torch.frontend.watching.forward import ForwardWatch
from tensoropt_torch.frontend.watching.images import (
    MISSING,
    Fields,
    Identity,
    Image,
    differences,
    image_of,
    is_atom,
    is_fixed,
    is_portable,
    restricted,
    told,
)
from tensoropt_torch.frontend.watching.lifting import Lifted, Numbers
from tensoropt_torch.frontend.watching.numbers import UnfollowableError

__all__ = [
    "MISSING",
    "Attributes",
    "Fields",
    "ForwardWatch",
    "Identity",
    "Image",
    "Images",
    "Lifted",
    "Numbers",
    "Owner",
    "Place",
    "UnfollowableError",
    "capture_numbers",
    "differences",
    "image_of",
    "is_atom",
    "is_fixed",
    "is_portable",
    "owners_of",
    "restricted",
    "same_graphs",
    "told",
    "value_at",
    "watched_capture",
]
