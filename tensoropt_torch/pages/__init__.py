"""Pages and pictures of what the planner found: one HTML file that needs nothing else, and
charts. It knows no plan and no model, only texts and figures.

Pictures are found in their module when they are asked for, as ``__init__.pyi`` says.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
