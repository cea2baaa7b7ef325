"""The public names, written down: a change here is a change that users see."""

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PUBLIC = {
    "hotrows": """
        FTRL SGD Adagrad LazyAdam Batch Caching Callback Classifier Constant Cross Dense DenseAdam
        DenseAdamW DenseSGD Dynamic DynamicEmbedding Embedding Label Loader Normal PackPlan Plan
        Publisher RequestFeatures RowWiseAdagrad Schema Sequence Sparse Table Time TrainConfig
        Trainer Uniform Vectors
        accelerate explain load_run lookahead prefetch prepare restore
    """,
    "hotrows.data": """
        Description Draft EncodedData Encoder HotColdLoader Loader Part Profile ValueRates
        describe draft_schema open_parquet open_source prepare prepare_schema profile regroup
        write_encoded
    """,
    "hotrows.datasets": "ALL BY_NAME DataSet Samples Source download prepare",
    "hotrows.models": """
        BY_NAME CAN DCNv2 DIEN DIN DLRM DNN DeepFM FM LR MMoE Model TBSM WideDeep build logits_and_loss
    """,
    "hotrows.nn": """
        AttentionalGRU BatchNorm BilinearAttention CoAction CrossNetwork CrossNetworkMixture Dice
        DotInteraction Dropout ExpertMixture FactorizationMachine GRU GroupedMLP MLP PReLU PathLinear
        SharedLists TargetAttention TargetProjection choose_linear_paths jagged_dot last_of
        linear_from_zero pool_jagged pool_padded products_per_sample samples_of share_statistics
        softmax_jagged to_padded use_linear_paths weighted_sum
    """,
    "hotrows.trackers": "BY_NAME MLflow Tracker WandB",
    "hotrows.streams": """
        Alarm CutBatch DeadLetters EventSource EventStream RawEvents StreamConfig StreamState open_source
        table_events
    """,
    "hotrows.serving": "Limits Request Scorer application",
    "hotrows.checkpoint": """
        Manifest Pointer State Writer chain checkpoints_of fill_tables folder_of generations
        key_tables load load_renumbered merge problems point pointed read_manifest read_state retained
        save summary
    """,
}
# Modules whose names are public as the page that shows them says.
MODULES = {
    *("hotrows.metrics", "hotrows.planning.policy", "hotrows.models.tables"),
    *("hotrows.datasets.schemas", "hotrows.datasets.synthetic", "hotrows.datasets.product"),
    *("hotrows.distributed.process_group", "hotrows.distributed.dense_gradients"),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_the_public_names_are_those_written_down(name):
    module = importlib.import_module(name)
    assert sorted(module.__all__) == sorted(PUBLIC[name].split())
    missing = [public for public in module.__all__ if not hasattr(module, public)]
    assert not missing


def imports(code: str) -> set[str]:
    """The dotted names of hotrows that a piece of Python imports; `a.b` of `from a import b`."""
    names = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("hotrows"):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.startswith("hotrows.")}
    return names


def is_public(name: str) -> bool:
    module, _, last = name.rpartition(".")
    return (
        name in PUBLIC or name in MODULES or module in MODULES
        or (module in PUBLIC and last in PUBLIC[module].split())
    )  # fmt: skip


def code_blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize(
    "path", [*PAGES, *sorted((ROOT / "examples").glob("*.py"))], ids=lambda path: path.name
)
def test_pages_and_examples_import_public_names_alone(path):
    codes = [path.read_text()] if path.suffix == ".py" else code_blocks(path)
    names = set().union(*map(imports, codes))
    assert {name for name in names if not is_public(name)} == set()


def test_a_private_import_would_be_noticed():
    names = imports("from hotrows.engine.stages import start\nfrom hotrows import Embedding")
    assert [name for name in sorted(names) if not is_public(name)] == ["hotrows.engine.stages.start"]


def paths_of(public) -> list[tuple[str, str, str]]:
    """(function, parameter, annotation) of the paths that a public class or function takes."""
    functions = {"": public} if inspect.isfunction(public) else {}
    if inspect.isclass(public):
        members = inspect.getmembers(public, lambda member: inspect.isroutine(member))
        functions = {f".{name}": f for name, f in members if name == "__init__" or name[0] != "_"}
        if dataclasses.is_dataclass(public):  # made by functions that open what a path names
            del functions[".__init__"]
    return [
        (f"{public.__module__}.{public.__name__}{name}", parameter.name, str(parameter.annotation))
        for name, function in functions.items()
        if "hotrows" in (getattr(function, "__module__", None) or "")
        for parameter in inspect.signature(function).parameters.values()
        if re.search(r"\bPath\b", str(parameter.annotation))
    ]


def test_a_path_may_be_text_wherever_one_is_taken():
    names = [f"{module}.{name}" for module in PUBLIC for name in PUBLIC[module].split()]
    names += ["hotrows.export.whole.export"]
    taken = [path for name in names for path in paths_of(pkgutil.resolve_name(name))]
    assert len(taken) > 30
    assert [path for path in taken if not re.search(r"\bstr\b|\bPlaces?\b", path[2])] == []
