"""Tables of docs/evidence/papers.md: what three papers claim, and what is reached here."""

from __future__ import annotations

from benchmarks.evidence.records import Origin, Table, at, number, percent

PICASSO, SCRATCHPIPE, FAE = "papers-picasso", "papers-scratchpipe", "papers-fae"
HEAD = "claim | here | ratio | why | command"
LOCALITIES = ("uniform", "low", "medium", "high")


def least_and_most(values: list[float]) -> tuple[float, float]:
    return min(values), max(values)


def link_gain(base: str) -> float:
    """How many times shorter a training with look-ahead is behind a link of 1/57 of memory."""
    arms = at("papers-fae/links/arms")
    return arms[f"1/57: {base}"]["seconds"] / arms["1/57: ours"]["seconds"]


def command(paper: str, part: str) -> str:
    return f"`{paper} --only {part}`"


def over(file: str, arm: str, base: str) -> float:
    arms = at(f"{file}/arms")
    return arms[arm]["samples_per_s"] / arms[base]["samples_per_s"]


def picasso() -> list[list[str]]:
    models = ("deepfm", "dlrm", "461-tables", "din", "dien")
    servers = least_and_most([over(f"ranks-{m}", "hotrows-ranks", "tensorflow-ps") for m in models])
    parallel = least_and_most(
        [over(f"ranks-{m}", "hotrows-ranks", "plain-ranks") for m in models[:3]]
        + [
            over(f"ranks-{m}-model-parallel", "hotrows-ranks", f"plain-ranks-{best}")
            for m, best in (("din", "decomposed"), ("dien", "histories"))
        ]
    )
    regimes = at(f"{PICASSO}/regimes/arms")

    def gains(regime: str) -> tuple[float, float]:
        return least_and_most([regimes[f"{m}, {regime}"]["ratio"] for m in ("wide_deep", "can", "mmoe")])

    operations = at(f"{PICASSO}/operations/arms")["wide_deep, 461 fields"]
    ablation = at(f"{PICASSO}/ablation/arms")
    packing, data, groups, caching = (
        least_and_most(
            [1 / ablation[m][f"without {what}"]["of_all"] for m in ("wide_deep", "can", "mmoe")]
        )
        for what in ("packing", "interleaving of data", "interleaving of groups", "caching")
    )
    hits = at(f"{PICASSO}/hits/arms")
    memory = at(f"{PICASSO}/memory/arms")
    fields = at(f"{PICASSO}/fields/arms")

    slower = 1 / ablation["50 MB/s"]["without interleaving of data"]["of_all"]

    def span(pair: tuple[float, float]) -> str:
        return f"{pair[0]:.1f} to {pair[1]:.1f}x"

    def finer(pair: tuple[float, float]) -> str:
        return f"{pair[0]:.2f} to {pair[1]:.2f}x"

    return [
        [
            "1.9 to 10 times TensorFlow's parameter server",
            "five models, two ranks",
            span(servers),
            "DLRM and DeepFM are mostly matrix products, which all systems compute alike",
            "`benchmarks.ranks`",
        ],
        [
            "2 times model parallel PyTorch",
            "five models, two ranks",
            span(parallel),
            "as above; histories need no padding here",
            "`benchmarks.ranks`",
        ],
        [
            "fragmentary operations disappear",
            "operations a step of Wide & Deep, 461 fields",
            f"{sum(operations['plain'].values()):,} to {sum(operations['packed'].values()):,}",
            "tables of equal attributes are one pack",
            command("picasso", "operations"),
        ],
        [
            "throughput holds with many fields",
            "461 fields, against plain PyTorch",
            f"{number(fields['461']['hotrows']['ratio'])}x",
            "one operation for all tables; the first layer reads distinct rows",
            command("picasso", "fields"),
        ],
        [
            "the same",
            "1,834 fields, against plain PyTorch",
            f"{number(fields['1834']['hotrows']['ratio'])}x",
            "as above",
            command("picasso", "fields"),
        ],
        [
            "up to 6 times on W&D, CAN and MMoE",
            "embeddings decide, against plain PyTorch",
            span(gains("embeddings")),
            "wide tables, a small dense part",
            command("picasso", "regimes"),
        ],
        [
            "the same",
            "matrix products decide, against plain PyTorch",
            span(gains("products")),
            "CAN gains by its co-action; the others compute by the same libraries",
            command("picasso", "regimes"),
        ],
        [
            "packing gains",
            "a wire of 100 MB/s, W&D, CAN, MMoE",
            span(packing),
            "one operation in place of one for each table",
            command("picasso", "ablation"),
        ],
        [
            "interleaving of data gains",
            "the same",
            finer(data),
            f"CAN sends least and loses; a wire of 50 MB/s, W&D: {slower:.2f}x",
            command("picasso", "ablation"),
        ],
        [
            "interleaving of kernels gains",
            "the same",
            finer(groups),
            "two cores share the work that should overlap",
            command("picasso", "ablation"),
        ],
        [
            "caching of hot rows gains",
            "the same",
            span(caching),
            "slow memory is read ahead of training",
            command("picasso", "ablation"),
        ],
        [
            "HybridHash keeps hot rows",
            "hit ratio, Zipf, a cache of 10 %",
            "{}; look-ahead {}".format(
                *(percent(hits["zipf 10%"][w]) for w in ("HybridHash", "looking ahead"))
            ),
            "the look-ahead knows the batches to come",
            command("picasso", "hits"),
        ],
        [
            "slices of a batch need less memory",
            "8 micro-batches, DLRM",
            f"{memory['8']['peak_mb'] / memory['1']['peak_mb']:.2f}x",
            "rows of the whole batch stay until the update",
            command("picasso", "memory"),
        ],
        [
            "10 times the use of SMs; NVLink and PCIe traffic; many workers",
            "not measured",
            "",
            "needs several GPUs and a cluster",
            "",
        ],
    ]


def scratchpipe() -> list[list[str]]:
    arms = {name: at(f"{SCRATCHPIPE}/{name}/arms") for name in LOCALITIES}
    ours = [a for found in arms.values() for name, a in found.items() if name.endswith("ours")]

    def span(size: str, base: str) -> str:
        of = [
            a[f"{size} ours"]["samples_per_s"] / a[base.format(size)]["samples_per_s"]
            for a in arms.values()
        ]
        return f"{min(of):.2f} to {max(of):.2f}x"

    policies = at(f"{SCRATCHPIPE}/policies/arms")["medium"]
    return [
        [
            "training never misses",
            "rows absent when a step began, 12 settings",
            f"{sum(a['rows_absent_at_training'] for a in ours):,.0f}",
            "a row is in its slot before its batch trains",
            "`scratchpipe`",
        ],
        [
            "the speed of GPU memory",
            "a cache of 10 %, uniform to high locality",
            span("10%", "all rows in fast memory"),
            "a link of 1/12 of the memory's rate; at low locality it is busy all the time",
            command("scratchpipe", "medium"),
        ],
        [
            "static caches fall short",
            "a cache of 10 %, against a static one",
            span("10%", "{} static cache"),
            "fewer rows are fetched, and while batches train",
            command("scratchpipe", "medium"),
        ],
        [
            "the same",
            "a cache of 2 %",
            span("2%", "{} static cache"),
            "a batch has more than half as many rows as there are slots",
            command("scratchpipe", "medium"),
        ],
        [
            "a window of two batches suffices",
            "a cache of 10 %, against the published window",
            span("10%", "{} as published"),
            "a longer window fetches fewer rows; at high locality both are near the memory's speed",
            command("scratchpipe", "medium"),
        ],
        [
            "the same",
            "a cache of 5 %",
            span("5%", "{} as published"),
            "fewer batches were in flight than pins allow",
            command("scratchpipe", "flight"),
        ],
        [
            "the victim's choice makes no difference",
            "rows fetched, medium locality: two batches over look-ahead",
            f"{policies['two batches'] / policies['look ahead, window by itself']:.2f}x",
            "it does once the window is longer than pins",
            command("scratchpipe", "policies"),
        ],
        [
            "(beyond the paper) rows in a file",
            "a cache of 10 %, medium locality, against a static one",
            f"{over(f'{SCRATCHPIPE}/file', 'medium: ours', 'medium: static cache'):.2f}x",
            "reads of a file are batched and ahead",
            command("scratchpipe", "file"),
        ],
        ["energy; one GPU against eight", "not measured", "", "needs GPUs and counters", ""],
    ]


def fae() -> list[list[str]]:
    parts = ("speed", "links", "batches", "recipes")
    speed, links, batches, recipes = (at(f"{FAE}/{part}/arms") for part in parts)
    slow, static = "all rows in slow memory", "static cache"

    def gain(arms: dict, base: str, prefix: str = "", arm: str = "ours") -> str:
        return f"{arms[prefix + base]['seconds'] / arms[f'{prefix}{arm}']['seconds']:.2f}x"

    def most(arms: dict, base: str, prefix: str = "") -> str:
        return f"with all rows in fast memory {gain(arms, base, prefix, 'all rows in fast memory')}"

    skew, share = at(f"{FAE}/skew/arms"), at(f"{FAE}/share/arms")
    accuracy = at(f"{FAE}/accuracy/arms")
    differences = least_and_most([a["more"] for a in accuracy.values()])
    busy, waits = (speed[arm]["link_seconds"] / speed[arm]["seconds"] for arm in (slow, static))
    mb = {arm: speed[arm]["link_mb"] for arm in (slow, static, "FAE", "ours")}
    return [
        [
            "a few rows are read up to 10,000 times as often",
            "most read over median row, MovieLens-1M",
            f"{skew['MovieLens-1M']['over_median']:,.0f}x",
            "the whole data set",
            command("fae", "skew"),
        ],
        [
            "many samples are all-hot",
            "a fifth of the rows hot: synthetic Criteo, Avazu, MovieLens-1M",
            ", ".join(
                percent(share[f"{d}: 20%"]["all_hot"])
                for d in ("synthetic Criteo", "Avazu", "MovieLens-1M")
            ),
            "every lookup of the sample must be hot",
            command("fae", "share"),
        ],
        [
            "2.3 times shorter training",
            f"look-ahead against {slow}, a link of 1/57",
            f"{link_gain(slow):.2f}x",
            f"the ratio of PCIe 3.0 to a V100's memory; {most(links, slow, '1/57: ')}",
            command("fae", "links"),
        ],
        [
            "1.52 times shorter training",
            "look-ahead against a static cache, a link of 1/57",
            f"{link_gain(static):.2f}x",
            f"rows move while batches train; {most(links, static, '1/57: ')}",
            command("fae", "links"),
        ],
        [
            "2.3 times shorter training",
            f"look-ahead against {slow}, a link of 1/12",
            gain(speed, slow),
            f"the link is busy for {percent(busy)} of the time; {most(speed, slow)}",
            command("fae", "speed"),
        ],
        [
            "1.52 times shorter training",
            "look-ahead against a static cache, a link of 1/12",
            gain(speed, static),
            f"rows cross for {percent(waits)} of the static cache's time; {most(speed, static)}",
            command("fae", "speed"),
        ],
        [
            "fewer transfers",
            f"MB moved: {slow}, static cache, FAE, look-ahead",
            ", ".join(f"{value:,.0f}" for value in mb.values()),
            "cold batches fetch what the cache fetches",
            command("fae", "speed"),
        ],
        *(
            [
                f"{name} of the paper",
                "look-ahead against a static cache, a link of 1/12",
                gain(recipes, static, f"{name}: "),
                why,
                command("fae", "recipes"),
            ]
            for name, why in (
                ("RMC1", "threads that plan and move rows take one of two cores from training"),
                ("RMC2", "as above, but within the spread of the rounds"),
                ("RMC3", "the dense part decides; within the spread of the rounds"),
            )
        ),
        [
            "batches of 1,024 and 8,192",
            "look-ahead against a static cache",
            f"{gain(batches, static, '1,024: ')}, {gain(batches, static, '8,192: ')}",
            "larger batches read a row for more samples",
            command("fae", "batches"),
        ],
        [
            "accuracy of the baseline",
            "test AUC of FAE's order less plain, four data sets",
            f"{differences[0]:+.4f} to {differences[1]:+.4f}",
            "0 is in every 95 % interval, three seeds",
            command("fae", "accuracy"),
        ],
        ["several GPUs; power", "not measured", "", "needs GPUs and counters", ""],
    ]


def where(file: str, parts: tuple[str, ...], name: str) -> tuple[Origin, ...]:
    return tuple(Origin(f"{file}/{part}", f"benchmarks.papers {name}") for part in parts)


TABLES = [
    Table(
        "picasso",
        HEAD,
        picasso,
        (
            *where(PICASSO, ("operations", "fields", "regimes", "ablation", "hits"), "picasso"),
            Origin("ranks-dlrm", "benchmarks.ranks"),
            Origin("ranks-din-model-parallel", "benchmarks.ranks"),
        ),
    ),
    Table("scratchpipe", HEAD, scratchpipe, where(SCRATCHPIPE, ("medium", "flight"), "scratchpipe")),
    Table("fae", HEAD, fae, where(FAE, ("speed", "links", "share", "accuracy"), "fae")),
]
