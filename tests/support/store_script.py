"""A script of a file store's life, played on the store and on a dictionary; what must be left of it."""

import random

from hotrows.engine.storage.file_store import FileStore
from tests.support.file_stores import META, assert_rows, first_values, write

NUM_ROWS, STRIDE = 120, 36


def script(seed, length):
    """Steps of training: writes, then now and then a checkpoint that is retained, merged, gone to."""
    chance, step = random.Random(seed), 0
    for _ in range(length):
        for _ in range(chance.randint(1, 3)):
            step += 1
            rows = sorted(chance.sample(range(NUM_ROWS), chance.randint(1, NUM_ROWS // 2)))
            yield "write", (rows, 1000 * seed + step, chance.random() < 0.3)
        yield "checkpoint", None
        yield "retain", chance.random() < 0.3
        if chance.random() < 0.8:
            yield "merge", None
        if chance.random() < 0.35:
            yield "restore", chance.random() < 0.5


class Books:
    """What the caller of a store knows: the rows at its checkpoints, and which of them it keeps."""

    def __init__(self):
        self.steps, self.versions, self.last, self.best = {}, {}, None, None

    def play(self, store, action, argument):
        """Plays a step, on a store too if there is one; returns what is to be reported of it."""
        if action == "write":
            rows, step, keeps = argument
            if store:
                write(store, rows, step, keeps)
            self.steps |= dict.fromkeys(rows, step)
        if action == "checkpoint":
            return store.checkpoint()
        if action == "retain":
            wanted = self.wanted(argument)
            store.retain(wanted)
            self.retained(argument)
        if action == "merge":
            store.merge_now()
        if action == "restore":
            store.restore(self.target(argument))
            self.restored(argument)
        return 0

    def checkpointed(self, generation):
        self.last, self.versions[generation] = generation, dict(self.steps)

    def wanted(self, is_best):
        """The last checkpoint, the best one, and the one before the last that was kept."""
        best = self.last if is_best or self.best is None else self.best
        return {best, self.last, *sorted(g for g in self.versions if g >= best)[-2:]}

    def retained(self, is_best):
        wanted = self.wanted(is_best)
        self.best = min(wanted)
        self.versions = {g: self.versions[g] for g in wanted}

    def target(self, to_best):
        return self.best if to_best else self.last

    def restored(self, to_best):
        target = self.target(to_best)
        self.last, self.steps = target, dict(self.versions[target])
        self.versions = {g: steps for g, steps in self.versions.items() if g <= target}
        self.best = min(self.versions)

    def follow(self, action, argument, result):
        """The same as `play`, from what a child reported."""
        if action == "write":
            self.play(None, action, argument)
        if action == "checkpoint":
            self.checkpointed(result)
        if action == "retain":
            self.retained(argument)
        if action == "restore":
            self.restored(argument)


def play(store, steps, report, books):
    for action, argument in steps:
        result = books.play(store, action, argument)
        if action == "checkpoint":
            books.checkpointed(result)
        report(result)


def check_what_is_left(path, steps, results, books):
    """Follows the reports; then every checkpoint that must be there is, with all of its rows."""
    steps = list(steps)
    for (action, argument), result in zip(steps, results, strict=False):
        books.follow(action, argument, result)
    unfinished = steps[len(results)] if len(results) < len(steps) else (None, None)
    sure = set(books.versions)
    if unfinished[0] == "retain":
        sure &= books.wanted(unfinished[1])
    if unfinished[0] == "restore":
        sure = {g for g in sure if g <= books.target(unfinished[1])}
    store = FileStore.open(path, NUM_ROWS, STRIDE, first_values, META)
    assert sure <= set(store.generations)
    for generation in sure:
        with store.view(generation) as view:
            assert_rows(view, books.versions[generation])
    target = max(sure, default=None)
    store.restore(target)
    books.steps = dict(books.versions.get(target, {}))
    books.versions = {g: books.versions[g] for g in sure}
    books.last, books.best = target, min(sure, default=None)
    assert_rows(store, books.steps)
    return store
