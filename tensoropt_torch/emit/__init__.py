"""The graph of one rank, written from what its part of a plan does.

Compiled graphs, which few jobs have, are found here in their module when they are asked for, as
``__init__.pyi`` says.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
