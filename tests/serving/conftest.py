import pytest

from hotrows.data import prepare
from hotrows.serving.export import program
from hotrows.serving.export.whole import export
from tests.support.bundles import known_program, trained
from tests.support.clicks import SCHEMA, table


@pytest.fixture(scope="session", autouse=True)
def quick_exports(one_registry):
    """Most tests here export."""


@pytest.fixture(scope="session")
def clicks_encoded(tmp_path_factory):
    return prepare(table(400), SCHEMA, tmp_path_factory.mktemp("clicks") / "enc", split="position:0.8")


@pytest.fixture(scope="session")
def din_run(clicks_encoded, tmp_path_factory):
    return trained(clicks_encoded, tmp_path_factory.mktemp("din") / "run", "din")


@pytest.fixture
def one_trace(monkeypatch):
    """Makes the programs of a model once in a test, however often it is exported."""
    programs = {}

    def once(make):
        def program_of(plain, *others):
            key = make.__name__, type(plain).__name__, type(plain.model).__name__
            if key not in programs:
                programs[key] = make(plain, *others)
            return programs[key]

        return program_of

    for make in (program.torch_program, program.onnx_program):
        monkeypatch.setattr(f"hotrows.serving.export.bundles.{make.__name__}", once(make))


@pytest.fixture(scope="session")
def din_bundle(din_run, tmp_path_factory):
    return export(din_run, tmp_path_factory.mktemp("din_bundle") / "bundle", format="onnx")


@pytest.fixture(scope="module")
def one_program(tmp_path_factory):
    """Makes the ONNX program of one model once in a module, and then only replaces its parameters."""
    with known_program(tmp_path_factory.mktemp("program") / "program.onnx"):
        yield
