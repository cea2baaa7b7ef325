"""The module that builds the site, docs/build.py, which is in no package."""

import importlib.util

from tests.support.page_code import ROOT

spec = importlib.util.spec_from_file_location("build_site", ROOT / "docs" / "build.py")
site = importlib.util.module_from_spec(spec)
spec.loader.exec_module(site)
