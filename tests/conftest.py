"""Tests neither find nor leave measurements in the user's cache. Their operators are small, and a
worker of pytest for each core runs them: threads of their own would only wait for each other. No
test fails since it took long."""

import os
import tempfile

import hypothesis

os.environ["TENSOROPT_HOME"] = tempfile.mkdtemp(prefix="tensoropt-tests-")
os.environ.setdefault("OMP_NUM_THREADS", "1")
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")
