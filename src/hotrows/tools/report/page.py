"""The page of runs: what there is to say, in order; written once, or anew while a run goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hotrows.runtime.atomic_files import write_text
from hotrows.runtime.pages.markup import Html, document, folded, joined
from hotrows.tools.report import facts as of_run
from hotrows.tools.report import result_sections, run_sections
from hotrows.tools.report.assess import Assessment, Scope, assess, check
from hotrows.tools.report.facts import Facts, read_facts

MOST_RUNS = 6  # as many as there are colours


def write_report(
    runs: Sequence[Path],
    out: Path,
    scope: Scope | None = None,
    *,
    folder: Path | None = None,
    every: float | None = None,
    progress: Callable[..., None] = lambda stage, done, total: None,
) -> None:
    """Writes a page about runs, side by side where there are several.

    scope: which predictions it is about. folder: the data of the runs, if it has moved.
    every: seconds after which the page is written again while a run is trained, with predictions once
        that has ended; None: a run that is trained is refused.
    """
    scope = scope or Scope()
    if len({run.resolve() for run in runs}) != len(runs) or not 0 < len(runs) <= MOST_RUNS:
        listed = ", ".join(map(str, runs))
        raise ValueError(f"a report is of 1 to {MOST_RUNS} different runs, not of {listed}")
    facts = read_facts(runs, folder)
    while every is not None and any(one.writer for one in facts):
        check(facts, scope, live=True)
        write_text(out, _page(facts, None, scope, refresh=max(1, round(every))))
        time.sleep(every)
        facts = read_facts(runs, folder)
    check(facts, scope)
    assessments = assess(facts, scope, progress) if scope.rows else None
    write_text(out, _page(facts, assessments, scope))


def _page(
    runs: Sequence[Facts],
    assessments: Sequence[Assessment] | None,
    scope: Scope,
    refresh: int | None = None,
) -> str:
    names = [facts.name for facts in runs]
    first = assessments[0] if assessments else None
    overview = result_sections.cards(runs[0], first) if len(runs) == 1 else Html()
    part = first.part.name if first else scope.part or "test"
    sections = {"Training": joined((overview, run_sections.training(runs)))}
    if assessments:
        sections["Results"] = result_sections.results(names, assessments)
    sections["Curves"] = run_sections.curves(runs)
    if assessments:
        sections["Predictions"] = result_sections.predictions(names, assessments)
        sections["Slices"] = result_sections.slices(names, assessments)
        sections["Importance of features"] = result_sections.importance(names, assessments)
        sections["Contributions"] = result_sections.examples(assessments[0])
    sections["Values and vocabularies"] = run_sections.data(runs, part)
    sections["Speed"] = run_sections.speed(runs)
    sections["Cache and tiers"] = run_sections.tiers(runs)
    why = folded("Why tables are dealt so", run_sections.side_by_side(runs, of_run.sharding_reasons))
    sections["Sharding"] = joined((run_sections.side_by_side(runs, of_run.sharding), why))
    sections["Settings"] = run_sections.settings(runs)
    sections["Environment"] = run_sections.side_by_side(runs, of_run.environment, marked=True)
    sections["Repeat it"] = run_sections.repeat(runs)
    models = " and ".join(dict.fromkeys(str(facts.config.model) for facts in runs))
    schemas = " and ".join(dict.fromkeys(facts.schema.name for facts in runs))
    below = f"{models} on {schemas}, label {', '.join(runs[0].labels)}"
    return document(" and ".join(names), below, sections, refresh)
