"""Tests neither find nor leave measurements in the user's cache. Their operators are small, and a
worker of pytest for each core runs them: threads of their own would only wait for each other."""

import os
import tempfile

os.environ["TENSOROPT_HOME"] = tempfile.mkdtemp(prefix="tensoropt-tests-")
os.environ.setdefault("OMP_NUM_THREADS", "1")
