import pytest

from hotrows.data import prepare
from hotrows.train import program
from hotrows.train.export import export
from tests.support.bundles import trained
from tests.support.clicks import SCHEMA, table


@pytest.fixture(scope="session")
def clicks_encoded(tmp_path_factory):
    return prepare(table(400), SCHEMA, tmp_path_factory.mktemp("clicks") / "enc", split="position:0.8")


@pytest.fixture(scope="session")
def din_run(clicks_encoded, tmp_path_factory):
    return trained(clicks_encoded, tmp_path_factory.mktemp("din") / "run", "din")


@pytest.fixture
def one_trace(monkeypatch):
    """Traces a model once in a test, however often and in whatever format it is exported."""
    programs, trace = {}, program.torch_program

    def traced(plain):
        name = type(plain.model).__name__
        if name not in programs:
            programs[name] = trace(plain)
        return programs[name]

    monkeypatch.setattr("hotrows.train.bundles.torch_program", traced)


@pytest.fixture(scope="session")
def din_bundle(din_run, tmp_path_factory):
    return export(din_run, tmp_path_factory.mktemp("din_bundle") / "bundle", format="onnx")
