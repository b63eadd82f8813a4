"""What every study imports, for the server that their processes are forked from."""

import importlib
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers

    importlib.import_module("transformers.modeling_utils")
    importlib.import_module("benchmarks.families.study")

transformers.logging.set_verbosity_error()
