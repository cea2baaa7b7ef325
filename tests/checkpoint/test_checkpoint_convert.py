"""Checkpoints made into others and into plain files, and told about, by the API and the commands."""

import json

import pytest
import torch
from torch import nn

from hotrows import cli
from hotrows.engine import checkpoint
from hotrows.engine.caching import Caching
from hotrows.engine.checkpoint import State, Writer
from hotrows.engine.distributed.in_process import run
from hotrows.engine.embedding import Embedding
from hotrows.optim import FTRL, SGD, Adagrad, LazyAdam, RowWiseAdagrad
from tests.support.embeddings import batches_of, mixed_tables, placements, train
from tests.support.sharded import assert_same_rows, whole_rows

OPTIMIZERS = {
    SGD(): (),
    Adagrad(): ("sum_of_squares",),
    RowWiseAdagrad(): ("sum_of_squares",),
    LazyAdam(): ("first_moment", "second_moment"),
    LazyAdam(per_row_step=True): ("first_moment", "second_moment", "step"),
    FTRL(): ("n", "z"),
}


def written(path, optimizer, num_ranks=3, name="mixed columns"):
    """A run with a full checkpoint and two increments; what all ranks have at the end."""
    model, batches = nn.Linear(3, 2), batches_of("single", 3, 6)

    def work(ranks):
        sharding = placements(name, num_ranks)
        embedding = Embedding(mixed_tables(optimizer), seed=3, ranks=ranks, sharding=sharding)
        of_run = Writer(path, embedding, model, "f", full_every=9)
        for step, batch in enumerate(batches):
            train(embedding, [batch])
            of_run.save(State(step, {"step": step}, {"random_state": torch.arange(9)}))
        return embedding

    return whole_rows(run(work, num_ranks)), model


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_what_is_merged_is_one_full_checkpoint(tmp_path, optimizer):
    rows, model = written(tmp_path / "run", optimizer)
    out = checkpoint.merge(checkpoint.folder_of(tmp_path / "run", "last"), tmp_path / "out")
    manifest = checkpoint.read_manifest(out)
    assert (manifest.num_ranks, manifest.base, manifest.step) == (1, None, 2)
    embedding, dense = Embedding(mixed_tables(optimizer), seed=9), nn.Linear(3, 2)
    back = checkpoint.load(out, embedding, dense, "f")
    assert_same_rows(whole_rows([embedding]), rows)
    assert torch.equal(dense.weight, model.weight)
    assert (back.step, back.fields) == (2, {"step": 2})
    assert torch.equal(back.tensors["random_state"], torch.arange(9))


def test_a_checkpoint_of_a_file_store_says_where_its_rows_are(tmp_path):
    caching = Caching(fast_memory=3000, store=f"file:{tmp_path / 'store'}")
    embedding = Embedding(mixed_tables(SGD()), caching=caching)
    checkpoint.save(tmp_path, embedding, nn.Linear(3, 2), State(0, {}, {}))
    embedding.close()
    with pytest.raises(ValueError, match="its rows in a file store; write the weights of its"):
        checkpoint.merge(tmp_path / "checkpoints" / "step-0", tmp_path / "out")
    assert checkpoint.summary(tmp_path / "checkpoints" / "step-0")["stores"] == [[1, 1]]


@pytest.fixture
def hotrows(capsys, tmp_path, monkeypatch):
    """hotrows(*arguments): what it printed, and how it ended."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
            raise SystemExit(0)
        output = capsys.readouterr()
        return ended.value.code, output.out, output.err

    return call


def test_inspect_tells_of_a_run_and_its_last_checkpoint(tmp_path, hotrows):
    written(tmp_path / "run", Adagrad())
    code, out, _ = hotrows("checkpoint", "inspect", "run", "--verify")
    assert code == 0
    assert next(line.split() for line in out.splitlines() if line.startswith("step-"))[-1] == "base"
    assert "rows changed since step-1, step-0" in out
    assert "checksums are right" in out
    code, out, _ = hotrows("checkpoint", "inspect", "run/checkpoints/step-0", "--json")
    summary = json.loads(out)
    assert (summary["ranks"], summary["base"], summary["step"]) == (3, None, 0)
    tables = {table["name"]: table for table in summary["tables"]}
    assert (tables["item"]["rows"], tables["item"]["dim"], tables["item"]["pieces"]) == (300, 7, 3)
    assert tables["item"]["rows_here"] == tables["item"]["rows"]
    assert "checkpoints" not in summary


def test_inspect_sees_a_flipped_bit_where_it_is_to_verify(tmp_path, hotrows):
    written(tmp_path / "run", Adagrad())
    path = tmp_path / "run/checkpoints/step-0/rank-2/pack-0.records"
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    path.write_bytes(content)
    assert hotrows("checkpoint", "inspect", "run")[0] == 0
    code, _, error = hotrows("checkpoint", "inspect", "run", "--verify")
    assert code == 1
    assert "rank-2/pack-0.records is damaged: its checksum is wrong" in error


def test_merge_by_the_command(tmp_path, hotrows):
    written(tmp_path / "run", Adagrad())
    code, out, _ = hotrows("checkpoint", "merge", "run", "whole")
    assert (code, out.startswith("whole: ")) == (0, True)
    code, _, error = hotrows("checkpoint", "merge", "run", "whole")
    assert (code, "whole exists and is no empty folder" in error) == (1, True)
    (tmp_path / "tables").mkdir()
    code, _, error = hotrows("checkpoint", "inspect", "tables")
    assert (code, "is no checkpoint: it has no manifest.json" in error) == (1, True)


def test_dims_that_a_table_uses_are_those_of_its_singular_values(tmp_path, hotrows):
    written(tmp_path / "run", Adagrad())
    folder = checkpoint.folder_of(tmp_path / "run", "last")
    embedding = Embedding(mixed_tables(Adagrad()), seed=9)
    checkpoint.load(checkpoint.merge(folder, tmp_path / "out"), embedding, nn.Linear(3, 2), "f")
    used = checkpoint.dims_used(folder)
    for table in embedding.tables:
        values = torch.linalg.svdvals(embedding.weights(table.name).double())
        assert used[table.name] == pytest.approx(float(values.sum() / values[0]), rel=1e-6)
        assert 1 <= used[table.name] <= table.dim
    code, out, _ = hotrows("tables", "run", "--checkpoint", "last", "--dims", "--json")
    assert code == 0
    for table in json.loads(out)["tables"]:
        assert table["dims_used"] == pytest.approx(used[table["name"]], abs=0.006)
    code, out, _ = hotrows("tables", "run", "--checkpoint", "last", "--dims")
    assert (code, "dims used" in out) == (0, True)
    assert "dims used" not in hotrows("tables", "run", "--checkpoint", "last")[1]


def test_a_table_of_zeros_uses_no_dims(tmp_path):
    tables = [table for table in mixed_tables(SGD()) if table.name == "item"]
    embedding = Embedding(tables)
    embedding.stores[0].records.zero_()
    checkpoint.save(tmp_path, embedding, nn.Linear(3, 2), State(0, {}, {}))
    assert checkpoint.dims_used(tmp_path / "checkpoints" / "step-0") == {"item": 0.0}
