"""What acts through Python beside the calls of operators, while a model is captured."""

from tensoropt_torch.frontend.watching.attributes import (
    Attributes,
    Images,
    Owner,
    Place,
    Written,
    owners_of,
    value_at,
)
from tensoropt_torch.frontend.watching.capturing import same_graphs, watched_capture
from tensoropt_torch.frontend.watching.forward import ForwardWatch
from tensoropt_torch.frontend.watching.images import (
    MISSING,
    Image,
    image_of,
    is_atom,
    is_portable,
    told,
)
from tensoropt_torch.frontend.watching.random_numbers import Draws

__all__ = [
    "MISSING",
    "Attributes",
    "Draws",
    "ForwardWatch",
    "Image",
    "Images",
    "Owner",
    "Place",
    "Written",
    "image_of",
    "is_atom",
    "is_portable",
    "owners_of",
    "same_graphs",
    "told",
    "value_at",
    "watched_capture",
]
