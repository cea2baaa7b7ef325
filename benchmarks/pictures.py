"""Draws what `misses.py` and `dynamic.py` found, for docs/evidence, and the picture of README.md.

`dynamic.py` draws what it found.

python -m benchmarks.pictures
"""

import json
from statistics import mean

from benchmarks import figures
from benchmarks.figures import BLUE, GRAY, GREEN, ORANGE
from benchmarks.harness import RESULTS, ROOT

OUT = ROOT / "docs" / "pictures"
COLORS = {
    "lookahead": BLUE,
    "two-batch": "#7fb0de",
    "lru": GRAY,
    "frequency": ORANGE,
    "hot": GREEN,
    "uncached": "#22252a",
}

# Of the two pictures of README.md: background, words, lesser words, our bars, bars of others.
THEMES = {
    "light": ("#ffffff", "#1f2328", "#59636e", "#2563a8", "#c4cbd4"),
    "dark": ("#0d1117", "#f0f6fc", "#9198a1", "#5a9be6", "#3d444d"),
}


def main() -> None:
    OUT.mkdir(exist_ok=True)
    draw_misses()
    for theme in THEMES:
        draw_beside_peers(theme)


def draw_misses() -> None:
    figure = figures.new_figure(12.5, 4.2)
    with figures.style():
        for axes, stream in zip(
            figure.subplots(1, 3, sharey=True), ("zipf", "criteo", "drift"), strict=True
        ):
            measured = json.loads((RESULTS / f"misses-{stream}.json").read_text())["figures"]
            for policy, color in COLORS.items():
                selected = [f for f in measured if f["policy"] == policy and f["in_flight"] == 4]
                if selected:
                    x, y = ([100 * f["cache"] for f in selected], [f["over_belady"] for f in selected])
                    style = "o--" if policy == "lru" else "o-"  # beside two-batch, on the same line
                    axes.plot(x, y, style, color=color, label=policy, linewidth=2)
            axes.axhline(1, color="#22252a", linewidth=1, linestyle=":", label="belady")
            axes.set_title(stream)
            axes.set_xlabel("cache, % of the rows")
            axes.set_ylim(0.9, 2.6)
            if stream == "zipf":
                axes.set_ylabel("rows fetched ÷ Bélády")
                axes.legend(ncols=2, loc="upper left")
        figures.set_title(figure, "Rows fetched per batch", "four batches in flight, warm start")
        figures.save(figure, OUT / "misses.png")


def draw_beside_peers(theme: str) -> None:
    """Three figures beside peers: a step of DLRM, models of other libraries, tables in a file."""
    page, words, lesser, ours, others = THEMES[theme]
    figure = figures.new_figure(12.5, 3.3)
    figure.set_facecolor(page)
    panels = figure.subfigures(1, 3, wspace=0.04)
    for panel, (title, below, bars) in zip(panels, beside_peers(), strict=True):
        panel.set_facecolor(page)
        panel.suptitle(title, x=0.01, ha="left", fontsize=13, weight="bold", color=words)
        axes = panel.subplots()
        panel.text(0.01, 0.865, below, fontsize=10.5, color=lesser, va="center")
        axes.set_title(" ", pad=12)  # the room of the line above
        axes.set_facecolor(page)
        places, values = range(len(bars)), [value for _, value, _, _ in bars]
        axes.barh(places, values, color=[ours if bold else others for *_, bold in bars], height=0.7)
        for place, (_, value, label, bold) in enumerate(bars):
            weight = "bold" if bold else "normal"
            axes.text(value, place, f"  {label}", va="center", color=words, fontsize=11.5, weight=weight)
        axes.set_yticks(places, [name for name, *_ in bars], color=words, fontsize=11.5)
        axes.set_xlim(0, 1.32 * max(values))
        axes.set_ylim(4.5, -0.5)  # bars of one height, from the top
        axes.tick_params(left=False, bottom=False, labelbottom=False)
        axes.spines[:].set_visible(False)
    figures.save(figure, OUT / f"beside-peers-{theme}.png")


def beside_peers() -> list[tuple[str, str, list[tuple[str, float, str, bool]]]]:
    """(title, line below, bars) of each panel; a bar is (name, length, label, whether it is ours)."""
    step = arms("end_to_end-dlrm-adagrad")
    names = {"hotrows": "hotrows", "tensorflow": "TensorFlow", "torchrec": "TorchRec", "fbgemm": "FBGEMM"}
    names["plain-torch"] = "PyTorch"
    speeds = [(names[arm], step[arm]["samples_per_s"] / 1000) for arm in names]
    libraries = {"deepctr": "DeepCTR-Torch", "rechub": "torch-rechub", "fuxictr": "FuxiCTR"}
    gains = [
        (name, max(arm["ratio"] for arm in arms(f"accelerate-criteo-{library}").values()))
        for library, name in libraries.items()
    ]
    tiers = arms("tiers-dim16")
    shares = [
        ("hotrows' cache", tiers["file"]["ratio"]),
        ("LRU cache, serial", tiers["file-lru-serial"]["ratio"]),
        ("memory-mapped file", tiers["file-mapped"]["ratio"]),
    ]
    return [
        (
            "Training DLRM",
            "thousand samples/s, 33.8 M rows, two cores",
            [(name, speed, f"{speed:.0f}", name == "hotrows") for name, speed in speeds],
        ),
        (
            "Your model, two lines more",
            "DeepFM of three libraries, times as fast",
            [(name, gain, f"{gain:.0f}x", True) for name, gain in gains],
        ),
        (
            "Tables in a file",
            "a tenth of the rows in memory; 100 %: all rows",
            [(name, share, figures.percent(share), name == "hotrows' cache") for name, share in shares],
        ),
    ]


def arms(result: str) -> dict[str, dict]:
    return json.loads((RESULTS / f"{result}.json").read_text())["arms"]


def draw_kept(measured: dict[str, list[dict]]) -> None:
    """AUC over rows kept, of the figures of `dynamic.py`, by stream."""
    colors = {"lru": GRAY, "lfu": ORANGE, "ahead": BLUE, "hashing": GREEN}
    figure = figures.new_figure(12.5, 4.2)
    with figures.style():
        for axes, (stream, found) in zip(
            figure.subplots(1, len(measured), squeeze=False)[0], measured.items(), strict=True
        ):
            unlimited = mean(f["auc"] for f in found if f["way"] == "unlimited")
            axes.axhline(unlimited, color="#22252a", linewidth=1, linestyle=":", label="unlimited")
            for way, color in colors.items():
                shares = sorted({f["share"] for f in found if f["way"] == way})
                aucs = [
                    mean(f["auc"] for f in found if (f["way"], f["share"]) == (way, s)) for s in shares
                ]
                axes.plot([100 * s for s in shares], aucs, "o-", color=color, label=way, linewidth=2)
            axes.set_xscale("log")
            axes.set_xticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
            axes.set_title(stream)
            axes.set_xlabel("rows kept, % of all keys")
        figure.axes[0].set_ylabel("next-tenth AUC")
        figure.axes[-1].legend(loc="lower right")
        figures.set_title(figure, "Which keys to keep", "of a stream that is read once")
        figures.save(figure, OUT / "kept.png")


if __name__ == "__main__":
    main()
