"""The laws of the planner: what any model of a step must obey, and bytes that are really sent."""

import json
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from typer.testing import CliRunner

import gradwire as gw
from gradwire.cli.app import app
from gradwire.planner import advice, closed_forms, paper, rates, units
from gradwire.planner.layout import Chunk, Ready, chunks, cut, even
from gradwire.planner.messages import Messages
from gradwire.planner.network import Network
from gradwire.planner.predict import Model, Setting, breakeven, bytes_of
from gradwire.planner.replay import replay
from gradwire.planner.request import Request
from gradwire.planner.stage import Bucket, Stage, Uplink
from gradwire.planner.work import PLAIN, Work, raw

WORKERS = st.sampled_from([2, 3, 4, 8, 64, 1000])
RATES = st.floats(1e5, 1e11)
PARAMS = st.integers(20_000, 10**10)
SECONDS = st.floats(1e-4, 10.0)
LATENCIES = st.sampled_from([0.0, 1e-5, 1e-3, 0.05])
CORES = st.sampled_from([0.5, 1.0, 2.0, 4.0, 64.0])
COLLECTIVES = st.sampled_from(["all_gather", "two_shot", "code_reduce"])


def free(collective, workers, nbytes=1.0):
    """A codec that costs the cores nothing and makes `nbytes` of a value."""
    share = (workers - 1) / workers
    if collective == "all_gather" or (collective == "code_reduce" and workers == 2):
        sent = {"first_bytes": (workers - 1) * nbytes}
    else:
        sent = {"first_bytes": share * nbytes, "middle_bytes": share * nbytes}
    return Work("free", collective, **sent)


def setting(workers=4, rate=1e8, params=10**8, compute_s=0.1, latency=0.0, cores=4.0):
    net = Network.ideal(workers, rate, latency)
    return Setting(net, Model.of(params, compute_s), cores)


# closed forms


@settings(deadline=None)
@given(WORKERS, RATES, st.floats(1e3, 1e10), LATENCIES)
def test_one_job_without_codec_costs_is_the_closed_form(workers, rate, nbytes, alpha):
    net, rates_ = Network.ideal(workers, rate, alpha), [rate] * workers

    def alone(work):
        stages = work.stages(Chunk(nbytes), net)
        return replay([Bucket(0.0, [stages])], Uplink(rate), cores=1.0).step_s

    assert alone(raw(PLAIN, workers, 1)) == pytest.approx(closed_forms.ring(nbytes, rates_, alpha))
    found = alone(free("all_gather", workers))
    assert found == pytest.approx(closed_forms.all_gather(nbytes, rates_, alpha))
    if workers > 2:
        found = alone(free("two_shot", workers))
        assert found == pytest.approx(closed_forms.two_shot(nbytes, rates_, alpha))
    asking = replace(free("code_reduce", workers), ask_bytes=0.01 * (workers - 1))
    expected = closed_forms.code_reduce(0.01 * nbytes, nbytes, nbytes, rates_, alpha)
    assert alone(asking) == pytest.approx(expected)


@settings(deadline=None)
@given(st.lists(st.tuples(SECONDS, st.floats(1e3, 1e9)), min_size=1, max_size=20), RATES)
def test_without_latency_and_codec_costs_a_step_waits_for_link_or_compute(buckets, rate):
    """The link is busy from some bucket on until the end: the last to be ready decides, or not."""
    found = replay(
        [Bucket(s, [[Stage(nbytes=n)]]) for s, n in buckets], Uplink(rate), cores=1.0, lanes=3
    )
    ends, ready = [], 0.0
    for place, (compute_s, _) in enumerate(buckets):
        ready += compute_s
        ends.append(ready + sum(n for _, n in buckets[place:]) / rate)
    assert found.step_s == pytest.approx(max(ends))
    assert found.compute_s == pytest.approx(ready)


def test_a_slow_link_and_a_straggler_delay_everyone():
    even_links = closed_forms.two_shot(1e6, [1e6] * 8, 0.0)
    assert closed_forms.two_shot(1e6, [1e6] * 7 + [5e5], 0.0) == 2 * even_links
    assert closed_forms.ring(1e6, [1e6] * 7 + [5e5], 0.0) == 2 * closed_forms.ring(
        1e6, [1e6] * 8, 0.0
    )
    assert closed_forms.straggling(even_links, [0.0] * 7 + [0.3]) == even_links + 0.3


@settings(deadline=None)
@given(st.sampled_from([2, 4, 8]), st.sampled_from([2, 4, 16]), st.floats(1e6, 1e10))
def test_hierarchy_sends_less_between_nodes_than_a_flat_ring_over_slow_links(size, nodes, rate):
    """With infinitely fast nodes, what is left is one exchange among nodes."""
    found = closed_forms.hierarchical(1e9, [math.inf] * size, 0.0, [rate] * nodes, 0.0)
    assert found == pytest.approx(closed_forms.two_shot(1e9, [rate] * nodes, 0.0))
    assert found <= closed_forms.ring(1e9, [rate / size] * (size * nodes), 0.0)


# the replay


ANOMALY = 0.03
"""Where compute and codecs share cores, work that arrives earlier may get in the way of what all
wait for, as in any list scheduling (Graham 1969)."""


@settings(max_examples=300, deadline=None)
@given(WORKERS, RATES, RATES, PARAMS, SECONDS, LATENCIES, CORES, COLLECTIVES)
def test_more_bandwidth_never_makes_a_step_slower(
    workers, one, other, params, compute_s, latency, cores, collective
):
    slow, fast = sorted((one, other))
    costly = replace(
        free(collective, workers), first_s=1e-9, middle_s=5e-10, last_s=1e-9, job_s=1e-3
    )
    for work in (raw(PLAIN, workers), free(collective, workers), costly):
        there = setting(workers, slow, params, compute_s, latency, cores)
        faster = there.at_rate(fast).predict(work).step_s
        shared = work is costly and cores < 4
        assert faster <= there.predict(work).step_s * (1 + (ANOMALY if shared else 1e-9))


@settings(deadline=None)
@given(WORKERS, RATES, PARAMS, SECONDS, LATENCIES, CORES)
def test_a_codec_that_costs_nothing_and_sends_half_never_loses(
    workers, rate, params, compute_s, latency, cores
):
    there = setting(workers, rate, params, compute_s, latency, cores)
    half = raw("half", workers, 2)
    assert there.predict(half).step_s <= there.predict(raw("none", workers)).step_s * (1 + 1e-9)


@settings(deadline=None)
@given(WORKERS, RATES, PARAMS, SECONDS, COLLECTIVES)
def test_a_step_takes_at_least_what_each_resource_does(
    workers, rate, params, compute_s, collective
):
    work = replace(free(collective, workers), first_s=1e-9, last_s=2e-9)
    there = setting(workers, rate, params, compute_s, cores=1.0)
    found = there.predict(work)
    least = max(compute_s + 3e-9 * params, bytes_of(there, work) / rate)
    assert found.step_s >= least * (1 - 1e-9)
    assert found.step_s <= (compute_s + 3e-9 * params + bytes_of(there, work) / rate) * (1 + 1e-9)


def test_a_codec_on_shared_cores_slows_the_backward_pass():
    work = replace(free("all_gather", 2), first_s=5e-9, last_s=5e-9)
    alone = setting(2, math.inf, compute_s=1.0, cores=4.0).predict(work)
    shared = setting(2, math.inf, compute_s=1.0, cores=1.0).predict(work)
    assert alone.compute_s == pytest.approx(1.0)
    assert shared.compute_s > 1.5
    assert shared.step_s == pytest.approx(1.0 + 1e-8 * 10**8)


def test_sums_that_take_turns_are_on_the_wire_one_by_one():
    """Three messages at once arrive together; in turn, each is decoded while the next travels."""
    at_once = [[Stage(nbytes=1.0), Stage(cpu_s=1.0)] for _ in range(3)]
    in_turn = [[replace(job[0], in_turn=True), job[1]] for job in at_once]
    assert replay([Bucket(0.0, at_once)], Uplink(1.0), cores=1.0).step_s == pytest.approx(6.0)
    assert replay([Bucket(0.0, in_turn)], Uplink(1.0), cores=1.0).step_s == pytest.approx(4.0)


def test_a_shaper_lets_a_burst_through_and_saves_up_while_nothing_is_sent():
    job = [Stage(nbytes=100.0)]
    wire = Uplink(rate=10.0, burst=50.0, peak=1e9)
    first = replay([Bucket(2.0, [job])], wire, cores=1.0)
    assert first.step_s == pytest.approx(2.0 + 5.0, rel=1e-6)
    settled = replay([Bucket(2.0, [job])], wire, cores=1.0, steps=3)
    assert settled.step_s == pytest.approx(2.0 + 8.0, rel=1e-6)  # 20 bytes saved up in 2 seconds


def test_of_what_lanes_get_the_first_job_gets_as_much_as_it_can_use():
    """Three encodes share a core: the first is sent while the second goes on."""
    jobs = [[Stage(cpu_s=1.0), Stage(nbytes=1.0)] for _ in range(3)]
    found = replay([Bucket(0.0, jobs)], Uplink(1.0), cores=1.0)
    assert found.step_s == pytest.approx(4.0)  # one after the other; all at once it would be 6
    beside = replay([Bucket(0.0, jobs), Bucket(1.0, [])], Uplink(1.0), cores=1.0)
    assert beside.step_s == pytest.approx(5.0)  # compute takes a core second more


def test_sending_takes_its_share_of_the_cores():
    stage = Stage(nbytes=1e9, cpu_per_byte=1e-9)
    fast = replay([Bucket(0.0, [[stage]])], Uplink(1e12), cores=2.0)
    assert fast.step_s == pytest.approx(1.0)  # one message, one core
    beside = replay([Bucket(0.0, [[stage]]), Bucket(1.0, [])], Uplink(1e12), cores=1.0)
    assert beside.step_s == pytest.approx(2.0)
    slow = replay([Bucket(0.0, [[stage]]), Bucket(1.0, [])], Uplink(1e8), cores=1.0)
    assert slow.compute_s == pytest.approx(1 / 0.9)  # a tenth of a core goes to sending


# bytes


def shapes():
    return nn.Sequential(
        nn.Linear(700, 1000), nn.Linear(1000, 1300), nn.Linear(1300, 777), nn.Linear(777, 30)
    )


def run_steps(rank, spec, steps):
    """Bytes of a step as `handle.stats()` counts them, and the buckets as they were handed over."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(shapes(), bucket_cap_mb=4)
    seen = []

    def watch(hook):
        def watching(state, bucket):
            seen.append([p.numel() for p in bucket.parameters()])
            return hook(state, bucket)

        return watching

    handle = gw.attach(ddp, spec, wrap=watch)
    inputs = torch.randn(4, 700, generator=torch.Generator().manual_seed(rank))
    for _ in range(steps):
        before, seen[:] = handle.stats().bytes_sent, []
        ddp(inputs).square().sum().backward()
        ddp.zero_grad()
    sent = handle.stats().bytes_sent - before
    handle.close()
    return sent, seen


FIXED = [
    "none", "fp16", "bf16", "qsgd:bits=4", "qsgd:bits=2,block=128", "dqsg", "global-qsgd:bits=4",
    "global-qsgd:bits=2,norm=l2,dither=subtractive", "global-qsgd:bits=4,dither=exponential",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("spec", FIXED)
@pytest.mark.parametrize("size", [2, 4])
def test_bytes_are_those_that_stats_count(worlds, size, spec):
    for rank, (sent, seen) in enumerate(worlds[size].run(run_steps, spec, 3)):
        buckets = [Ready(0.0, tuple(sizes)) for sizes in seen]
        messages = Messages(spec, size)
        assert messages.is_exact
        assert messages.step_nbytes(buckets, rank) == sent


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec", ["dqsg:bits_per_value=2.0", "fft:drop=0.9", "qsgd:bits=4,wire=zstd"]
)
@pytest.mark.parametrize("size", [2, 4])
def test_bytes_that_depend_on_the_data_are_those_that_were_measured(worlds, size, spec):
    (sent, seen), *_ = worlds[size].run(run_steps, spec, 3)
    messages = Messages(spec, size, rates.measure(spec, 1 << 18).bytes_per_value)
    assert not messages.is_exact
    found = messages.step_nbytes([Ready(0.0, tuple(sizes)) for sizes in seen])
    assert found == pytest.approx(sent, rel=0.35)  # these gradients are no Gaussian values


@pytest.mark.parametrize("spec", FIXED)
@pytest.mark.parametrize("workers", [2, 4, 16])
def test_bytes_for_a_value_are_those_of_long_buckets(spec, workers):
    messages = Messages(spec, workers)
    buckets = [Ready(0.0, (6_000_000, 9_000_000)), Ready(0.0, (12_000_000,))]
    exact = messages.step_nbytes(buckets, rank=0)
    assert sum(messages.per_value()) * 27_000_000 == pytest.approx(exact, rel=1e-3)


@settings(deadline=None)
@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=9), st.integers(1, 9))
def test_cutting_loses_no_value_and_cuts_as_the_reducer_does(sizes, count):
    from gradwire.collectives import parts

    codec = gw.QSGD()
    assert codec.grain == 512
    slices = parts.whole([parts.Part(torch.empty(n, device="meta"), 0, codec) for n in sizes])
    theirs = [[piece.numel for piece in found] for found in parts.cut(slices, count)]
    assert cut(sizes, 512, count) == theirs
    assert sum(map(sum, chunks(sizes, 512, 2))) == sum(sizes)


@settings(deadline=None)
@given(PARAMS, SECONDS)
def test_an_even_model_has_all_its_parameters(params, compute_s):
    buckets = even(params, compute_s)
    assert sum(sum(bucket.sizes) for bucket in buckets) == params
    times = [bucket.at_s for bucket in buckets]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(compute_s)


# advice


def planned(**changes):
    numbers = {
        "params": "25.6e6", "workers": 4, "bandwidth": "1gbit", "latency": "50us",
        "compute": "100ms", "cores": None, "profile": None, "codecs": (),
    }  # fmt: skip
    return Request(**{**numbers, **changes}).planned()


@pytest.mark.parametrize("workers", [2, 4, 64])
def test_on_an_infinite_link_nothing_is_recommended(workers):
    found = planned(bandwidth="infgbit", workers=workers, latency="0s")
    assert advice.choice(found.rows) is None
    assert found.sentence.startswith("Do not compress")


def test_on_a_slow_link_a_codec_is_recommended():
    found = planned(bandwidth="50mbit")
    best = advice.choice(found.rows)
    assert best is not None
    assert best.speedup > 4
    assert f"`{best.codec}`" in found.sentence


def test_it_pays_below_the_bandwidth_that_is_said_and_not_above():
    found = planned()
    for row, work in zip(found.rows, found.works, strict=True):
        if row.pays_below is None:
            continue
        for factor, pays in ((0.9, True), (1.1, False)):
            there = found.setting.at_rate(row.pays_below / 8 * factor)
            steps = there.predict(work).step_s, there.predict(there.plain()).step_s
            assert (steps[0] < steps[1]) is pays, row.codec


def test_codecs_whose_sums_do_not_fit_are_left_out_and_said_to_be():
    found = planned(workers=100_000, codecs=("qsgd:bits=4", "global-qsgd:bits=8"))
    assert [row.codec for row in found.rows] == ["qsgd:bits=4"]
    assert "global-qsgd" in found.describe()


def test_breakeven_is_nowhere_for_a_codec_that_sends_as_much_and_costs():
    there = setting(4)
    costly = replace(free("two_shot", 4, nbytes=4.0), first_s=1e-8)
    assert breakeven(there, costly, there.plain()) is None


def test_the_model_of_the_paper_is_its_formula():
    there = setting(workers=4, rate=1e8, params=10**8, compute_s=0.5)
    nbytes, levels = 4e8, 2
    expected = 0.5 + 2 * levels * nbytes / 1e8 + levels * nbytes / paper.GAMMA
    assert paper.step_s(there, raw(PLAIN, 4)) == pytest.approx(expected)


def test_the_papers_condition_for_a_speed_up():
    """(omega - rho) beta < 2 (rho - 1) gamma, rho = 4: 6 gamma."""
    there = setting(workers=4, rate=1.0, params=10**6, compute_s=0.0)
    plain, quarter = raw(PLAIN, 4), raw("codec", 4, 1)
    for omega, beta, pays in ((79, 0.075, True), (79, 0.085, False), (3.9, 1e6, True)):
        at = there.at_rate(beta * 1e9)
        steps = [
            paper.step_s(at, plain, gamma=1e9), paper.step_s(at, quarter, gamma=1e9, omega=omega)
        ]  # fmt: skip
        assert (steps[1] < steps[0]) is pays


# the command


def run(*arguments):
    return CliRunner().invoke(app, ["plan", *arguments])


NUMBERS = ["--params", "1.3e9", "--workers", "64", "--bandwidth", "10gbit", "--compute", "300ms"]


def test_the_command_says_which_codec_and_writes_json(tmp_path):
    path = tmp_path / "plan.json"
    done = run(*NUMBERS, "--latency", "50us", "--json", str(path))
    assert done.exit_code == 0, done.output
    (found,) = json.loads(path.read_text())
    assert found["recommendation"] in " ".join(done.output.split())
    assert [row["codec"] for row in found["codecs"]] == list(rates.CODECS)
    assert rates.table()["machine"] in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "`--params`, `--workers`, `--bandwidth`, `--compute`"),
        ([*NUMBERS[:-2]], "`--compute`"),
        ([*NUMBERS, "--bandwidth", "10"], "such as 10gbit"),
        ([*NUMBERS, "--latency", "fast"], "such as 50us"),
        ([*NUMBERS, "--params", "many"], "such as 1.3e9"),
        ([*NUMBERS, "--workers", "1"], "2 to 100,000"),
        ([*NUMBERS, "--cores", "0"], "above 0"),
        ([*NUMBERS, "-c", "qsgd:bits=99"], "bits"),
        (["--profile", "/nowhere.json"], "write one with `gradwire probe`"),
    ],
)
def test_what_is_wrong_is_a_sentence(arguments, words):
    done = run(*arguments)
    assert done.exit_code == 2
    assert words in done.output


@pytest.mark.parametrize(
    ("text", "value"), [("10gbit", 1.25e9), ("1.5 Gbit/s", 1.875e8), ("100mbit", 1.25e7)]
)
def test_rates_are_bits_a_second(text, value):
    assert units.rate(text) == value
