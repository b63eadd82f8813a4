"""The search for strategies: settings, frontier, options.

What explains plans and shows them, which few jobs do, is found in its module when it is asked for,
as ``__init__.pyi`` says.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
