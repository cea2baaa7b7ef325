"""Random models, as the text of a plain nn.Module: what is found can be read, and run elsewhere.

A model is made of tables, and of parts that read them; each part adds something to `out`, [B, 3].
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass(frozen=True)
class TableText:
    """A table: the lines that make it. rows: its number of rows; dim: of its vectors; bag: its mode."""

    name: str
    rows: int
    dim: int
    lines: tuple[str, ...]
    bag: str = ""
    uses: tuple[str, ...] = ()
    sparse: bool = False


@dataclass(frozen=True)
class Part:
    """Something that a model does: lines of its __init__ and of its forward, and the tables they name."""

    init: tuple[str, ...] = ()
    forward: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Model:
    tables: tuple[TableText, ...]
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        init = [line for table in self.tables for line in table.lines]
        init += [line for part in self.parts for line in part.init]
        forward = [line for part in self.parts for line in part.forward]
        return "\n".join(
            (
                "class Model(nn.Module):",
                "    def __init__(self):",
                "        super().__init__()",
                "        self.step, self.bias = 0, nn.Parameter(torch.rand(3))",
                *(f"        {line}" for line in init),
                "",
                "    def forward(self, x, w):",
                "        out = self.bias.repeat(len(x), 1)",
                *(f"        {line}" for line in forward),
                "        return out",
            )
        )

    def build(self) -> nn.Module:
        names: dict[str, object] = {
            "torch": torch, "nn": nn, "F": nn.functional, "checkpoint": torch.utils.checkpoint.checkpoint,
            "print": lambda *_: None,
        }  # fmt: skip
        exec(self.text, names)
        return names["Model"]().double()  # type: ignore[operator]


@dataclass
class Drawing:
    """What the parts of one model are drawn with."""

    draw: random.Random
    tables: tuple[TableText, ...]
    number: int = 0
    init: list[str] = field(default_factory=list)
    uses: list[str] = field(default_factory=list)

    def table(self, bag: bool | None = None) -> TableText:
        wanted = [t for t in self.tables if bag is None or bool(t.bag) == bag]
        table = self.draw.choice(wanted or self.tables)
        self.uses.append(table.name)
        return table

    def chance(self, probability: float) -> bool:
        return self.draw.random() < probability

    def module(self, maker: str) -> str:
        """Adds a module that only this part uses; returns its name."""
        name = f"self.own{self.number}_{len(self.init)}"
        self.init.append(f"{name} = {maker}")
        return name


def model_of(draw: random.Random) -> Model:
    tables: list[TableText] = []
    for number in range(draw.choice((1, 2, 2, 3, 4, 6))):
        tables.append(_table(draw, number, tables))
    parts = []
    for number in range(draw.choice((1, 2, 3, 4, 6, 8))):
        drawing = Drawing(draw, tuple(tables), number)
        kind = draw.choices(list(_PARTS), list(_PARTS.values()))[0]
        lines = kind(drawing)
        parts.append(Part(tuple(drawing.init), tuple(lines), tuple(drawing.uses)))
    return Model(tuple(tables), tuple(parts))


def _table(draw: random.Random, number: int, before: list[TableText]) -> TableText:
    name = f"self.t{number}"
    if before and draw.random() < 0.2:
        tied = draw.choice(before)
        uses, rows, dim = (tied.name,), tied.rows, tied.dim
        if draw.random() < 0.3:  # one module, two names
            lines: tuple[str, ...] = (f"{name} = {tied.name}",)
            return TableText(name, rows, dim, lines, tied.bag, uses, tied.sparse)
        other = _fresh(draw, name, rows, dim, tied.sparse)
        lines = (*other.lines, f"{name}.weight = {tied.name}.weight")
        return TableText(name, rows, dim, lines, other.bag, uses, tied.sparse)
    return _fresh(draw, name, draw.randint(2, 60), draw.choice((1, 2, 3, 4, 4, 4, 8, 16, 20)), False)


def _fresh(draw: random.Random, name: str, rows: int, dim: int, sparse: bool) -> TableText:
    options, bag = [], ""
    if draw.random() < 0.4:
        bag = draw.choice(("sum", "sum", "mean", "mean", "max"))
        options.append(f"mode={bag!r}")
    if draw.random() < 0.3:
        options.append(f"padding_idx={draw.randint(-rows, rows - 1)}")
    if draw.random() < 0.1:
        options.append(f"max_norm={draw.choice((0.5, 1.0, 2.0))}")
        if draw.random() < 0.3:
            options.append("norm_type=1.0")
    if draw.random() < 0.1 and bag != "max":
        options.append("scale_grad_by_freq=True")
    if (sparse or draw.random() < 0.06) and bag != "max":
        options.append("sparse=True")
        sparse = True
    kind = "EmbeddingBag" if bag else "Embedding"
    lines = [f"{name} = nn.{kind}({', '.join((str(rows), str(dim), *options))})"]
    if draw.random() < 0.07:
        lines.append(f"{name}.weight.requires_grad_(False)")
    if draw.random() < 0.03:
        lines.append(f"{name}.weight = nn.Parameter({name}.weight.detach().t().contiguous().t())")
    if draw.random() < 0.05:
        lines.append(f"{name}.register_forward_hook(lambda module, args, out: out * 0.5)")
    return TableText(name, rows, dim, tuple(lines), bag, (), sparse)


# ---- ids, and vectors


def _ids(drawing: Drawing, rows: int, dims: int) -> str:
    a = drawing.draw.randint(0, 2)
    sliced = {
        0: "x.sum()",
        1: f"x[:, {a}]",
        2: drawing.draw.choice((f"x[:, {a}:{a + 3}]", "x[:, ::2]", "x[:, 1:2]", "x[:, 2:2]", "x")),
        3: "x[:, :4].reshape(-1, 2, 2)",
    }[dims]
    text = drawing.draw.choice(
        (f"{sliced} % {rows}", f"({sliced} % {rows})", f"{sliced}.remainder({rows})")
    )
    if drawing.chance(0.1):
        text = f"({sliced} * 7 + 3) % {rows}"
    if drawing.chance(0.15):
        text = f"({text}).int()"
    return f"({text})"


def _reduced(drawing: Drawing, vector: str, dims: int) -> str:
    """To [B, D]."""
    if dims == 2:
        return f"{vector}.{drawing.draw.choice(('sum(1)', 'sum(1)', 'mean(1)' if 0 else 'sum(1)'))}"
    return f"{vector}.mean((1, 2))" if dims == 3 else vector


def _vector(drawing: Drawing) -> tuple[str, TableText]:
    """An expression of [B, D] or [D], and its table."""
    table = drawing.table()
    t = table.name
    if table.bag or drawing.chance(0.1):
        return _bag(drawing, table), table
    dims = drawing.draw.choice((0, 1, 1, 1, 2, 2, 3))
    ids = _ids(drawing, table.rows, dims)
    read = drawing.draw.choices(
        (
            f"{t}({ids})",
            f"F.embedding({ids}, {t}.weight)",
            f"F.embedding({ids}, {t}.weight, {drawing.draw.randint(-table.rows, table.rows - 1)})",
            f"{t}.weight[{ids}]",
            f"{t}.weight[{ids}.long() - {table.rows}]",
            f"torch.embedding({t}.weight, {ids})",
            f"{t}.weight.clone()[{ids}]",
            f"torch.compiler.disable({t})({ids})" if drawing.chance(0.1) else f"{t}({ids})",
        ),
        (10, 3, 2, 2, 1, 1, 1, 1),
    )[0]
    if dims == 1 and drawing.chance(0.15):
        read = drawing.draw.choice(
            (f"torch.index_select({t}.weight, 0, {ids})", f"{t}.weight.index_select(0, {ids})",
             f"{t}.weight[{ids}, :]", f"{t}.weight[{ids.replace('.int()', '')}[:, None]].squeeze(1)")
        )  # fmt: skip
    return _reduced(drawing, read, dims), table


def _bag(drawing: Drawing, table: TableText) -> str:
    t, rows = table.name, table.rows
    width = drawing.draw.randint(1, 4)
    flat = drawing.chance(0.5)
    ids = f"(x[:, :{width}] % {rows})" + (".reshape(-1)" if flat else "")
    if drawing.chance(0.15):
        ids = f"{ids}.int()"
    last = ""
    weight = ""
    offsets = ""
    if flat:
        end = f"len(x) * {width}"
        of_type = ", dtype=torch.int32" if ids.endswith(".int()") else ""
        offsets = drawing.draw.choice(
            (f"torch.arange(0, {end}, {width}{of_type}, device=x.device)",
             f"torch.arange(0, {end}, {width}{of_type}, device=x.device) * (torch.arange(len(x){of_type}, device=x.device) > 1)",
             f"torch.full((len(x),), {end}{of_type}, device=x.device).index_fill(0, torch.arange(len(x), device=x.device)[:1], 0)")
        )  # fmt: skip
        if drawing.chance(0.3):
            last = "include_last_offset=True"
            offsets = f"torch.arange(0, {end} + 1, {width}{of_type}, device=x.device)"
    mode = table.bag or drawing.draw.choice(("sum", "mean", "max"))
    if mode == "sum" and drawing.chance(0.4):
        weight = f"w[:, :{width}]" + (".reshape(-1)" if flat else "")
        if drawing.chance(0.5):
            weight = f"({weight} * {drawing.module('nn.Parameter(torch.rand(1))')})"
    args = [offsets] if offsets else []
    if table.bag and not last and drawing.chance(0.8):
        args = [*args, *([f"per_sample_weights={weight}"] if weight else [])]
        return f"{t}({', '.join((ids, *args))})"
    args = [ids, f"{t}.weight", *args, f"mode={mode!r}"]
    args += [f"per_sample_weights={weight}"] if weight else []
    args += [last] if last else []
    args += [f"padding_idx={drawing.draw.randint(-rows, rows - 1)}"] if drawing.chance(0.3) else []
    return f"F.embedding_bag({', '.join(args)})"


def _add(drawing: Drawing, vector: str, dim: int) -> str:
    """A line that adds a vector to `out`."""
    return drawing.draw.choice(
        (
            f"out = out + {drawing.module(f'nn.Linear({dim}, 3)')}({vector})",
            f"out = out + {vector}.sum(-1, keepdim=True)",
            f"out = out * torch.tanh({vector}).mean(-1, keepdim=True)",
            f"out += {vector}[..., :1]",
            f"out = torch.cat([out[:, :2], out[:, 2:] + {vector}.square().sum(-1, keepdim=True)], 1)",
        )
    )


# ---- parts


def _plain(drawing: Drawing) -> list[str]:
    vector, table = _vector(drawing)
    return [f"v = {vector}", _add(drawing, "v", table.dim)]


def _two(drawing: Drawing) -> list[str]:
    first, one = _vector(drawing)
    second, other = _vector(drawing)
    return [
        f"u, v = {first}, {second}",
        _add(drawing, "(u.sum(-1, keepdim=True) * v)", other.dim),
        *([_add(drawing, "u", one.dim)] if drawing.chance(0.5) else []),
    ]


def _changed(drawing: Drawing) -> list[str]:
    """Vectors that something is done to."""
    vector, table = _vector(drawing)
    change = drawing.draw.choice(
        (
            "v *= 2", "v.mul_(0.5)", "v[..., 0] = 0", "v = v.detach()", "v = F.dropout(v, 0.5, self.training)",
            "v = F.relu(v, inplace=True)", "v.add_(1)", "v = v.clone().zero_() + v", "v.clamp_(-0.5, 0.5)",
            "v = F.normalize(v, dim=-1)", "v.register_hook(lambda g: g * 2) if v.requires_grad else None",
            "v.retain_grad() if v.requires_grad else None", "v = v.float().double()", "v.requires_grad_(True)",
            "v = v.expand(len(x), -1) if v.dim() == 2 else v", "v = v * torch.rand(())",
        )
    )  # fmt: skip
    lines = [f"v = {vector}", change]
    if drawing.chance(0.2):
        lines = [
            f"v = {vector}",
            f"v = {drawing.module(f'nn.BatchNorm1d({table.dim})')}(v.expand(len(x), -1) if v.dim() == 2 else v.expand(len(x), -1))",
        ]
    return [*lines, _add(drawing, "v", table.dim)]


def _inputs(drawing: Drawing) -> list[str]:
    """The ids change between two lookups."""
    first, one = _vector(drawing)
    second, other = _vector(drawing)
    change = drawing.draw.choice(
        ("x = x + 1", "x.add_(1)", "x[:, 0] = 1", "x += 2", "x = x.flip(0)", "w = w * 2", "x = x.clone()")
    )
    return [
        f"u = {first}",
        change,
        f"v = {second}",
        _add(drawing, "u", one.dim),
        _add(drawing, "v", other.dim),
    ]


def _dependent(drawing: Drawing) -> list[str]:
    vector, _ = _vector(drawing)
    table = drawing.table(bag=False)
    t = table.name
    ids = drawing.draw.choice(("i", "i[:, None]", "i.int()")) if not table.bag else "i[:, None]"
    read = f"{t}({ids})" if drawing.chance(0.7) or table.bag else f"{t}.weight[{ids}]"
    return [
        f"i = ({vector}).expand(len(x), -1).argmax(1) % {table.rows}",
        f"v = {read}.reshape(len(x), {table.dim})",
        _add(drawing, "v", table.dim),
    ]


def _branch(drawing: Drawing) -> list[str]:
    vector, table = _vector(drawing)
    condition = drawing.draw.choice(
        ("out.sum() > 0", "self.step % 2 == 0", "self.step % 3 != 1", "len(x) > 3", "self.training",
         "x.float().mean().item() > 500", "torch.is_grad_enabled()", "x[:1].sum() % 2 == 0")
    )  # fmt: skip
    lines = [f"if {condition}:", f"    {_add(drawing, vector, table.dim)}"]
    if drawing.chance(0.4):
        other, table = _vector(drawing)
        lines += ["else:", f"    {_add(drawing, other, table.dim)}"]
    return lines


def _loop(drawing: Drawing) -> list[str]:
    table = drawing.table()
    over = drawing.draw.choice(("range(3)", "range(self.step % 3 + 1)", "(0, 2)"))
    ids = f"x[:, k:k + 2] % {table.rows}"
    read = f"{table.name}({ids})" + ("" if table.bag else ".sum(1)")
    return [f"for k in {over}:", f"    v = {read}", f"    {_add(drawing, 'v', table.dim)}"]


def _break(drawing: Drawing) -> list[str]:
    return [
        drawing.draw.choice(
            ("print(out.sum())", "out = out + float(out.sum().item() > 0)", "torch._dynamo.graph_break()",
             "self.seen = out.detach()", "out = out + len(str(self.step))")
        )
    ]  # fmt: skip


def _no_grad(drawing: Drawing) -> list[str]:
    vector, table = _vector(drawing)
    mode = drawing.draw.choice(
        (
            "torch.no_grad()",
            "torch.enable_grad()",
            "torch.inference_mode()",
            "torch.set_grad_enabled(False)",
        )
    )
    after = ["v = v.clone()"] if "inference" in mode else []
    return [f"with {mode}:", f"    v = {vector}", *after, _add(drawing, "v", table.dim)]


def _checkpointed(drawing: Drawing) -> list[str]:
    table = drawing.table(bag=False)
    linear = drawing.module(f"nn.Linear({table.dim}, 3)")
    ids = f"x[:, 1:2] % {table.rows}"
    read = f"{table.name}({ids})" + ("" if table.bag else ".sum(1)")
    reentrant = drawing.chance(0.2)
    return [
        f"def part(o, x=x): return torch.tanh({linear}({read}) + o)",
        f"out = out + checkpoint(part, out, use_reentrant={reentrant})",
    ]


def _tied(drawing: Drawing) -> list[str]:
    vector, table = _vector(drawing)
    t = table.name
    if drawing.chance(0.5):
        linear = drawing.module(f"nn.Linear({table.dim}, {table.rows}, bias=False)")
        drawing.init.append(f"{linear}.weight = {t}.weight")
        return [f"out = out + {linear}({vector}).mean(-1, keepdim=True)"]
    return [f"out = out + F.linear({vector}, {t}.weight).mean(-1, keepdim=True)"]


def _whole(drawing: Drawing) -> list[str]:
    """The weight is read whole."""
    w = f"{drawing.table().name}.weight"
    read = drawing.draw.choice(
        (
            f"{w}.sum()", f"{w}.abs().mean()", f"({w} @ {w}.t()).mean()", f"{w}.max()", f"torch.cat([{w}, {w}]).mean()",
            f"{w}.norm(dim=1).sum()", f"{w}[0].sum()", f"{w}[1:2].sum()", f"{w}[:, 0].sum()", f"{w}[x[:, 0] % 2, 0].mean()",
            f"{w}.detach().mean()", f"{w}.data.mean()", f"({w} * 2).mean()", f"F.normalize({w})[0].sum()",
            f"{w}.view(-1)[1]", f"torch.stack(list({w}))[0].mean()", f"(2 - {w}).mean()", f"{w}[{w} > 0].sum()",
            f"torch.einsum('ij->', {w})", f"{w}.gather(0, x[:1, :1] % 2).sum()", f"{w}.T.mean()", f"{w}.std()",
            f"{w}.square().mean()", f"({w} ** 2).sum()", f"{w}.norm()", f"torch.take({w}, x[:, 0] % 2).mean()",
            f"{w}.unbind(0)[0].mean()", f"{w}.expand(2, -1, -1).mean()", f"F.cosine_similarity({w}, {w}, dim=0).sum()",
            f"{w}.square().sqrt().sum()", f"torch.logsumexp({w}, 0).sum()", f"torch.var({w})", f"{w}.softmax(0)[0].sum()",
            f"F.mse_loss({w}, torch.zeros_like({w}))", f"torch.cdist({w}, {w} + 1).mean()", f"F.dropout({w}, 0.5, self.training).mean()",
            f"{w}.square()[0].sum()", f"torch.add({w}.square(), 1).mean()", f"(self.bias[0] * {w}.square()).sum()",
            f"{w}.square().T.sum()", f"{w}.pow(3).mean()", f"2 ** {w}.mean()", f"({w} ** 2.0).mean()", f"len({w}) * {w}.mean()",
            f"F.linear({w}.square(), {w}).mean()", f"{w}.square().detach().mean()",
        )
    )  # fmt: skip
    return [f"out = out + 0.1 * {read}"]


_PARTS = {
    _plain: 8, _two: 4, _changed: 4, _inputs: 2, _dependent: 2, _branch: 3, _loop: 2, _break: 1,
    _no_grad: 1, _checkpointed: 1, _tied: 1.5, _whole: 2.5,
}  # fmt: skip
