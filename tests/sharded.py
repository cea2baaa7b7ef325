"""The tables of several ranks, put together."""

import torch


def whole_weights(embeddings):
    """{table: [rows, dim]} from the embeddings of all ranks; what several of them hold is one."""
    found = {
        table.name: torch.full((table.rows, table.dim), torch.nan) for table in embeddings[0].tables
    }
    for embedding in embeddings:
        for p, shard in enumerate(embedding.shards):
            records = embedding.present_weights(p)
            for piece in shard.pieces:
                rows = records[piece.first_row : piece.first_row + piece.num_rows]
                ids = torch.tensor(piece.ids, dtype=torch.int64)
                columns = torch.arange(*shard.columns)
                place = (ids[:, None], columns[None])
                table = found[shard.tables[piece.table].name]
                seen = table[place]
                assert torch.equal(seen[~seen.isnan()], rows[~seen.isnan()]), "shared rows differ"
                table[place] = rows
    for name, table in found.items():
        assert not table.isnan().any(), f"no rank holds all of {name}"
    return found
