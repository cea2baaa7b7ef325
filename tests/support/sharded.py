"""The tables of several ranks, put together and dealt out."""

from dataclasses import replace

import torch

from hotrows.engine.planning.packing import layout_in
from hotrows.ops.record import views


def whole_weights(embeddings):
    """{table: [rows, dim]} from the embeddings of all ranks; what several of them hold is one."""
    tables = {
        table.name: torch.full((table.rows, table.dim), torch.nan) for table in embeddings[0].tables
    }
    for embedding in embeddings:
        for p, shard in enumerate(embedding.shards):
            records = present_weights(embedding, p)
            for piece in shard.slices:
                rows = records[piece.first_row : piece.first_row + piece.num_rows]
                ids = torch.tensor(piece.ids, dtype=torch.int64)
                columns = torch.arange(*shard.columns)
                place = (ids[:, None], columns[None])
                table = tables[shard.tables[piece.table].name]
                seen = table[place]
                assert torch.equal(seen[~seen.isnan()], rows[~seen.isnan()]), "shared rows differ"
                table[place] = rows
    for name, table in tables.items():
        assert not table.isnan().any(), f"no rank holds all of {name}"
    return tables


def present_weights(embedding, p):
    """[rows, d] float32: the weights of all rows that a rank has of a pack."""
    if not embedding.cached_tables:
        return embedding.stores[p].views.read().float().cpu()
    cached = next(cached for cached in embedding.cached_tables.groups if p in cached.group.packs)
    place = cached.group.packs.index(p)
    records = cached.cache.read(torch.arange(cached.group.rows))
    records = cached.cache.of_packs(records)[place].contiguous()
    return views(records, layout_in(embedding.shards[p]).as_ints()).read().float()


def whole_rows(embeddings):
    """{table: ([rows, 1 + k, dim], [rows, r])} float64, put together from the stores of all ranks:
    weights and the state of each column; state of the row, and its step. Unequal copies raise."""
    tables = {}
    for embedding in embeddings:
        for p, shard in enumerate(embedding.shards):
            for piece in shard.slices:
                table = shard.tables[piece.table]
                by_column, by_row = split_rows(embedding, p, piece)
                if table.name not in tables:
                    tables[table.name] = (
                        torch.full((table.rows, by_column.shape[1], table.dim), torch.nan).double(),
                        torch.full((table.rows, by_row.shape[1]), torch.nan).double(),
                    )
                ids = torch.tensor(piece.ids, dtype=torch.int64)
                stored = tables[table.name]
                _put(stored[0][:, :, slice(*shard.columns)], ids, by_column)
                _put(stored[1], ids, by_row)
    for name, parts in tables.items():
        assert not any(part.isnan().any() for part in parts), f"no rank holds all of {name}"
    return tables


def _put(target, ids, values):
    seen = target[ids]
    assert torch.equal(seen[~seen.isnan()], values[~seen.isnan()]), "copies of a row differ"
    target[ids] = values


def split_rows(embedding, p, piece):
    """The rows of a piece as `whole_rows` has them, of the columns held."""
    layout, dim = embedding.stores[p].layout, embedding.shards[p].dim
    stored = views(embedding.stores[p].records.cpu(), layout.as_ints())
    rows = slice(piece.first_row, piece.first_row + piece.num_rows)
    per_column = embedding.packs[p].tables[0].optimizer.state_width(1000) // 1000
    state = stored.state[rows].double()
    of_columns = state[:, : per_column * dim].reshape(piece.num_rows, per_column, dim)
    by_column = torch.cat([stored.read(rows).double()[:, None], of_columns], 1)
    by_row = [state[:, per_column * dim :]]
    if stored.step is not None:
        by_row.append(stored.step[rows].double()[:, None])
    return by_column, torch.cat(by_row, 1)


def scatter(by_table, embedding):
    """Makes the stores of a rank what `whole_rows` has put together."""
    for p, shard in enumerate(embedding.shards):
        layout, dim = embedding.stores[p].layout, shard.dim
        stored = views(embedding.stores[p].records, layout.as_ints())
        for piece in shard.slices:
            by_column, by_row = by_table[shard.tables[piece.table].name]
            ids = torch.tensor(piece.ids, dtype=torch.int64)
            rows = slice(piece.first_row, piece.first_row + piece.num_rows)
            columns = by_column[ids][:, :, slice(*shard.columns)]
            stored.write(columns[:, 0].float(), rows)
            num_flat = (columns.shape[1] - 1) * dim
            stored.state[rows, :num_flat] = columns[:, 1:].flatten(1).float()
            num_state = layout.state_width - num_flat
            stored.state[rows, num_flat:] = by_row[ids][:, :num_state].float()
            if stored.step is not None:
                stored.step[rows] = by_row[ids][:, num_state].int()


def with_dtype(tables, dtype):
    """The tables with weights of a dtype, where it takes fewer bytes, of dims that fill bytes in any."""
    return [replace(table, dim=table.dim + table.dim % 2).stored_as(dtype) for table in tables]


MOST = {"int8": 127, "int4": 7}
"""The largest integers of weights."""


def random_whole(tables):
    """Rows of any weights and state, of the shape that `whole_rows` gives."""
    by_table = {}
    for table in tables:
        per_column = table.optimizer.state_width(1000) // 1000
        num_row = table.optimizer.state_width(1000) % 1000
        num_row += getattr(table.optimizer, "per_row_step", False)
        by_column = torch.randint(-999, 999, (table.rows, 1 + per_column, table.dim)).double() / 8
        if table.dtype == "bfloat16":
            by_column[:, 0] = by_column[:, 0].bfloat16().double()
        if table.dtype in MOST:
            most = MOST[table.dtype]
            by_column[:, 0] = torch.randint(-most, most + 1, (table.rows, table.dim)).double() / 8
        by_table[table.name] = by_column, torch.randint(0, 999, (table.rows, num_row)).double()
    return by_table


def assert_same_rows(actual, expected):
    assert actual.keys() == expected.keys()
    for name, parts in expected.items():
        for value, wanted in zip(actual[name], parts, strict=True):
            assert torch.equal(value, wanted), name
