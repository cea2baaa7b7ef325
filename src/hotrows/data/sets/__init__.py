"""Public data sets: where they are, what their columns are, and how their files become samples.

from hotrows.data import sets

encoded = sets.prepare(sets.BY_NAME["movielens_1m"], "raw/ml-1m", "enc")
"""

from hotrows.data.sets.adult import adult
from hotrows.data.sets.ali_ccp import ali_ccp
from hotrows.data.sets.amazon import amazon
from hotrows.data.sets.avazu import avazu
from hotrows.data.sets.building import prepare
from hotrows.data.sets.criteo import criteo, criteo_1tb, criteo_x4
from hotrows.data.sets.dataset import DataSet, Samples, Source
from hotrows.data.sets.download import download
from hotrows.data.sets.kuairand import kuairand
from hotrows.data.sets.movielens import movielens_1m, movielens_20m
from hotrows.data.sets.taobao_ad import taobao_ad
from hotrows.data.sets.taobao_userbehavior import taobao_userbehavior

ALL = (
    *(criteo, criteo_x4, criteo_1tb, avazu, adult, movielens_1m, movielens_20m),
    *(taobao_ad, taobao_userbehavior, amazon, kuairand, ali_ccp),
)
BY_NAME = {of.name: of for of in ALL}

__all__ = ["ALL", "BY_NAME", "DataSet", "Samples", "Source", "download", "prepare"]
