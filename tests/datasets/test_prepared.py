"""Every data set, from its raw layout to encoded data that a loader reads."""

import numpy as np
import pytest

from hotrows.data import Loader, datasets
from hotrows.data.datasets import schemas, tables
from tests.datasets.layouts import ali_ccp, amazon, kuairand, movielens, taobao_ad
from tests.datasets.raw_files import write

CRITEO = ["\t".join(["1", *["3"] * 13, *["68fd1e64"] * 26])] * 50
AVAZU = [
    "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,"
    "device_id,device_ip,device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21",
    *[f"{i},{i % 2},14102100,{'1,' * 20}79" for i in range(50)],
]
MOVIES_20M = {
    "ratings.csv": ["userId,movieId,rating,timestamp", *(f"7,{i % 3},4.0,{i}" for i in range(30))],
    "movies.csv": ["movieId,title,genres", '1,"American President, The (1995)",Comedy|Drama'],
}
BEGIN = tables.day("2017-11-25") * 86_400 - 8 * 3600
BEHAVIOUR = [f"{i % 7},{i % 90},5,pv,{BEGIN + 8000 * i}" for i in range(95)]
ROWS = {  # train, validation, test
    "criteo": None,
    "criteo_x4": None,
    "criteo_1tb": (50, 25, 25),
    "avazu": None,
    "adult": (29_305, 3_256, 16_281),
    "movielens_1m": (6, 0, 0),
    "movielens_20m": (24, 3, 3),
    "taobao_ad": (1, 2, 1),
    "taobao_userbehavior": None,
    "amazon": (2, 2, 4),
    "kuairand": (3, 1, 2),
    "ali_ccp": None,
}


def raw_of(name, folder):
    """A small raw folder."""
    if name == "movielens_1m":
        return movielens.raw_1m(folder)
    if name == "amazon":
        return amazon.raw(folder)
    files = {
        "criteo": {"train.txt": CRITEO},
        "criteo_x4": {"train.txt": CRITEO},
        "criteo_1tb": {"day_0": CRITEO, "day_1": CRITEO},
        "avazu": {"train.csv": AVAZU},
        "movielens_20m": MOVIES_20M,
        "taobao_ad": taobao_ad.FILES,
        "taobao_userbehavior": {"UserBehavior.csv": BEHAVIOUR},
        "kuairand": kuairand.FILES,
        "ali_ccp": ali_ccp.FILES,
    }
    return write(folder, files[name]) if name in files else None


@pytest.fixture(params=sorted(datasets.BY_NAME))
def prepared(request, tmp_path):
    data_set = datasets.BY_NAME[request.param]
    raw = raw_of(data_set.name, tmp_path / "raw")
    schema = schemas.with_min_count(data_set.schema, 1)
    return data_set, datasets.prepare(data_set, raw, tmp_path / "enc", schema=schema, threads=1)


def test_raw_files_become_batches(prepared):
    data_set, data = prepared
    rows = tuple(part.rows for part in data.parts.values())
    assert rows == (ROWS[data_set.name] or rows)
    assert rows[0] > 0
    (batch,) = Loader(data.parts["train"], 1 << 20, shuffle=False).batches(0)
    assert batch.size == rows[0]
    for feature in data.schema.id_features:
        assert data.schema.rows_of(feature.name) >= 3, feature.name
    assert np.isin(batch.labels.numpy(), (0, 1)).all()
