"""A model checker of the pipeline, the cache and the file store: docs/evidence/reliability.md.

    cases        batches, settings and their plans, made by the real planner
    explorer     explores all states of a case, or walks through them (explorer.cpp, model.h)
    rules        the rules, and how each is removed
    schedule     a counter-example as text
    replay       a walk, driven through the real runner, stores and caches

By hand: `python -m tests.model_checker --minutes 20`.
"""
