"""Public data sets: sources, schemas, and builders that turn raw files into samples.

from hotrows.data import datasets

encoded = datasets.prepare(datasets.BY_NAME["movielens_1m"], "raw/ml-1m", "enc")
"""

from typing import TYPE_CHECKING

from hotrows.data.datasets.ali_ccp import ali_ccp
from hotrows.data.datasets.amazon import amazon
from hotrows.data.datasets.dataset import DataSet, prepare
from hotrows.data.datasets.dataset import Samples as Samples
from hotrows.data.datasets.dataset import Source as Source
from hotrows.data.datasets.download import download
from hotrows.data.datasets.kuairand import kuairand
from hotrows.data.datasets.movielens import movielens_1m, movielens_20m
from hotrows.data.datasets.rows_as_they_stand import adult, avazu, criteo, criteo_1tb, criteo_x4
from hotrows.data.datasets.taobao import taobao_ad, taobao_userbehavior
from hotrows.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from hotrows.data.datasets import product as product
    from hotrows.data.datasets import schemas as schemas
    from hotrows.data.datasets import synthetic as synthetic

ALL = (
    *(criteo, criteo_x4, criteo_1tb, avazu, adult, movielens_1m, movielens_20m),
    *(taobao_ad, taobao_userbehavior, amazon, kuairand, ali_ccp),
)
BY_NAME = {data_set.name: data_set for data_set in ALL}

__all__ = ["BY_NAME", "DataSet", "download", "prepare"]
__getattr__, __dir__ = lazy_names(__name__)
