"""Tests neither find nor leave measurements in the user's cache."""

import os
import tempfile

os.environ["TENSOROPT_HOME"] = tempfile.mkdtemp(prefix="tensoropt-tests-")
