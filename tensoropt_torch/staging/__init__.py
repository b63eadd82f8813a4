"""Plans of a model in stages: given, or searched; and the modules that run them.

Each name is found in its module when it is asked for, as ``__init__.pyi`` says.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
