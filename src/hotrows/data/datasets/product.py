"""Synthetic samples of a product's ranking: up to thousands of fields, of ids and of lists of ids.

Shaped as the industrial workloads that PICASSO describes: hundreds to some 1,800 fields, tables from
tens of values to millions, dims from 4 to 128, one field in eight a list. All of it follows from the
seed and the number of a field:

  values    10^u of them, u uniform from 1 to 6; a list has its own length, 2 to 12 ids on average.
  skew      place p of a field's values is drawn with Zipf's exponent, 0.6 to 1.4 by field.
  dim       near the fourth root of the number of values, a power of two from 4 to 128: what
            `model_options` suggests for models that take a dim per table.
  click     a teacher: some fields have traits, numbers hashed from their ids; the logit is a sum of
            traits and of products of two. A list counts by the mean of its ids.

Samples come in blocks with a random stream each, so n samples are the first n of any larger number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hotrows.data.datasets.synthetic import Skew, id_of, place_at
from hotrows.data.datasets.synthetic_labels import Floats, Integers, hashed_uniform, intercept_of, key
from hotrows.runtime.atomic_files import replaced, write_text
from hotrows.schema import Dense, Schema, Sparse

BLOCK = 2_048  # samples that share a random stream
FEWEST_FIELDS, MOST_FIELDS = 4, 4_096
NUM_DENSE = 8
DIMS = (4, 8, 16, 32, 64, 128)
_CLICK_RATE = 0.2
_LOGIT_SPREAD = 1.6
_TAUGHT = 16  # fields that have a trait, at most
_LONGEST = 50  # ids of a list


@dataclass(frozen=True)
class ProductField:
    """A column of ids. mean_length: of its lists; 0: one id a sample."""

    name: str
    skew: Skew
    dim: int
    mean_length: float = 0.0


def product_fields(num_fields: int, seed: int = 0) -> tuple[ProductField, ...]:
    """The fields of a data set; those of fewer fields are the first of more."""
    return tuple(_field(number, seed) for number in range(num_fields))


def _field(number: int, seed: int) -> ProductField:
    rng = np.random.default_rng([key(seed, "product field"), number])
    exponent = rng.uniform(0.6, 1.4)
    exponent += 0.01 * (abs(exponent - 1) < 0.005)  # the closed form has no exponent of 1
    num_values = round(10 ** rng.uniform(1, 6))
    dim = DIMS[int(np.argmin([abs(np.log2(2 * num_values**0.25) - np.log2(d)) for d in DIMS]))]
    if number % 16 == 15:  # the widest ones are not the largest alone
        dim = int(rng.choice(DIMS))
    length = float(rng.uniform(2, 12)) if number % 8 == 7 else 0.0
    kind = "list" if length else "id"
    return ProductField(f"{kind}_{number}", Skew(num_values, float(exponent), 1.0), dim, length)


def product_schema(num_fields: int, seed: int = 0) -> Schema:
    """The schema of the files that `synth_product` writes."""
    fields = product_fields(num_fields, seed)
    sparse = (
        Sparse(field.name, many=bool(field.mean_length), pooling="mean" if field.mean_length else "sum")
        for field in fields
    )
    dense = (Dense(f"number_{n}", transform="none") for n in range(NUM_DENSE))
    columns = ("click", *(f"number_{n}" for n in range(NUM_DENSE)), *(field.name for field in fields))
    return Schema((*dense, *sparse), "click", columns, name="product")


def model_options(num_fields: int, seed: int = 0) -> dict:
    """Options of models that join their vectors: the dim of each table that is not of dim 16."""
    fields = product_fields(num_fields, seed)
    return {"dim": 16, "dims": {field.name: field.dim for field in fields if field.dim != 16}}


def synth_product(
    rows: int,
    out: Path | str,
    *,
    num_fields: int = 200,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Writes `rows` samples to `out`/train.txt, their schema and model options beside it, and returns
    the path of the samples.

    Equal arguments write equal bytes, and fewer rows the first of these.

    num_fields: of product: the number of columns of ids, 4 to 4096 (default: 200).
    progress: called with the samples written and `rows` after every block of samples.
    """
    if rows < 1 or not FEWEST_FIELDS <= num_fields <= MOST_FIELDS:
        raise ValueError(
            f"synth_product needs rows of 1 or more and num_fields from {FEWEST_FIELDS} to "
            f"{MOST_FIELDS:,}, not {rows} and {num_fields}"
        )
    path = Path(out) / "train.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    product_schema(num_fields, seed).save(path.with_name("schema.json"))
    options = {"model": "wide_deep", "model_options": model_options(num_fields, seed)}
    write_text(path.with_name("wide_deep.json"), json.dumps(options, indent=1) + "\n")
    with replaced(path) as part, part.open("w") as file:
        done = 0
        for block in blocks(rows, product_fields(num_fields, seed), seed):
            file.write(_text(block, seed))
            done += len(block.clicks)
            if progress:
                progress(done, rows)
    return path


@dataclass(frozen=True)
class SampleBlock:
    """Samples. places: by field, of the values of each sample, end to end; lengths: how many each has."""

    fields: tuple[ProductField, ...]
    numbers: Floats  # [B, NUM_DENSE]
    places: tuple[Integers, ...]
    lengths: tuple[Integers | None, ...]  # [B] of a list
    clicks: NDArray[np.bool_]  # [B]


def blocks(rows: int, fields: tuple[ProductField, ...], seed: int) -> Iterator[SampleBlock]:
    teacher = _Teacher(fields, seed)
    for number in range(-(-rows // BLOCK)):
        rng = np.random.default_rng([key(seed, "product rows"), number])
        numbers, places, lengths = _draw(rng, fields)
        clicks = rng.random(BLOCK) < teacher.chance(numbers, places, lengths)
        count = min(BLOCK, rows - number * BLOCK)
        kept = [None if n is None else n[:count] for n in lengths]
        ends = [count if n is None else int(n.sum()) for n in kept]
        cut = tuple(values[:end] for values, end in zip(places, ends, strict=True))
        yield SampleBlock(fields, numbers[:count], cut, tuple(kept), clicks[:count])


def _draw(
    rng: np.random.Generator, fields: tuple[ProductField, ...]
) -> tuple[Floats, tuple[Integers, ...], tuple[Integers | None, ...]]:
    numbers = rng.standard_normal((BLOCK, NUM_DENSE)).round(3)
    places, lengths = [], []
    for field in fields:
        count = None
        if field.mean_length:
            count = np.minimum(rng.poisson(field.mean_length, BLOCK), _LONGEST)
        places.append(place_at(field.skew, rng.random(BLOCK if count is None else int(count.sum()))))
        lengths.append(count)
    return numbers, tuple(places), tuple(lengths)


class _Teacher:
    """The chance of a click, of samples drawn as those that it was scaled on."""

    def __init__(self, fields: tuple[ProductField, ...], seed: int) -> None:
        self._seed = seed
        step = max(len(fields) // _TAUGHT, 1)
        self._taught = tuple(range(0, len(fields), step))[:_TAUGHT]
        self._scale, self._intercept = 1.0, 0.0
        rng = np.random.default_rng([key(seed, "product teacher"), len(fields)])
        scores = self._scores(*_draw(rng, fields))
        self._scale = _LOGIT_SPREAD / max(float(scores.std()), 1e-9)
        self._intercept = intercept_of(self._scale * scores, _CLICK_RATE, 20.0)

    def chance(self, *drawn) -> Floats:
        return 1 / (1 + np.exp(-self._scale * self._scores(*drawn) - self._intercept))

    def _scores(
        self, numbers: Floats, places: tuple[Integers, ...], lengths: tuple[Integers | None, ...]
    ) -> Floats:
        traits = np.stack([self._trait(f, places[f], lengths[f]) for f in self._taught])  # [T, B]
        pairs = (traits[:-1] * traits[1:])[::2].sum(0)
        return traits.sum(0) + pairs + numbers[:, 0] - 0.5 * numbers[:, 1]

    def _trait(self, f: int, places: Integers, lengths: Integers | None) -> Floats:
        """A number per sample, hashed from its id, that fades for ids too rare to be learned: [B]."""
        uniform = hashed_uniform(key(self._seed, "product trait", f), places)
        values = np.sqrt(12) * (uniform - 0.5) / np.sqrt(1 + places / 200)
        if lengths is None:
            return values
        samples = np.repeat(np.arange(BLOCK), lengths)
        return np.bincount(samples, values, BLOCK) / np.sqrt(np.maximum(lengths, 1))


def _text(block: SampleBlock, seed: int) -> str:
    """The lines of a block, columns between tabs and the ids of a list between bars."""
    columns = [np.where(block.clicks, "1", "0").tolist()]
    columns += [[f"{x:g}" for x in column] for column in block.numbers.T.tolist()]
    for field, places, lengths in zip(block.fields, block.places, block.lengths, strict=True):
        ids = [f"{x:x}" for x in id_of(key(seed, "id", field.name), places).tolist()]
        if lengths is not None:
            ends = np.cumsum(lengths).tolist()
            ids = ["|".join(ids[end - n : end]) for end, n in zip(ends, lengths.tolist(), strict=True)]
        columns.append(ids)
    return "".join("\t".join(row) + "\n" for row in zip(*columns, strict=True))
