"""Public data sets: sources, schemas, and builders that turn raw files into samples.

from hotrows import datasets

encoded = datasets.prepare(datasets.BY_NAME["movielens_1m"], "raw/ml-1m", "enc")
"""

from typing import TYPE_CHECKING

from hotrows.datasets.adult import adult
from hotrows.datasets.ali_ccp import ali_ccp
from hotrows.datasets.amazon import amazon
from hotrows.datasets.avazu import avazu
from hotrows.datasets.building import prepare
from hotrows.datasets.criteo import criteo, criteo_1tb, criteo_x4
from hotrows.datasets.dataset import DataSet
from hotrows.datasets.dataset import Samples as Samples
from hotrows.datasets.dataset import Source as Source
from hotrows.datasets.download import download
from hotrows.datasets.kuairand import kuairand
from hotrows.datasets.movielens import movielens_1m, movielens_20m
from hotrows.datasets.taobao_ad import taobao_ad
from hotrows.datasets.taobao_userbehavior import taobao_userbehavior
from hotrows.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from hotrows.datasets import product as product
    from hotrows.datasets import schemas as schemas
    from hotrows.datasets import synthetic as synthetic

ALL = (
    *(criteo, criteo_x4, criteo_1tb, avazu, adult, movielens_1m, movielens_20m),
    *(taobao_ad, taobao_userbehavior, amazon, kuairand, ali_ccp),
)
BY_NAME = {data_set.name: data_set for data_set in ALL}

__all__ = ["BY_NAME", "DataSet", "download", "prepare"]
__getattr__, __dir__ = lazy_names(__name__)
