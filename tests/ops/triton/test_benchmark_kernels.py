"""The kernels that only benchmarks have."""

import torch
from benchmarks.gpu_parts import step_cache


class WithKernels(step_cache.StepCache):
    _on_gpu = True


def test_a_cache_filled_within_the_step_does_what_its_formulas_say(device):
    num_rows, stride = 400, 20
    drawn = torch.Generator().manual_seed(0)
    host = torch.randint(0, 256, (num_rows, stride), dtype=torch.uint8, generator=drawn)
    model = host.clone()  # of what all rows are, in one place
    hosts = [host.clone(), host.clone().pin_memory() if device.type == "cuda" else host.clone()]
    caches = [step_cache.StepCache(hosts[0], 70, 120, "cpu"), WithKernels(hosts[1], 70, 120, device)]
    for turn in range(6):
        rows = torch.randperm(num_rows if turn % 2 else 90, generator=drawn)[:80].sort().values
        rows = torch.cat([rows, torch.full((5,), -1)])
        slots = [cache.fetch(rows.to(cache.records.device)) for cache in caches]
        assert torch.equal(*[s.cpu() for s in slots])
        new = torch.randint(0, 256, (80, stride), dtype=torch.uint8, generator=drawn)
        for cache, of_rows in zip(caches, slots, strict=True):
            assert torch.equal(cache.records[of_rows[:80]].cpu(), model[rows[:80]])
            cache.records[of_rows[:80]] = new.to(cache.records.device)
            cache.put_back()
        model[rows[:80]] = new
        assert caches[0].num_misses == caches[1].num_misses.cpu()
        assert torch.equal(*[cache.row_of.cpu() for cache in caches])
    assert caches[0].num_misses > 200 and (caches[0].row_of >= 0).all()
    for cache in caches:
        cache.flush()
    assert torch.equal(hosts[0], model)
    if device.type == "cuda":
        torch.cuda.synchronize()
    assert torch.equal(hosts[1], model)


def test_the_least_recently_used_row_of_a_set_goes_and_never_one_of_this_batch():
    cache = step_cache.StepCache(torch.zeros(400, 4, dtype=torch.uint8), 32, 64, "cpu")  # one set
    cache.fetch(torch.arange(32))
    cache.fetch(torch.arange(1, 32))  # row 0 is the oldest
    slots = cache.fetch(torch.arange(30, 34))
    assert cache.num_misses == 34 and (slots < 32).all() and not (cache.row_of == 0).any()
    slots = cache.fetch(torch.arange(100, 140))
    assert (slots >= 32).sum() == 8, "more misses than ways: their places are for this step alone"
