import pytest

from hotrows.data import prepare
from hotrows.train.export import export
from tests.support.bundles import trained
from tests.support.clicks import SCHEMA, table


@pytest.fixture(scope="session")
def clicks_encoded(tmp_path_factory):
    return prepare(table(400), SCHEMA, tmp_path_factory.mktemp("clicks") / "enc", split="position:0.8")


@pytest.fixture(scope="session")
def din_run(clicks_encoded, tmp_path_factory):
    return trained(clicks_encoded, tmp_path_factory.mktemp("din") / "run", "din")


@pytest.fixture(scope="session")
def din_bundle(din_run, tmp_path_factory):
    return export(din_run, tmp_path_factory.mktemp("din_bundle") / "bundle", format="onnx")
