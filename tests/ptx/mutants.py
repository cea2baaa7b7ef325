"""Wrong kernels, of which the emulator must find most, and the interpreter finds what it can.

A mutant changes a kernel's source, or its PTX as a compiler with a fault would. It is found where a test
of the kernels fails that passes without it; mutants of PTX the interpreter cannot see.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

TESTS = {
    "unique": ("planning", "unique_padded_equals and 64-bit"), "copy": ("copy_rows", "grid and 33-3"),
    "words": ("copy_rows", "copies_equal"), "resolve": ("planning", "resolve_equals and bad-70-2"),
    "pool": ("pool", "bits_of_the_reference and cpu-17-float32"), "slots": ("slots", "40-2"),
    "sum": ("sum_gradients", "runs_of_any and True or short_runs"), "search": ("search", "search"),
    "rowwise": ("update", "two_steps and RowWise and float32-512"),
    "steps": ("update", "two_steps and LazyAdam and True and float32-17"),
    "int4": ("update", "two_steps and SGD and int4"), "rows": ("update", "only_the_rows_read"),
    "adagrad": ("update", "two_steps and Adagrad and not RowWise and float32-17"),
    "deferred": ("deferred", "several_tables and adamw-dtype0-300-True"),
    "behind": ("deferred", "outside_of_the_bounds"),
    **{name: ("layers", f"as_many_launches and cpu-{name}]") for name in (
        "target_projection", "target_projection_backward", "softmax_jagged", "softmax_jagged_backward",
        "weighted_sum", "weighted_sum_backward", "jagged_dot", "jagged_dot_backward", "weighted_copies", "co_action",
        "co_action_backward", "recurrent", "recurrent_backward", "last_of", "last_of_backward",
        "pointwise_attention", "pointwise_attention_backward")},
    "padding": ("layers", "behind_the_last and recurrent_backward"),
}  # fmt: skip
_BARRIER = "    tl.debug_barrier()  # each row's number is read by many threads and written by one\n"
_STEP = "        tl.debug_barrier()  # each row's step is read by many threads and written by one\n"
_SCALE = "            tl.debug_barrier()  # a row's scale and pairs are read by several threads and written by one\n"
# kind, file of `ops/triton` or PTX of a kernel, what stands there, what does then, tests
SOURCES = [
    ("barrier", "optimizers.py", _BARRIER, "", "rowwise"),
    ("barrier", "optimizers.py", _STEP, "", "steps"),
    ("barrier", "update.py", _SCALE, "", "int4"),
    ("barrier", "deferred.py", f"    {_BARRIER}", "", "deferred"),
    ("barrier", "co_action.py", "        tl.debug_barrier()  # gradients of inputs are read by the next power as this one wrote them\n", "", "co_action_backward"),
    ("barrier late", "optimizers.py", f"{_BARRIER}    tl.store(p_state, b_squares, mask=m_row)\n", f"    tl.store(p_state, b_squares, mask=m_row)\n{_BARRIER}", "rowwise"),
    ("barrier late", "optimizers.py", f"{_STEP}        tl.store(p_step, b_step, mask=m_row)\n", f"        tl.store(p_step, b_step, mask=m_row)\n{_STEP}", "steps"),
    ("mask", "hstu.py", "m_m = o_m < tl.max(b_last, axis=0)", "m_m = o_m <= tl.max(b_last, axis=0)", "pointwise_attention_backward"),
    ("atomics", "resolve.py", 'tl.atomic_min(p_least, first_bad.to(tl.uint64), sem="relaxed")', "tl.store(p_least, tl.minimum(tl.load(p_least), first_bad.to(tl.uint64)))", "resolve"),
    ("atomics", "resolve.py", "atomic_min", "atomic_max", "resolve"),
    ("mask", "unique_padded.py", "p_keys + o_id - 1, mask=m_id & (o_id > 0)", "p_keys + o_id - 1, mask=m_id", "unique"),
    ("mask", "unique_padded.py", "p_counts + o_id - 1, mask=m_id & (o_id > 0)", "p_counts + o_id - 1, mask=m_id", "unique"),
    ("mask", "unique_padded.py", "b_key = tl.load(p_keys + o_id, mask=m_id, other=LAST)\n    b_before", "b_key = tl.load(p_keys + o_id, mask=o_id <= num_ids, other=LAST)\n    b_before", "unique"),
    ("mask", "copy_rows.py", "m_row = o_row < num_rows", "m_row = o_row <= num_rows", "words"),
    ("mask", "copy_rows.py", "m_all = o_all < num_vectors", "m_all = o_all <= num_vectors", "copy"),
    ("mask", "pool.py", "m_bag, m_d = o_bag < num_bags, ", "m_bag, m_d = o_bag <= num_bags, ", "pool"),
    ("mask", "pool.py", "m_id = m_id & (b_distinct >= 0)", "m_id = m_id & (b_distinct >= -1)", "pool"),
    ("tile", "runs.py", "num_steps, begin, end - 1, SEARCHED)", "num_steps, begin, end - 2, SEARCHED)", "sum"),
    ("mask", "sum_gradients.py", "m_run, m_d = o_run < num_runs,", "m_run, m_d = o_run <= num_runs,", "sum"),
    ("mask", "update.py", "b_row = tl.load(p_rows + o_row, mask=o_row < num_rows, other=-1)", "b_row = tl.load(p_rows + o_row, mask=o_row <= num_rows, other=-1)", "rows"),
    ("mask", "slots.py", "tl.zeros([LANES], tl.int32) + batch, mask=b_row >= 0)", "tl.zeros([LANES], tl.int32) + batch, mask=b_row >= -1)", "slots"),
    ("mask", "slots.py", "m_hit = m_row & (b_slot >= 0)", "m_hit = m_row", "slots"),
    ("mask", "slots.py", "mask=m_in & (o_searched > 0)", "mask=m_in", "slots"),
    ("mask", "slots.py", "b_coming = tl.load(p_coming + b_row, mask=b_row >= 0, other=-1)\n    b_use", "b_coming = tl.load(p_coming + b_row, mask=m_slot, other=-1)\n    b_use", "slots"),
    ("mask", "resolve.py", "m_out = o_out < num_ids", "m_out = o_out <= num_ids", "resolve"),
    ("mask", "deferred.py", "m_bag = o_bag < num_bags", "m_bag = o_bag <= num_bags", "deferred"),
    ("mask", "deferred.py", "tl.where(o_row < tl.load(p_bounds + num_tables), b_table, -1)", "b_table", "behind"),
    ("mask", "attention.py", "m_out = (o_n < num)[:, None] & (o_h < H)[None, :]", "m_out = (o_n <= num)[:, None] & (o_h < H)[None, :]", "target_projection"),
    ("mask", "attention.py", "m_b, m_d = o_b < num_samples, (o_d < D)[None, :]", "m_b, m_d = o_b <= num_samples, (o_d < D)[None, :]", "weighted_sum"),
    ("mask", "softmax.py", "tl.load(p_scores + o_n, mask=o_n < end, other=-float(\"inf\"))\n        b_highest", "tl.load(p_scores + o_n, mask=o_n <= end, other=-float(\"inf\"))\n        b_highest", "softmax_jagged"),
    ("mask", "lists.py", "tl.zeros([BLOCK], tl.float32), mask=o < end)", "tl.zeros([BLOCK], tl.float32), mask=o <= end)", "padding"),
    ("mask", "hstu.py", "    m = m_row[:, None] & (o_d < D)[None, :]\n", "    m = m_row[:, None] & (o_d <= D)[None, :]\n", "pointwise_attention"),
    ("mask", "recurrent.py", "mask=m & (b_n > b_begin)[:, None], other=0.0", "mask=m, other=0.0", "recurrent_backward"),
    ("mask", "search.py", "b_high = b_low + 1 + size", "b_high = b_low + 2 + size", "jagged_dot"),
    ("mask", "search.py", "m_x, m_y = low_x + o_step < size,", "m_x, m_y = low_x + o_step <= size,", "sum"),
    ("stride", "integers.py", "p_w = p_stored + b_slot[:, None] * STRIDE", "p_w = p_stored + b_slot[:, None] * (STRIDE + 1)", "pool"),
    ("stride", "copy_rows.py", "(b_from * FROM + o_vector)", "(b_from * TO + o_vector)", "copy"),
    ("stride", "update.py", "p_state_row = p_state + b_slot * STATE_STRIDE", "p_state_row = p_state + b_slot * D", "adagrad"),
    ("stride", "attention.py", "p_queries + b_sample[:, None] * D + o_d[None, :], mask=m, other=0.0)\n    return", "p_queries + b_sample[:, None] * D + o_d[None, :] + 1, mask=m, other=0.0)\n    return", "jagged_dot"),
    ("stride", "hstu.py", "b_k = _load(p_keys + i_h * D, o_n, m_n, 2 * H * D, o_d, D)\n    b_v = _load(p_keys + (H + i_h) * D, o_n, m_n, 2 * H * D, o_d, D)\n    b_distance", "b_k = _load(p_keys + i_h * D, o_n, m_n, H * D, o_d, D)\n    b_v = _load(p_keys + (H + i_h) * D, o_n, m_n, 2 * H * D, o_d, D)\n    b_distance", "pointwise_attention"),
    ("stride", "recurrent.py", "b_n[:, None] * (3 * H) + o_h[None, :]", "b_n[:, None] * (2 * H) + o_h[None, :]", "recurrent"),
    ("stride", "co_action.py", "FIRST + o_w[:, None] * OUT", "FIRST + o_w[:, None] * IN", "co_action"),
    ("stride", "slots.py", "p_out = p_moves + 2 * stride", "p_out = p_moves + stride", "slots"),
    ("stride", "deferred.py", "_WIDTH = tl.constexpr(16)", "_WIDTH = tl.constexpr(12)", "behind"),
    ("tile", "runs.py", "for i in range(0, tl.max(b_length, axis=0), UNROLL):", "for i in range(0, tl.max(b_length, axis=0), UNROLL + 1):", "sum"),
    ("tile", "runs.py", "o_window + (i + j + 1) * D", "o_window + (i + j) * D", "sum"),
    ("tile", "attention.py", "o_n = (i_chunk * num_tiles + tile) * BN", "o_n = (i_chunk * num_tiles + tile + 1) * BN", "target_projection_backward"),
    ("tile", "hstu.py", "b_place - P + 1", "b_place - P", "pointwise_attention"),
    ("tile", "pool.py", "o_id, m_id = b_begin + i + j, i + j < b_length", "o_id, m_id = b_begin + i + j, i + j <= b_length", "pool"),
    ("tile", "lists.py", "m_last = m_n & (tl.load(p_offsets + b_sample + 1, mask=m_n, other=0) == o_n + 1)", "m_last = m_n & (tl.load(p_offsets + b_sample + 1, mask=m_n, other=0) == o_n)", "last_of_backward"),
]  # fmt: skip
# kernel, pattern, replacement, which of the places it matches, tests
COMPILED = [
    ("barrier", "runs._sum_windows", r"bar\.sync\s+0;", "", 0, "sum"),
    ("barrier", "update._update", r"bar\.sync\s+0;", "", 0, "rows"),
    ("barrier", "attention._project", r"bar\.sync\s+0;", "", 1, "target_projection"),
    ("barrier", "recurrent._forward", r"bar\.sync\s+0;", "", 2, "recurrent"),
    ("barrier", "hstu._keys_back", r"bar\.sync\s+0;", "", 3, "pointwise_attention_backward"),
    ("wait", "attention._project", r"wait_group\s+\d+", "wait_group 9", 0, "target_projection"),
    ("wait", "hstu._attend", r"wait_group\s+\d+", "wait_group 9", 0, "pointwise_attention"),
    ("warp count", "pool._gather", r"reqntid 128", "reqntid 64", 0, "pool"),
    ("warp count", "attention._dot", r"reqntid 128", "reqntid 64", 0, "jagged_dot"),
    ("warp count", "update._update", r"reqntid 128", "reqntid 96", 0, "rows"),
    ("lane", "resolve._resolve", r"16, 31, -1", "8, 31, -1", 0, "resolve"),
    ("lane", "attention._weighted_back", r"(shfl.*), 1, 31", r"\1, 4, 31", 0, "weighted_sum_backward"),
    ("row", "hstu._keys_back", r"(ldmatrix[^\[]*\[%r\d+)", r"\1+16", 0, "pointwise_attention_backward"),
    ("guard", "lists._last_back", r"@%p\d+ st\.global", "st.global", 0, "last_of_backward"),
]  # fmt: skip
_BEFORE = [
    "pytest",
    "torch._inductor",
    "tests.conftest",
    "hotrows.train",
    "tests.ops.triton.layer_cases",
    "tests.support.pretend",
]
ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "src" / "hotrows" / "ops" / "triton"


def main(engine: str, path: str, only: str = "") -> None:
    """Tries all mutants in this process's engine, and writes how they ended: {name: why it was found}."""
    for name in _BEFORE + ([] if engine == "interpreter" else ["tests.ptx.launch"]):
        importlib.import_module(name)  # once, for all forks
    found = json.loads(Path(path).read_text()) if Path(path).exists() else {}
    mutants = SOURCES + (COMPILED if engine == "emulator" else [])
    for number, (kind, where, old, new, *more, tests) in enumerate(mutants):
        name = f"{number} {kind}: {where}"
        if name not in found and only in name:
            found[name] = _tried(engine, where, old, new, more, tests)
            print(engine, name, "->", found[name], flush=True)
            Path(path).write_text(json.dumps(found, indent=1))
    for tests in TESTS:
        if found.setdefault(f"unchanged: {tests}", None) is None and only in tests:
            found[f"unchanged: {tests}"] = _tried(engine, "", "", "", [], tests)
            print(engine, "unchanged", tests, "->", found[f"unchanged: {tests}"], flush=True)
            Path(path).write_text(json.dumps(found, indent=1))


def _tried(engine, where, old, new, more, tests):
    """What the first test said that failed, or nothing."""
    with tempfile.TemporaryDirectory() as folder:
        output, kernels = Path(folder) / "output", Path(folder) / "triton"
        child = os.fork()
        if child == 0:
            os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), 1)
            os.dup2(1, 2)
            code = 9
            try:
                code = _test(engine, where, old, new, more, tests, kernels)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said = output.read_text(errors="replace")
    if ended == 0:
        return ""
    if "CompilationError" in said or ended in (4, 5, 9):
        raise ValueError(f"{where}: {old!r} cannot be tried:\n{said[-3000:]}")
    lines = re.findall(r"^E\s+(.*\S)", said, re.MULTILINE)
    return next((line for line in lines if "PtxError" in line), lines[0] if lines else str(ended))[:300]


def _test(engine, where, old, new, more, tests, kernels):
    import pytest

    options = [
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "--all",
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
    ]
    if where.endswith(".py"):
        shutil.copytree(KERNELS, kernels)
        text = (kernels / where).read_text()
        if text.count(old) < 1:
            raise ValueError(f"{where} has no {old!r}")
        (kernels / where).write_text(text.replace(old, new))
        _import_from(kernels)
    if engine == "emulator":
        from tests.ptx import launch

        options += ["-p", "tests.ptx.plugin"]
        if more:
            launch.setting.change = lambda name, text: (
                _changed(text, old, new, *more) if name == where else text
            )
    file, chosen = TESTS[tests]
    return pytest.main([*options, f"{ROOT}/tests/ops/triton/test_{file}.py", "-k", chosen])


def _changed(text, pattern, new, place):
    places = list(re.finditer(pattern, text))
    if place >= len(places):
        return text
    one = places[place]
    return text[: one.start()] + one.expand(new) + text[one.end() :]


def _import_from(folder):
    """Makes `hotrows.ops.triton` the package in this folder."""
    import hotrows.ops

    spec = importlib.util.spec_from_file_location(
        "hotrows.ops.triton", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    sys.modules[spec.name] = hotrows.ops.triton = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hotrows.ops.triton)


def run(folder: str) -> dict:
    """Both engines, each in a process of its own; a table of all mutants."""
    results = {}
    for engine, interpret in (("emulator", "0"), ("interpreter", "1")):
        path = Path(folder) / f"{engine}.json"
        code = f"from tests.ptx import mutants; mutants.main({engine!r}, {str(path)!r})"
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "TRITON_INTERPRET": interpret}, check=True
        )
        results[engine] = json.loads(path.read_text())
    return table(results)


def table(results: dict) -> dict:
    rows = [
        {"mutant": name, "emulator": why, "interpreter": results["interpreter"].get(name, "")}
        for name, why in results["emulator"].items()
        if not name.startswith("unchanged")
    ]
    for engine, found in results.items():
        if failed := [name for name, why in found.items() if why and name.startswith("unchanged")]:
            raise ValueError(f"{engine}: tests fail without a mutant: {failed}")
    unseen = [row for row in rows if row["emulator"] and not row["interpreter"]]
    return {"mutants": len(rows), "found": sum(bool(row["emulator"]) for row in rows),
            "found and invisible to the interpreter": len(unseen), "rows": rows}  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
