"""What an ImportError of an optional package says: absent, or there and broken."""

import sys

import pytest

from hotrows.runtime.extras import needs


@pytest.mark.parametrize(
    "code, expected",
    [
        (None, r"a broker needs stubbed-broker \(No module named .*\): pip install stubbed-broker"),
        ("import its_need", r"stubbed-broker \(No module named 'its_need'\): pip install stubbed-broker"),
        ("from json import no_name", "cannot be imported: cannot import name 'no_name'.*--upgrade"),
        ("import json.no_part", "cannot be imported: No module named 'json.no_part'.*--upgrade"),
        ("", None),
    ],
    ids=["absent", "its own need is absent", "another version", "another version's part", "there"],
)
def test_an_absent_package_is_told_from_a_broken_one(tmp_path, monkeypatch, code, expected):
    if code is not None:
        (tmp_path / "stubbed_broker.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "stubbed_broker", raising=False)

    def imported():
        with needs("a broker", "stubbed-broker"):
            import stubbed_broker

            return stubbed_broker

    if expected is None:
        assert imported().__name__ == "stubbed_broker"
    else:
        with pytest.raises(ImportError, match=expected):
            imported()
