"""Accelerated models on a pretended GPU: the same training as in plain PyTorch on the host."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import hotrows
from hotrows.acceleration import errors
from hotrows.acceleration.bags import Lookup
from hotrows.acceleration.lookup import lookup
from hotrows.runtime.device import find
from tests.acceleration.fuzz import case_of, check, runs_on_device
from tests.support import accelerated, pretend, pretend_tables

CUDA = pretend.CUDA


def run(optimizer, accelerates, place="cpu", l2=False, clip=None, passes=1, **options):
    """State of the model and of its optimizer after some steps, and their losses; on the host."""
    torch.manual_seed(0)
    kind, settings = accelerated.OPTIMIZERS[optimizer]
    model = accelerated.Model().double().to(place)
    made = kind(model.parameters(), **settings)
    if accelerates:
        hotrows.accelerate(model, made, packing=False, **options, always=True)
    draw, losses = torch.Generator().manual_seed(1), []
    for _ in range(7):
        made.zero_grad()
        for _ in range(passes):
            x = torch.randint(0, accelerated.ROWS, (8, accelerated.FIELDS), generator=draw)
            y = torch.rand(8, generator=draw, dtype=torch.float64)
            out = model(x.to(place))
            loss = functional.mse_loss(out, y.to(place)) + (model.l2() if l2 else 0)
            loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        made.step()
        losses.append(loss.item())
    return on_host(model.state_dict()), on_host(made.state_dict()["state"]), losses


def on_host(value):
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    return {k: on_host(v) for k, v in value.items()} if isinstance(value, dict) else value


WAYS = {
    "plainly": {}, "with L2 terms, clipped": {"l2": True, "clip": 0.5}, "accumulated": {"passes": 2},
}  # fmt: skip
USUAL = [("adam, decay", "plainly"), ("momentum", "accumulated"), ("adagrad", "with L2 terms, clipped")]
REST = [(name, way) for name in accelerated.OPTIMIZERS for way in WAYS if (name, way) not in USUAL]


@pytest.mark.parametrize(
    ("optimizer", "way"), [*USUAL, *(pytest.param(*case, marks=pytest.mark.slow) for case in REST)]
)
def test_training_is_that_of_plain_pytorch(optimizer, way):
    expected = run(optimizer, False, **WAYS[way])
    with pretend_tables.gpu(pretend.random_delay(3)):
        got = run(optimizer, True, CUDA, **WAYS[way])
    accelerated.assert_same(expected, got, rtol=1e-9, atol=1e-11)


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("optimizer", ["adam, decay", "adamw", "momentum", "adagrad"])
def test_training_on_a_real_device_is_that_of_plain_pytorch_there(optimizer, way):
    expected, got = (run(optimizer, fast, "cuda", **WAYS[way]) for fast in (False, True))
    accelerated.assert_same(expected, got, rtol=1e-9, atol=1e-11)


@pytest.mark.gpu
@pytest.mark.parametrize("looks_ahead", [True, False])
def test_a_cache_on_a_real_device_trains_what_the_host_trains(looks_ahead):
    expected, got = (cached(place, looks_ahead=looks_ahead) for place in ("cpu", "cuda"))
    accelerated.assert_same(expected, got, rtol=1e-4, atol=1e-6)


@pytest.mark.gpu
def test_a_step_on_a_real_device_waits_for_nothing_and_is_in_no_graph():
    model, x = Two().cuda(), torch.randint(0, 50, (8, 4)).cuda()
    _, optimizer = hotrows.accelerate(
        model, torch.optim.AdamW(model.parameters()), packing=False, always=True
    )
    for step in range(6):
        torch.cuda.set_sync_debug_mode("error" if step > 2 else "default")
        try:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    device = find("cuda")
    with device.ahead_of_lanes(), pytest.raises(RuntimeError, match="part of a CUDA graph"):
        device.capture(lambda: model(x).sum())
    model(x).square().mean().backward()


SEEDS = [0, 3, 8, 21, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(30, 90))]


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # of PyTorch's own
@pytest.mark.parametrize("seed", SEEDS)
def test_loops_show_what_plain_ones_do_on_the_host(seed):
    case = case_of(seed, packing=False)
    if runs_on_device(case):
        with pretend_tables.gpu():
            check(case, CUDA)


def cached(place, store="memory", looks_ahead=True, optimizer="adam, decay", l2=False):
    torch.manual_seed(0)
    kind, settings = accelerated.OPTIMIZERS[optimizer]
    model = accelerated.Model().to(place)
    made = kind(model.parameters(), **settings)
    hotrows.accelerate(model, made, packing=False, fast_memory=20_000, store=store)
    draw, losses = torch.Generator().manual_seed(1), []
    batches = [
        tuple(
            x.to(place)
            for x in (
                torch.randint(0, accelerated.ROWS, (6, accelerated.FIELDS), generator=draw),
                torch.rand(6, generator=draw),
            )
        )
        for _ in range(8)
    ]
    loader = hotrows.lookahead(batches, model) if looks_ahead else batches
    for step, (x, y) in enumerate(loader):
        made.zero_grad()
        loss = functional.mse_loss(model(x), y) + (model.l2() if l2 else 0)
        loss.backward()
        made.step()
        losses.append(loss.item())
        if step == 4:
            with torch.no_grad():
                losses.append(model(x).sum().item())
    return on_host(model.state_dict()), on_host(made.state_dict()["state"]), losses


CACHED = [
    ("memory", True, "adam, decay", False),
    pytest.param("file", False, "momentum", True, marks=pytest.mark.slow),
    *(
        pytest.param(store, ahead, optimizer, l2, marks=pytest.mark.slow)
        for store in ("memory", "file")
        for ahead in (True, False)
        for optimizer in ("adam", "adagrad", "sgd", "adamw")
        for l2 in (True, False)
    ),
]


@pytest.mark.parametrize(("store", "looks_ahead", "optimizer", "l2"), CACHED)
def test_behind_a_cache_it_is_that_of_the_host(store, looks_ahead, optimizer, l2, tmp_path):
    stores = [store if store == "memory" else f"file:{tmp_path / name}" for name in ("host", "device")]
    expected = cached("cpu", stores[0], looks_ahead, optimizer, l2)
    with pretend_tables.gpu(pretend.random_delay(5)):
        got = cached(CUDA, stores[1], looks_ahead, optimizer, l2)
    accelerated.assert_same(expected, got, rtol=1e-4, atol=1e-6)


class Two(nn.Module):
    """Two tables, each read once."""

    def __init__(self):
        super().__init__()
        self.users, self.bags = nn.Embedding(50, 4), nn.EmbeddingBag(60, 4, mode="mean")
        self.top = nn.Linear(8, 1)

    def forward(self, x):
        return self.top(torch.cat([self.users(x[:, 0]), self.bags(x[:, 1:])], 1)).squeeze(1)


def test_weights_that_a_model_lists_before_it_is_moved_are_those_on_the_device():
    """As DeepCTR-Torch lists them for its L2 terms: a move to a device keeps every parameter itself."""

    def trained(place, accelerates):
        torch.manual_seed(0)
        model = Two()
        listed = list(model.parameters())
        model.to(place)
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
        if accelerates:
            hotrows.accelerate(model, optimizer, packing=False, always=True)
        for step in range(3):
            optimizer.zero_grad()
            x = torch.randint(0, 50, (8, 4), generator=torch.Generator().manual_seed(step))
            l2 = sum(torch.sum(0.1 * torch.square(weight)) for weight in listed)
            (model(x.to(place)).square().mean() + l2).backward()
            optimizer.step()
        return on_host(model.state_dict())

    expected = trained("cpu", False)
    with pretend_tables.gpu():
        got = trained(CUDA, True)
    accelerated.assert_same(expected, got, rtol=1e-5, atol=1e-6)


def test_a_step_waits_for_nothing():
    with pretend_tables.gpu():
        model = Two().to(CUDA)
        _, optimizer = hotrows.accelerate(
            model, torch.optim.AdamW(model.parameters()), packing=False, always=True
        )
        for step in range(4):
            x = torch.randint(0, 50, (8, 4)).to(CUDA)
            before = sum(pretend.waits.values())
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            assert step == 0 or sum(pretend.waits.values()) == before


def test_a_graph_of_accelerated_tables_is_refused_and_training_goes_on():
    """It would repeat the rows and the number of one step."""
    with pretend_tables.gpu() as device:
        model, x = Two().to(CUDA), torch.randint(0, 50, (8, 4)).to(CUDA)
        _, optimizer = hotrows.accelerate(
            model, torch.optim.Adam(model.parameters()), packing=False, always=True
        )
        for _ in range(2):
            with device.ahead_of_lanes(), pytest.raises(RuntimeError, match="part of a CUDA graph"):
                device.capture(lambda: model(x).sum())
            model(x).square().mean().backward()
            with device.ahead_of_lanes(), pytest.raises(RuntimeError, match="part of a CUDA graph"):
                device.capture(lambda: optimizer.step() or x)
            optimizer.step()


def test_tables_are_looked_up_together_with_padding_between():
    """As a captured graph does it; some ids twice, some in bags, one table without any id."""
    with pretend_tables.gpu():
        tables = [nn.Embedding(rows, 3).to(CUDA) for rows in (5, 9, 7)]
        model = nn.ModuleList(tables)
        hotrows.accelerate(model, torch.optim.SGD(model.parameters(), lr=0.1), packing=False, always=True)
        weights = [table.weight for table in tables]
        ids = [
            torch.tensor(some, dtype=torch.int64).to(CUDA) for some in ([4, 0, 4, 4], [8, 1, 8, 2, 0], [])
        ]
        offsets = torch.tensor([0, 2, 2]).to(CUDA)
        options = [Lookup(), Lookup("sum"), Lookup()]
        single, bags, none = lookup(options, weights, ids, [None, offsets, None], [None] * 3)
        first, second = (weight.detach().cpu() for weight in weights[:2])
        torch.testing.assert_close(single.detach().cpu(), first[[4, 0, 4, 4]])
        sums = torch.stack([second[[8, 1]].sum(0), torch.zeros(3), second[[8, 2, 0]].sum(0)])
        torch.testing.assert_close(bags.detach().cpu(), sums)
        assert none.shape == (0, 3)
        (2 * single.sum() + bags.sum()).backward()
        grads = [weight.grad.to_dense().cpu() for weight in weights[:2]]
        torch.testing.assert_close(grads[0][:, 0], torch.tensor([2.0, 0, 0, 0, 6]))
        torch.testing.assert_close(grads[1][:, 0], torch.tensor([1.0, 1, 1, 0, 0, 0, 0, 0, 2]))


def test_an_id_outside_of_its_table_is_an_error_once_the_host_hears_of_it():
    with pretend_tables.gpu():
        model = Two().to(CUDA)
        hotrows.accelerate(model, torch.optim.Adam(model.parameters()), packing=False, always=True)
        x = torch.zeros(8, 4, dtype=torch.int64)
        x[5, 0] = 50
        model(x.to(CUDA))
        with pytest.raises(IndexError, match=r"place 5 is looked up in table users\.weight of 50 rows"):
            model.users.weight.sum()
        errors.check_all()


@pytest.mark.parametrize(("is_fused", "place"), [(True, "cpu"), (False, CUDA)])
def test_scaled_losses_train_as_plain_ones(is_fused, place):
    """`GradScaler` leaves dividing by the scale to fused optimizers; one step is not finite."""

    def trained(accelerates, where):
        torch.manual_seed(0)
        model = Two().to(where)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=is_fused)
        if accelerates:
            hotrows.accelerate(model, optimizer, packing=False, always=True)
        scaler = torch.amp.GradScaler(torch.device(where).type, init_scale=64.0)
        for step in range(4):
            optimizer.zero_grad()
            x = torch.randint(0, 50, (8, 4), generator=torch.Generator().manual_seed(step))
            loss = model(x.to(where)).square().mean() * (float("inf") if step == 2 else 1)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return on_host(model.state_dict()), scaler.get_scale()

    expected = trained(False, "cpu")
    with pretend_tables.gpu():
        got = trained(True, place)
    accelerated.assert_same(expected, got, rtol=1e-5, atol=1e-6)


def test_under_autocast_it_trains_as_plain_pytorch_there():
    """Products in bfloat16; tables, their gradients and their optimizer stay in float32."""

    def trained(accelerates, narrow=True):
        torch.manual_seed(0)
        model = Two().to(CUDA)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        if accelerates:
            hotrows.accelerate(model, optimizer, packing=False, always=True)
        for step in range(5):
            optimizer.zero_grad()
            x = torch.randint(0, 50, (8, 4), generator=torch.Generator().manual_seed(step)).to(CUDA)
            with torch.autocast("cuda", torch.bfloat16, enabled=narrow):
                out = model(x)
            assert out.dtype == (torch.bfloat16 if narrow else torch.float32)
            (out.float() - 1).square().mean().backward()
            assert model.users.weight.grad.dtype == torch.float32
            optimizer.step()
        return on_host(model.state_dict())

    with pretend_tables.gpu():
        expected, got, wide = trained(False), trained(True), trained(True, narrow=False)
    accelerated.assert_same(expected, got, rtol=1e-2, atol=1e-3)
    assert not torch.equal(wide["top.weight"], got["top.weight"])
