"""Draws what `misses.py` found, for docs/evidence, and the picture of README.md.

python -m benchmarks.pictures
"""

import json

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

# Colors of the two pictures of README.md: words, lesser words, our bars, bars of others.
THEMES = {
    "light": ("#1f2328", "#59636e", "#2563a8", "#c4cbd4"),
    "dark": ("#f0f6fc", "#9198a1", "#5a9be6", "#59626c"),
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
    """Bars of a step of DLRM, ours and that of peers; to be read at a width of 420 px, on any page."""
    words, lesser, ours, others = THEMES[theme]
    figure = figures.new_figure(6.0, 2.7)
    figure.set_facecolor("none")
    axes = figure.subplots()
    axes.set_facecolor("none")
    bars = beside_peers()
    colors = [ours if name == "hotrows" else others for name in bars]
    axes.barh(range(len(bars)), list(bars.values()), color=colors, height=0.72)
    for place, (name, speed) in enumerate(bars.items()):
        weight = "bold" if name == "hotrows" else "normal"
        axes.text(speed, place, f" {speed:.0f}", va="center", color=words, fontsize=15, weight=weight)
    axes.set_title("Training DLRM: thousand samples a second", x=0, ha="left", fontsize=15, color=words)
    axes.set_xlabel("33.8 million rows, batch 8,192, two CPU cores", color=lesser, fontsize=12.5)
    axes.set_yticks(range(len(bars)), list(bars), color=words, fontsize=15)
    axes.set_xlim(0, 1.12 * max(bars.values()))
    axes.invert_yaxis()
    axes.tick_params(left=False, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    figures.save(figure, OUT / f"beside-peers-{theme}.png")


def beside_peers() -> dict[str, float]:
    """Thousand samples/s of a step of DLRM, by library."""
    names = {"hotrows": "hotrows", "tensorflow": "TensorFlow", "torchrec": "TorchRec", "fbgemm": "FBGEMM"}
    step = arms("end_to_end-dlrm-adagrad")
    speeds = {
        name: step[arm]["samples_per_s"] / 1000
        for arm, name in {**names, "plain-torch": "PyTorch"}.items()
    }
    return dict(sorted(speeds.items(), key=lambda pair: -pair[1]))


def arms(result: str) -> dict[str, dict]:
    return json.loads((RESULTS / f"{result}.json").read_text())["arms"]


if __name__ == "__main__":
    main()
