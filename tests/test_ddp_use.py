"""DDP as people use it: everything that changes when or with what a hook is called."""

import contextlib
import copy
import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from world import data

WIDTH = 128


def batch(rank, step, rows=16):
    return data(rank, rows * WIDTH, seed=step).view(rows, WIDTH)


class Net(nn.Module):
    """Two ways through: odd steps leave `maybe` unused if told so."""

    def __init__(self, *, dtypes=(torch.float32,) * 3, tied=False, sparse=False, optional=False):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.maybe, self.last = (
            nn.Linear(WIDTH, WIDTH, dtype=dtype) for dtype in dtypes
        )
        if tied:
            self.last.weight = self.first.weight
        self.embed = nn.Embedding(200, WIDTH, sparse=True) if sparse else None
        self.optional = optional

    def forward(self, x, step=0):
        if self.embed is not None:
            x = x + self.embed(x[:, :4].abs().mul(50).long().clamp(max=199)).sum(1)
        x = torch.tanh(self.first(x.to(self.first.weight.dtype)))
        if not (self.optional and step % 2):
            x = torch.tanh(self.maybe(x.to(self.maybe.weight.dtype)))
        return self.last(x.to(self.last.weight.dtype)).float()


class Convs(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(32, 64, 3).to(memory_format=torch.channels_last)

    def forward(self, x, step=0):
        return self.conv(x.view(-1, 32, 8, 8).contiguous(memory_format=torch.channels_last))


def frozen():
    net = Net()
    net.maybe.requires_grad_(False)
    return net


MIXED = (torch.float32, torch.bfloat16, torch.float64)
SCENES = {
    "plain": (Net, {}),
    "small buckets": (Net, {"bucket_cap_mb": 0.05}),
    "gradient_as_bucket_view": (Net, {"gradient_as_bucket_view": True}),
    "static_graph": (Net, {"static_graph": True}),
    "static_graph, two types": (lambda: Net(dtypes=MIXED), {"static_graph": True}),
    "static_graph, sparse": (lambda: Net(sparse=True), {"static_graph": True}),
    "find_unused": (lambda: Net(optional=True), {"find_unused_parameters": True}),
    "mixed dtypes": (lambda: Net(dtypes=MIXED), {}),
    "tied": (lambda: Net(tied=True), {}),
    "sparse": (lambda: Net(sparse=True), {}),
    "frozen": (frozen, {}),
    "channels_last": (Convs, {}),
    "compiled inside": (lambda: torch.compile(Net(), backend="eager"), {}),
    "compiled outside": (Net, {"compile": True}),
    "accumulation": (Net, {"accumulate": 3}),
    "clipping": (Net, {"clip": 0.5}),
    "zero": (Net, {"zero": True}),
}


def sharded_sgd(weights, lr):
    from torch.distributed.optim import ZeroRedundancyOptimizer  # warns when it is imported

    return ZeroRedundancyOptimizer(weights, torch.optim.SGD, lr=lr)


def flat(module):
    return torch.cat([p.detach().double().reshape(-1) for p in module.parameters()])


def run_scene(rank, scene, spec):
    """Five steps; the weights, the plan and the number of steps that were counted."""
    make, options = SCENES[scene]
    options = dict(options)
    accumulate, clip = options.pop("accumulate", 1), options.pop("clip", None)
    zero, is_compiled = options.pop("zero", False), options.pop("compile", False)
    ddp = DistributedDataParallel(make(), **options)
    handle = gw.attach(ddp, gw.parse(spec)) if spec else None
    weights = [p for p in ddp.parameters() if p.requires_grad]
    optimizer = (sharded_sgd if zero else torch.optim.SGD)(weights, lr=1e-3)
    module = torch.compile(ddp, backend="eager") if is_compiled else ddp
    for step in range(5):
        for part in range(accumulate):
            is_last = part == accumulate - 1
            with contextlib.nullcontext() if is_last else ddp.no_sync():
                x = batch(rank, 10 * step + part, rows=16 if scene != "channels_last" else 32)
                module(x, step).square().sum().backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(weights, clip)
        optimizer.step()
        optimizer.zero_grad()
    if handle is not None:
        handle.close()
    return flat(ddp), handle and handle.plan(), handle and handle.stats()


@pytest.mark.parametrize("scene", SCENES)
def test_uses_of_ddp(worlds, scene):
    """Identity trains bit for bit like plain DDP; a codec nearly so, and the same on all ranks."""
    plain = worlds[2].run(run_scene, scene, None)[0][0]
    start = flat(SCENES[scene][0]())
    identity = worlds[2].run(run_scene, scene, "none")
    assert all(torch.equal(weights, plain) for weights, _, _ in identity)
    (mine, plan, stats), (theirs, _, _) = worlds[2].run(run_scene, scene, "qsgd:bits=8")
    assert torch.equal(mine, theirs)
    assert not torch.equal(mine, plain)
    assert (mine - plain).norm() < 0.05 * (plain - start).norm()
    assert stats.steps == 5
    rows = {row.parameter: row.codec for row in plan.rows}
    assert stats.raw == tuple(name for name, codec in rows.items() if codec.startswith("raw"))
    expected = {"first.weight": "qsgd:bits=8", "first.bias": "raw, small"}
    if scene == "mixed dtypes":
        assert rows["last.weight"] == "raw, float64"
    elif scene == "sparse":
        assert rows["embed.weight"] == "raw, sparse"
    elif scene == "frozen":
        assert "maybe.weight" not in rows
    elif scene == "tied":
        assert "last.weight" not in rows
    elif scene == "channels_last":
        expected = {"conv.weight": "qsgd:bits=8"}
    assert expected.items() <= rows.items()


def scaled(rank, dtype, tells):
    """Eight steps whose loss scale grows and shrinks; rank 1 has an inf in step 3.

    Sums over the others of what went in and came out, unscaled, and what is owed at the end.
    """
    local, scaler = Net(), torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    ddp = DistributedDataParallel(copy.deepcopy(local))
    handle = gw.attach(ddp, gw.QSGD(bits=2), error_feedback=True, scaler=scaler if tells else None)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.0)
    sent = got = torch.zeros(WIDTH, WIDTH)
    scales, finite, kept = [], [], []
    for step in range(8):
        scale = scaler.get_scale()
        factor = float("inf") if (rank, step) == (1, 3) else 1.0
        before = handle.state_dict()[f"rank{rank}"]["residuals"]
        for module in (local, ddp):
            module.zero_grad()
            with torch.autocast("cpu", dtype=dtype):
                loss = module(batch(rank, step)).square().mean() * factor
            scaler.scale(loss).backward()
        after = handle.state_dict()[f"rank{rank}"]["residuals"]
        scales.append(scale)
        finite.append(bool(ddp.module.first.weight.grad.isfinite().all()))
        kept.append(all(torch.equal(before[n], after[n]) for n in before))
        if finite[-1]:
            sent = sent + local.first.weight.grad / scale
            got = got + ddp.module.first.weight.grad / scale
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    state = handle.state_dict()
    owed = state[f"rank{rank}"]["residuals"]["first.weight"] / (state["scale"] if tells else scale)
    handle.close()
    return sent, got, owed.view_as(sent), scales, finite, kept


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tells", [True, False])
def test_residuals_follow_the_loss_scale(worlds, dtype, tells):
    """What went in is what came out and what is owed; but not if the scale is kept from us."""
    (sent, got, owed, scales, finite, kept), theirs = worlds[2].run(scaled, dtype, tells)
    assert finite == [step != 3 for step in range(8)]
    assert [scale / 1024 for scale in scales] == [1, 1, 2, 2, 1, 1, 2, 2]
    assert kept[3]  # the scale did not change in this step, and neither did the residual
    sent, owed = (sent + theirs[0]) / 2, (owed + theirs[2]) / 2
    error = (sent - got - owed).norm() / sent.norm()
    assert (error < 1e-4) == tells


def uneven(rank, spec):
    """Rank 1 has two batches less; it answers for the others until they are through."""
    ddp = DistributedDataParallel(Net())
    handle = gw.attach(ddp, gw.parse(spec), error_feedback=True) if spec else None
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    with ddp.join():
        for step in range(5 - 2 * rank):
            ddp(batch(rank, step)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    owed = handle.state_dict()[f"rank{rank}"]["residuals"] if handle else {}
    if handle is not None:
        handle.close()
    return torch.cat([p.detach().reshape(-1) for p in ddp.parameters()]), owed


def test_join_with_uneven_inputs(worlds):
    plain = worlds[2].run(uneven, None)[0][0]
    assert all(torch.equal(weights, plain) for weights, _ in worlds[2].run(uneven, "none"))
    (mine, _), (theirs, owed) = worlds[2].run(uneven, "qsgd:bits=8")
    assert torch.equal(mine, theirs)
    assert (mine - plain).norm() < 0.02 * plain.norm()
    assert all(residual.isfinite().all() for residual in owed.values())


def two_models(rank):
    """Trained in turns and in one backward pass, each by its own codec."""
    pair = [DistributedDataParallel(Net()) for _ in range(2)]
    handles = [gw.attach(pair[0], gw.QSGD(bits=8)), gw.attach(pair[1], gw.Cast("fp16"))]
    for step in range(3):
        for module in pair:
            module(batch(rank, step)).square().sum().backward()
        pair[1](torch.tanh(pair[0](batch(rank, step)))).square().sum().backward()
    for handle in handles:
        handle.close()
    gradients = [torch.cat([p.grad.reshape(-1) for p in module.parameters()]) for module in pair]
    return gradients, [handle.stats().steps for handle in handles]


def test_several_models_in_one_process(worlds):
    (mine, steps), (theirs, _) = worlds[2].run(two_models)
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert steps == [6, 6]


def in_pairs(rank):
    """Ranks 0 and 2 train one model, 1 and 3 another."""
    groups = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
    ddp = DistributedDataParallel(Net(), process_group=groups[rank % 2])
    handle = gw.attach(ddp, gw.QSGD(bits=8))
    for step in range(3):
        ddp.zero_grad()
        ddp(batch(rank, step)).square().sum().backward()
    handle.close()
    return torch.cat([p.grad.reshape(-1) for p in ddp.parameters()])


def test_groups_that_are_part_of_the_world(worlds):
    first, second, third, fourth = worlds[4].run(in_pairs)
    assert torch.equal(first, third)
    assert torch.equal(second, fourth)
    assert not torch.equal(first, second)


def thaw(rank):
    """A layer is frozen at first; then the model is wrapped anew, and the state carried over."""
    net = frozen()
    first = DistributedDataParallel(net)
    one = gw.attach(first, gw.QSGD(bits=2), error_feedback=True)
    first(batch(rank, 0)).square().sum().backward()
    state = one.state_dict()
    one.close()
    net.requires_grad_(True)
    second = DistributedDataParallel(net)
    two = gw.attach(second, gw.QSGD(bits=2), error_feedback=True)
    two.load_state_dict(state)
    carried = two.state_dict()[f"rank{rank}"]["residuals"]
    own = state[f"rank{rank}"]["residuals"]
    second(batch(rank, 1)).square().sum().backward()
    two.close()
    same = all(torch.equal(own[name], carried[name]) for name in own)
    return list(own), list(carried), same, carried["maybe.weight"].abs().max().item()


def test_thawed_layers_start_without_a_residual_and_others_keep_theirs(worlds):
    for before, after, same, fresh in worlds[2].run(thaw):
        assert before == ["first.weight", "last.weight"]
        assert after == ["first.weight", "maybe.weight", "last.weight"]
        assert same
        assert fresh == 0


def wrapped(rank):
    """A hook around ours, as ZeRO's overlapping step is one; PyTorch refuses that over gloo."""
    called = []

    def counting(hook):
        def gradwire_counted(state, bucket):
            called.append(bucket.index())
            return hook(state, bucket)

        return gradwire_counted

    ddp = DistributedDataParallel(Net())
    handle = gw.attach(ddp, gw.QSGD(), wrap=counting)
    ddp(batch(rank, 0)).square().sum().backward()
    handle.close()
    return called, handle.stats().steps


def test_the_hook_can_be_wrapped(worlds):
    assert worlds[2].run(wrapped) == [([0], 1)] * 2


def closed(rank):
    for _ in range(3):
        ddp = DistributedDataParallel(Net())
        handle = gw.attach(ddp, gw.QSGD())
        ddp(batch(rank, 0)).square().sum().backward()
        handle.close()
    return sum(thread.name.startswith("gradwire") for thread in threading.enumerate())


def test_no_thread_is_left_after_close(worlds):
    assert worlds[2].run(closed) == [0, 0]
