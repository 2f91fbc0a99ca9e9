"""Policies: which parameters are coded, by what, from when on; and the plan that says so."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.reduction.checkpoint import unpack
from world import data


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Linear(128, 128)
        self.fc = nn.Linear(128, 128)
        self.head = nn.Linear(128, 128, bias=False)

    def forward(self, x):
        return self.head(torch.tanh(self.fc(torch.tanh(self.embed(x)))))


POLICY = gw.Policy(
    skip=("*.bias", "embed*"),
    codecs={"head.*": gw.Cast("bf16"), "h*": gw.QSGD(bits=2)},
    warmup_steps=2,
)


def gradients(rank, codec, policy, steps):
    """The mean gradients by name of every step, the plan, statistics and residuals."""
    ddp = DistributedDataParallel(Net(), bucket_cap_mb=0.1)
    handle = gw.attach(ddp, codec, policy=policy)
    rows = []
    for step in range(steps):
        ddp.zero_grad()
        ddp(data(rank, 16 * 128, seed=step).view(16, 128)).square().sum().backward()
        rows.append({name: p.grad.clone() for name, p in ddp.module.named_parameters()})
    residuals = handle.state_dict()[f"rank{rank}"]["residuals"]
    handle.close()
    return rows, handle.plan(), handle.stats(), residuals


@pytest.mark.parametrize("size", [2, 3])
def test_each_parameter_is_the_mean_that_its_own_codec_gives(worlds, size):
    """As if the codec of a parameter were the only one, bit for bit; and raw in the warm-up.

    (Three floats have a sum that depends on their order, and that on the place in the message.)
    """
    mixed = worlds[size].run(gradients, gw.QSGD(), POLICY, 4)
    raw = worlds[size].run(gradients, gw.Identity(), None, 4)[0][0]
    coded = worlds[size].run(gradients, gw.QSGD(), None, 4)[0][0]
    cast = worlds[size].run(gradients, gw.Cast("bf16"), gw.Policy(warmup_steps=2), 4)[0][0]
    for rows, _, stats, residuals in mixed:
        for step in range(4):
            for name, grad in rows[step].items():
                owner = {"fc.weight": coded, "head.weight": cast}.get(name, raw)
                expected = raw if step < 2 else owner
                if size == 2 or step < 2 or owner is coded:
                    assert torch.equal(grad, expected[step][name]), (step, name)
                else:
                    torch.testing.assert_close(grad, expected[step][name], rtol=1e-2, atol=1e-2)
        assert stats.raw == ("embed.weight", "embed.bias", "fc.bias")
        assert list(residuals) == ["head.weight"]  # a cast is biased, QSGD is not


def test_the_plan_is_a_table_and_what_it_says_is_sent(worlds):
    plan, stats = worlds[2].run(gradients, gw.QSGD(), POLICY, 2)[0][1:3]
    rows = {row.parameter: row for row in plan.rows}
    assert rows["fc.weight"].cells()[1:] == ("16,384", "qsgd:bits=4", "all_gather", "4.062")
    assert rows["head.weight"].cells()[2:] == ("bf16", "code_reduce", "16")
    assert rows["embed.weight"].cells()[2:] == ("raw, skipped", "all_reduce", "32")
    assert rows["fc.bias"].codec == "raw, small"
    lines = str(plan).splitlines()
    assert lines[0].split() == [
        "parameter",
        "values",
        "codec",
        "collective",
        "bits",
        "per",
        "value",
    ]
    assert lines[-1] == "raw for the first 2 steps"
    assert stats.bits_per_value == 32
    policy = gw.Policy(skip=POLICY.skip, codecs=POLICY.codecs)
    plan, stats = worlds[2].run(gradients, gw.QSGD(), policy, 2)[0][1:3]
    assert plan.bits_per_value == pytest.approx(stats.bits_per_value)


def test_bits_that_are_not_known_beforehand_are_bounds(worlds):
    policy = gw.Policy(codecs={"fc.weight": gw.QSGD(wire="zstd"), "head.*": gw.GradiVeQ()})
    _, plan, stats, _ = worlds[2].run(gradients, gw.NDQSG(), policy, 1)[0]
    rows = {row.parameter: row for row in plan.rows}
    assert all(
        rows[f"{name}.weight"].cells()[4].startswith("<= ") for name in ("embed", "fc", "head")
    )
    assert set(stats.learned) == {"embed.weight", "head.weight"}


def mixed_learning(rank):
    """A codec that learns, one that depends on others and a plain one in one bucket."""
    policy = gw.Policy(
        codecs={
            "fc.*": gw.NDQSG(levels=3, block=1024, max_failures=0.005),
            "head.*": gw.QSGD(bits=4),
        }
    )
    spec = "gradiveq:slice=128,warmup_steps=1,train_steps=8,compress_steps=5"
    ddp = DistributedDataParallel(Net())
    handle = gw.attach(ddp, gw.parse(spec), policy=policy)
    total = torch.zeros(())
    for step in range(12):
        ddp.zero_grad()
        ddp(data(0, 16 * 128, seed=step).view(16, 128)).square().sum().backward()
        total = torch.cat([p.grad.reshape(-1) for p in ddp.parameters()])
    learned = unpack(handle.state_dict()["learned"])
    handle.close()
    return total, learned, handle.stats().learned


def test_codecs_of_all_kinds_in_one_bucket(worlds):
    (mine, states, described), (theirs, *_) = worlds[2].run(mixed_learning)
    assert torch.equal(mine, theirs)
    assert mine.isfinite().all()
    assert list(described) == ["embed.weight", "fc.weight"]
    kinds = {name: set(fields) for of_codec in states.values() for name, fields in of_codec.items()}
    assert kinds["fc.weight"] == {"failure_rate"}
    assert "basis" in kinds["embed.weight"]


def test_specs_stand_for_codecs_in_a_policy():
    policy = gw.Policy(codecs={"head.*": "qsgd:bits=8"})
    assert policy == gw.Policy(codecs={"head.*": gw.QSGD(bits=8)})
    assert policy.codec_for("head.weight", gw.QSGD()) == gw.QSGD(bits=8)
    with pytest.raises(ValueError, match="no codec is called 'qsdg'"):
        gw.Policy(codecs={"head.*": "qsdg"})


def attach_wrongly(rank):
    ddp = DistributedDataParallel(Net())
    with pytest.raises(ValueError, match=r"no parameter matches 'fc2\*' of .* embed.weight, embed"):
        gw.attach(ddp, gw.QSGD(), policy=gw.Policy(skip=("fc2*",)))
    with pytest.raises(TypeError, match="`policy` must be a policy"):
        gw.attach(ddp, gw.QSGD(), policy={"skip": ("fc*",)})
    with pytest.raises(ValueError, match="`min_numel` is said twice"):
        gw.attach(ddp, gw.QSGD(), policy=gw.Policy(), min_numel=3)
    with pytest.raises(ValueError, match=r"`policy` is .*warmup_steps=0.* on rank 0 and .*steps=1"):
        gw.attach(ddp, gw.QSGD(), policy=gw.Policy(warmup_steps=rank))
    with pytest.raises(ValueError, match="leave `error_feedback` out"):
        policy = gw.Policy(codecs={"fc*": gw.NDQSG()})
        gw.attach(ddp, gw.QSGD(), policy=policy, error_feedback=True)


def test_wrong_policies_are_refused_at_attach(worlds):
    worlds[2].run(attach_wrongly)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"skip": "fc*"}, r"`skip` must be a tuple of patterns, got 'fc.'"),
        ({"codecs": {"fc*": None}}, r"`codecs\['fc\*'\]` must be a codec .* name them in `skip`"),
        ({"warmup_steps": -1}, "`warmup_steps` must be an integer of at least 0, got -1"),
        ({"min_numel": 0.5}, "`min_numel` must be an integer of at least 0, got 0.5"),
    ],
)
def test_bad_settings_are_refused(settings, match):
    with pytest.raises((TypeError, ValueError), match=match):
        gw.Policy(**settings)
