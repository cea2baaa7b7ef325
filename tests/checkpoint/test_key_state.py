"""Key tables in increments: with their bases, they are the whole state."""

from types import SimpleNamespace

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from hotrows.engine.checkpoint import files, key_state
from tests.support.choice import examples

FILE = "keys.safetensors"
SINCE = 5  # batches when the base was written
rows = st.dictionaries(st.integers(2, 40), st.integers(0, SINCE - 1), max_size=30)  # last use by id


def state_of(last_use, version):
    ids = torch.tensor(sorted(last_use), dtype=torch.int64)
    used = torch.tensor([last_use[i] for i in sorted(last_use)], dtype=torch.int64)
    keys = 1000 * (used >= SINCE) * version + ids
    columns = {"ids": ids, "keys": keys, "last_use": used, "counts": used + 1}
    return {f"a/{name}": column for name, column in columns.items()} | {
        "a/clock": torch.tensor([version])
    }


@settings(max_examples=examples(100), deadline=None)
@given(rows, st.sets(st.integers(2, 40)), st.sets(st.integers(2, 40)))
@example({7: 1, 8: 1}, {8}, {7})  # the last live id ends a byte of bits, and the next one is gone
@example({2: 1, 40: 1}, {2, 40}, set())
def test_an_increment_on_its_base_is_the_whole_state(tmp_path_factory, before, gone, read):
    after = {i: used for i, used in before.items() if i not in gone} | dict.fromkeys(read, SINCE)
    base, whole = state_of(before, 1), state_of(after, 2)
    chain = []
    for state in (base, key_state.changes(whole, {"a": SINCE})):
        folder = tmp_path_factory.mktemp("step")
        saved = {FILE: files.write_file(folder / FILE, [save(state)])}
        chain.append((folder, SimpleNamespace(keys_files=(FILE,), files=saved)))
    joined = key_state.read(chain)
    assert joined.keys() == whole.keys()
    assert all(torch.equal(joined[name], column) for name, column in whole.items())
