"""What a GPU run can reach at most, computed beforehand, and what was measured, as tables of pages.

Arithmetic on bytes and operations over rates of an H200: nothing here has been measured on one by
hotrows. Rates are decimal, 1 GB/s = 10^9 bytes a second.
"""

import itertools
import json
from collections.abc import Callable

from benchmarks.gpu_parts import claims, lookup
from benchmarks.gpu_parts.part import read
from benchmarks.gpu_parts.workloads import BOTTOM, NUM_DENSE, TOP, ZIPF
from benchmarks.harness import RESULTS, ROOT
from benchmarks.markdown import put, table
from hotrows.train.costs.frequencies import Frequencies

PAGE = ROOT / "docs" / "evidence/gpu.md"
CLAIMS_PAGE = ROOT / "docs" / "gpu.md"

COPY = 4300e9  # B/s read and written
MATRIX = 788e12  # FLOP/s, bfloat16
LINK = 50e9  # B/s each way
L2 = 60e6  # bytes
FORWARD_AIM, UPDATE_AIM = 0.7, 0.4  # of the copy rate

FIELDS, BATCH, DIM, TABLE_BYTES = 26, 65_536, 128, 80e9
RECORDS = {"sgd": 512, "rowwise": 516, "adagrad": 1024, "adam": 1536}  # bytes
NAMES = {"sgd": "SGD", "rowwise": "row-wise Adagrad", "adagrad": "Adagrad", "adam": "Adam"}
LOOKUPS = FIELDS * BATCH
SHARES = (0.10, 0.05, 0.02, 0.01)
_NUM_PAIRS = DIM + (FIELDS + 1) * FIELDS // 2  # what the interaction gives
NOT_YET = "not measured yet: no GPU so far"


def write_page() -> None:
    """Puts the tables in their places in docs/evidence/gpu.md, and the claims in docs/gpu.md."""
    put(PAGE, {name: make() for name, make in TABLES.items()})
    put(CLAIMS_PAGE, {"claims": claims.as_table(read(RESULTS / "gpu.json"))})


def lookup_limits() -> str:
    """Forward and update of the part `lookup`, by optimizer."""
    lookups, row = lookup.FIELDS * lookup.BATCH, 4 * lookup.DIM
    ids = Frequencies.zipf(lookup.ROWS, ZIPF)
    distinct = lookup.FIELDS * ids.distinct(lookup.BATCH)
    size = {name: lookup.must_move(round(distinct), lookups, name) for name in NAMES}
    forward = size["sgd"]["forward"]
    kept = ids.head(L2 / 2 / row / lookup.FIELDS)
    more = (lookups * (1 - float(kept.ids @ kept.chances)) - distinct) * row
    aim, published = FORWARD_AIM, lookup.FBGEMM_MS
    lines = [
        _lookup_line("forward, any optimizer", forward, aim, published["forward"]),
        _lookup_line("– with half of the L2 kept for the hottest rows", forward + more + L2 / 2),
        _lookup_line("– with no L2, a row read for every lookup", forward + (lookups - distinct) * row),
    ]
    for name, said in NAMES.items():
        num_bytes = size[name]["update"]
        lines.append(
            _lookup_line(f"backward + update, {said}", num_bytes, UPDATE_AIM, published.get(name))
        )
    head = ["", "MB", "limit, ms", "aim, ms", "FBGEMM on an H100, ms", "scaled to an H200"]
    return table(head, lines)


def _lookup_line(name: str, size: float, aim: float = 0, published: float | None = None) -> list[str]:
    aimed = f"{_ms(size / COPY / aim)} ({aim:.0%})".replace("%", " %") if aim else ""
    rates = lookup.BANDWIDTH
    known = ["", ""]
    if published is not None:
        known = [f"{published:.3f}", f"{published * rates['H100'] / rates['H200']:.3f}"]
    return [name, f"{size / 1e6:,.0f}", _ms(size / COPY), aimed, *known]


def step_seconds(optimizer: str) -> dict[str, float]:
    """The least seconds of each part of a DLRM step in `cache`, all rows on the device."""
    distinct = _distinct(optimizer)
    size = lookup.must_move(round(distinct), LOOKUPS, optimizer)
    weights = sum(a * b for a, b in _layers())
    return {
        "lookup": size["forward"] / COPY,
        "matrices": 6 * BATCH * (weights + (FIELDS + 1) ** 2 * DIM) / MATRIX,
        # Written and read going forward; read twice, written and read as gradients going back.
        "activations": 7 * 2 * BATCH * _num_outputs() / COPY,
        # Read going forward, read and written as gradients going back.
        "vectors": 3 * 4 * DIM * LOOKUPS / COPY,
        "update": size["update"] / COPY,
    }


def step_limits() -> str:
    """The floor of a step, by optimizer."""
    lines = []
    for optimizer in ("sgd", "rowwise", "adam"):
        parts = step_seconds(optimizer)
        total = sum(parts.values())
        speed = f"{BATCH / total / 1e6:,.1f}"
        lines.append([NAMES[optimizer], *map(_ms, parts.values()), _ms(total), speed])
    head = ["ms", "lookup", "matrices", "activations", "vectors", "update", "all", "M samples/s"]
    return table(head, lines)


def cache_limits() -> str:
    """What a cache's misses ask of the link, and of the thread that plans, next to the step."""
    figures = json.loads((RESULTS / "misses-gpu.json").read_text())["figures"]
    step = sum(step_seconds("rowwise").values())
    record, distinct = RECORDS["rowwise"], _distinct("rowwise")
    lines = []
    for share in SHARES:
        for policy in ("lookahead", "hot", "lru"):
            figure = next(
                f
                for f in figures
                if f["policy"] == policy and f["cache"] == share and f["in_flight"] == 4
            )
            misses = FIELDS * figure["misses_per_batch"]
            link, one_thread = misses * record / LINK, figure["ns_per_lookup"] * 1e-9 * LOOKUPS
            lines.append([
                f"{share:.0%}".replace("%", " %"), policy, f"{misses:,.0f}",
                f"{1 - misses / distinct:.0%}".replace("%", " %"), f"{misses * record / 1e6:,.0f}",
                _ms(link), f"{link / step:.2f}", f"{1e3 * one_thread:,.0f}",
            ])  # fmt: skip
    head = ["cache", "policy", "misses a batch", "rows hit", "MB each way", "link, ms",
            "link / step", "slots on one thread, ms"]  # fmt: skip
    return table(head, lines)


def most_misses() -> tuple[float, float]:
    """At most so many misses a batch leave 90 % of the speed, where all else is hidden; and the share
    of rows that then must hit."""
    step = sum(step_seconds("rowwise").values())
    misses = step / 0.9 * LINK / RECORDS["rowwise"]
    return misses, 1 - misses / _distinct("rowwise")


def micro_limits() -> str:
    """What a step holds at its peak, by the number of micro-batches."""
    lines = []
    for parts in (1, 2, 4, 8):
        size = BATCH // parts
        vectors, activations = 2 * 4 * DIM * FIELDS * size, 2 * size * _num_outputs()
        kept = 0 if parts == 1 else 4 * DIM * 2 * _distinct("rowwise")
        total = vectors + activations + kept
        lines.append(
            [
                str(parts),
                *(f"{num_bytes / 1e6:,.0f}" for num_bytes in (vectors, activations, kept, total)),
            ]
        )
    head = ["micro-batches", "vectors and their gradients, MB", "activations, MB",
            "rows and gradients of the whole batch, MB", "all, MB"]  # fmt: skip
    return table(head, lines)


def aims() -> str:
    """Every target with its aim, its limit and what was measured."""
    step = 1e3 * sum(step_seconds("rowwise").values())
    misses, hit = most_misses()
    carried = f"100 % up to {misses / 1e3:,.0f} k misses a batch, {100 * hit:.0f} % of rows hit"
    # Target, aim, limit; part and arm whose figures say it, and in which words.
    targets = (
        ("rows of 512 bytes from and to host memory, by a kernel", "as plain copies",
         "50–55 GB/s each way", "pinned", "random-512",
         "{kernel_in_gb_s:.0f} GB/s in, {kernel_out_gb_s:.0f} out"),
        ("kernels equal their reference", "every test", "–", "kernels", "tests", "{closing_line}"),
        ("a step waits for nothing and takes no memory; as a graph, it has the same bits", "always",
         "–", "sync", "cached", "holds over {steps} steps"),
        ("forward of the embedding", "70 % of the copy rate", "100 %", "lookup", "rowwise",
         "{forward_share:.0%}, {forward_ms:.3f} ms"),
        ("backward + update, row-wise Adagrad", "40 % of the copy rate", "100 %", "lookup", "rowwise",
         "{update_share:.0%}, {update_ms:.3f} ms"),
        ("backward + update, Adam", "40 % of the copy rate", "100 %", "lookup", "adam",
         "{update_share:.0%}, {update_ms:.3f} ms"),
        ("10 % cache, of the speed with all rows on the device", "90 %", carried, "cache",
         "zipf-rowwise-10%", "{of_best:.0%}"),
        ("a step with 1,000 fields over one with 26, equal lookups", "1.5x", "1.0x", "fields",
         "packed-1000", "{over_fewest_fields:.2f}x"),
        ("8 micro-batches", "–", "memory as above", "micro", "8 micro-batches",
         "{peak_mb:,.0f} MB, {over_one:.2f}x the time"),
        ("planning 1.7 M lookups", f"within a step, {step:.1f} ms", "–", "planning", "device",
         "{plan_ms:.1f} ms on the device"),
    )  # fmt: skip
    lines = [[*said, _measured(*where)] for *said, where in ((*t[:3], t[3:]) for t in targets)]
    return table(["target", "aim", "limit", "measured"], lines)


TABLES: dict[str, Callable[[], str]] = {
    "lookup": lookup_limits,
    "step": step_limits,
    "cache": cache_limits,
    "micro": micro_limits,
    "aims": aims,
}


def _layers() -> list[tuple[int, int]]:
    """Inputs and outputs of the linear layers."""
    bottom, top = (NUM_DENSE, *BOTTOM, DIM), (_NUM_PAIRS, *TOP, 1)
    return [*itertools.pairwise(bottom), *itertools.pairwise(top)]


def _num_outputs() -> int:
    """Activations of a sample that are kept for the way back."""
    return _NUM_PAIRS + sum(outputs for _, outputs in _layers())


def _distinct(optimizer: str) -> float:
    """Distinct rows of a batch of `cache`, on the mean."""
    rows = int(TABLE_BYTES / RECORDS[optimizer] / FIELDS)
    return FIELDS * Frequencies.zipf(rows, ZIPF).distinct(BATCH)


def _measured(part: str, arm: str, words: str) -> str:
    """What the result of a part says; that there is none where it has not run."""
    arms = read(RESULTS / "gpu.json").get(part, {}).get("arms", {})
    try:
        return words.format(**arms[arm]).replace("%", " %")
    except KeyError:  # no such arm, or no such figure: what its ratio is to has not run
        return NOT_YET


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}"
