"""What `auto` decides, from made-up measurements; nothing here looks at a clock."""

import itertools
import json
import random
from dataclasses import replace
from math import inf, nan

import pytest

import gradwire as gw
from gradwire.codecs import as_codec
from gradwire.planner.auto import decide, words
from gradwire.planner.auto.candidates import LAYER_MOST, candidates
from gradwire.planner.auto.decide import shortlist, verdict
from gradwire.planner.auto.facts import RAW, Arrival, Assignment, Facts, Offer
from gradwire.planner.auto.forecast import Forecast
from gradwire.planner.auto.plans import plans
from gradwire.planner.auto.program import solve
from gradwire.planner.auto.records import Judged, Shortlist, Verdict
from gradwire.planner.auto.settings import Auto, as_auto
from gradwire.planner.network import Network

VALUES = {0: 1 << 20, 1: 1 << 19, 2: 1 << 21, 3: 1 << 16}
SLOW, FAST = 1e7, 1e11


def offer(spec, cpu_s, bits, nmse, values=VALUES):
    each = dict.fromkeys(values, 1.0)
    return Offer(
        spec, cpu_s, 2 * cpu_s / 3, cpu_s / 3,
        dict.fromkeys(each, bits / 8), dict.fromkeys(each, nmse),
    )  # fmt: skip


OFFERS = (
    offer("dqsg:levels=15", 1e-9, 5.06, 0.004),
    offer("dqsg:levels=7", 1e-9, 4.06, 0.018),
    offer("dqsg:levels=3", 1e-9, 3.06, 0.1),
    offer("dqsg:step=1.2", 4e-9, 2.0, 0.12),
    offer("dqsg:step=1.7", 4e-9, 1.6, 0.24),
)


def facts(rate, **changes):
    """Two workers; steps as long as they should be if raw."""
    made = Facts(
        network=Network.ideal(2, rate, 1e-4), cores=2.0, lanes=3, chunk=1 << 20, job_s=3e-4,
        buckets=(Arrival(0.0, (3, 2), 100), Arrival(0.01, (1, 0), 50)), values=VALUES,
        energy={0: 1.0, 1: 4.0, 2: 2.0, 3: 0.5}, rest_energy=0.1, offers=OFFERS,
        outside_s=0.02, span_s=0.0,
    )  # fmt: skip
    return replace(replace(made, span_s=Forecast(made).span_s(RAW)), **changes)


def brute_force(costs, errors, budget):
    """The least cost of all choices within the budget."""
    best = inf
    for choice in itertools.product(*(range(len(row)) for row in costs)):
        lost = sum(row[j] for row, j in zip(errors, choice, strict=True))
        if lost <= budget:
            best = min(best, sum(row[j] for row, j in zip(costs, choice, strict=True)))
    return best


@pytest.mark.parametrize("seed", range(20))
def test_the_program_is_as_good_as_brute_force(seed):
    """It counts errors in 1024 parts of the budget, rounded up, so no better budget can beat it."""
    draw = random.Random(seed)
    layers, options = draw.randint(1, 5), draw.randint(2, 5)
    costs = [[draw.random() for _ in range(options)] for _ in range(layers)]
    errors = [[0.0, *(draw.expovariate(3) for _ in range(options - 1))] for _ in range(layers)]
    errors[0][-1] = inf
    budget = draw.random()
    chosen = solve(costs, errors, budget)
    lost = sum(row[j] for row, j in zip(errors, chosen, strict=True))
    cost = sum(row[j] for row, j in zip(costs, chosen, strict=True))
    assert lost <= budget
    assert cost >= brute_force(costs, errors, budget) - 1e-12
    assert cost <= brute_force(costs, errors, budget * (1 - layers / 1024)) + 1e-12


def test_the_program_without_a_budget_takes_what_has_no_error():
    assert solve([[3.0, 1.0], [2.0, 1.0]], [[0.0, 0.1], [0.0, 0.0]], 0.0) == [0, 1]


def test_many_layers_share_the_budget_to_the_last():
    """Rounding up takes less than a 30th of it, however many layers there are."""
    count = 400
    chosen = solve([[1.0, 0.0]] * count, [[0.0, 1.0]] * count, 300.0)
    assert 290 <= sum(chosen) <= 300


@pytest.mark.parametrize("seed", range(10))
def test_no_plan_exceeds_the_budget_nor_what_a_layer_may_lose(seed):
    draw = random.Random(seed)
    offers = tuple(
        replace(each, nmse={i: n * draw.uniform(0.2, 5) for i, n in each.nmse.items()})
        for each in OFFERS
    )
    energy = {i: draw.expovariate(1) for i in VALUES}
    found = facts(SLOW, offers=offers, energy=energy)
    for error in (0.001, 0.05, 0.15, 0.5):
        made = plans(Forecast(found), error)
        assert RAW in made
        for plan in made:
            assert found.error(plan) <= error
            for layer, spec in plan.specs:
                assert found.by_spec[spec].nmse[layer] <= LAYER_MOST * error


def test_the_program_beats_every_codec_for_all_layers():
    """Where the energy is in few values, the others can be coarse."""
    found = facts(SLOW, energy={0: 0.1, 1: 0.1, 2: 0.1, 3: 10.0})
    sent = {plan: sum(Forecast(found).costs(i, plan.by_layer.get(i))[0] for i in VALUES)
            for plan in plans(Forecast(found), 0.15)}  # fmt: skip
    best = min(sent, key=sent.get)
    uniform = min(s for plan, s in sent.items() if len(set(plan.by_layer.values())) == 1)
    assert len(set(best.by_layer.values())) > 1
    assert sent[best] < 0.9 * uniform


@pytest.mark.parametrize("specs", [{}, {0: "dqsg:levels=3"}, dict.fromkeys(VALUES, "dqsg:step=1.2"),
                                   {0: "dqsg:step=1.7", 2: "dqsg:levels=7"}])  # fmt: skip
def test_without_latency_or_costs_a_step_takes_its_bytes_over_the_rate(specs):
    """Layers may take more bytes or fewer through the same codec, if their size is not fixed."""
    free = tuple(
        replace(
            each,
            cpu_s=0.0,
            nbytes={i: (1 + ("step" in each.spec) * i / 4) * n for i, n in each.nbytes.items()},
        )
        for each in OFFERS
    )
    found = facts(1e8, offers=free, job_s=0.0, network=Network.ideal(2, 1e8, 0.0),
                  buckets=(Arrival(0.0, (3, 2, 1, 0), 150),))  # fmt: skip
    plan = Assignment.of(specs)
    nbytes = 150 * 4 + sum(
        n * (found.by_spec[specs[i]].nbytes[i] if i in specs else 4.0) for i, n in VALUES.items()
    )
    assert Forecast(found).span_s(plan) == pytest.approx(nbytes / 1e8, rel=0.01)


def test_on_a_slow_link_it_compresses_and_on_a_fast_one_it_does_not():
    slow, fast = shortlist(facts(SLOW), Auto()), shortlist(facts(FAST), Auto())
    assert slow.tried[0].step_s < 0.2 * slow.step_s
    assert slow.tried[0].error <= 0.15
    chosen = verdict(slow, RAW, [each.step_s for each in slow.tried])
    assert chosen.plan != RAW
    assert "from now on" in words.decided(slow, chosen, RAW, 4, 5)
    assert fast.tried == ()
    stays = verdict(fast, RAW, [])
    assert stays.plan == RAW
    assert stays.error == 0.0
    assert "nothing pays here" in words.decided(fast, stays, RAW, 4, 5)


def test_a_codec_that_takes_too_much_of_the_cores_is_not_chosen():
    costly = tuple(replace(each, cpu_s=1e-6) for each in OFFERS)
    assert shortlist(facts(1e8, offers=costly), Auto()).tried == ()
    assert shortlist(facts(1e8), Auto()).tried != ()


def test_gradients_that_say_nothing_are_measured_again():
    for energy in (0.0, inf, nan):
        found = facts(SLOW, energy=dict.fromkeys(VALUES, energy), rest_energy=0.0)
        assert shortlist(found, Auto()) is None


PLANS = [Assignment.of(dict.fromkeys(VALUES, each.spec)) for each in OFFERS]


def listed(*tried, step_s=1.0, error=0.0):
    judged = tuple(Judged(plan, 0.1, lost) for plan, lost in tried)
    return Shortlist(judged, judged[0], step_s, 0.1, error, 3, 300, 1.0, 1.0, 1e8)


def test_what_is_measured_counts_and_not_what_is_predicted():
    found = listed((PLANS[0], 0.1), (PLANS[1], 0.1))
    assert verdict(found, RAW, [0.9, 0.5]).plan == PLANS[1]
    assert verdict(found, RAW, [0.9, 0.96]).plan == PLANS[0]
    assert verdict(found, RAW, [0.96, 0.96]).plan == RAW
    assert verdict(found, RAW, [2.0, 3.0]) == Verdict(RAW, 1.0, 0.0, 300, 1.0, 1.0, 1e8, (2.0, 3.0))


def test_of_plans_that_are_as_fast_the_most_exact_is_kept():
    found = listed((PLANS[0], 0.1), (PLANS[1], 0.02))
    assert verdict(found, RAW, [0.5, 0.51]).plan == PLANS[1]
    assert verdict(found, RAW, [0.5, 0.53]).plan == PLANS[0]


def test_the_plan_in_force_is_timed_like_the_others_if_it_is_close():
    found = shortlist(facts(2e9), Auto())
    assert found.tried[0].step_s > decide.CLOSE * found.step_s
    assert found.tried[-1].plan == RAW
    seconds = [0.97 * found.step_s] * (len(found.tried) - 1)
    assert verdict(found, RAW, [*seconds, 1.1 * found.step_s]).plan != RAW
    assert verdict(found, RAW, [*seconds, found.step_s]).plan == RAW
    assert shortlist(facts(SLOW), Auto()).tried[-1].plan != RAW


def held(plan, found):
    """What was decided for `plan`, which takes what is predicted."""
    step_s = Forecast(found).step_s(plan)
    return Verdict(plan, step_s, found.error(plan), 300, 9.0, 1.0, 1e8)


def test_a_look_changes_nothing_that_is_not_worth_it():
    """Hysteresis: the plan in force stays if no other should be 5 % faster."""
    base = facts(SLOW)
    best, *others = sorted(plans(Forecast(base), 0.15), key=Forecast(base).step_s)
    again = replace(base, span_s=Forecast(base).span_s(best))
    assert shortlist(again, Auto(), held(best, base)).tried == ()
    near = next(p for p in others if 1 < Forecast(base).step_s(p) / again.step_s < 1.05)
    again = replace(base, span_s=Forecast(base).span_s(near))
    assert shortlist(again, Auto(), held(near, base)).tried == ()
    far = next(p for p in others if Forecast(base).step_s(p) / again.step_s > 1.2)
    again = replace(base, span_s=Forecast(base).span_s(far))
    assert shortlist(again, Auto(), held(far, base)).tried[0].plan == best


def test_predictions_are_measured_by_how_they_did_so_far():
    """If steps take thrice what was predicted for the plan in force, others will do alike."""
    base = facts(SLOW)
    best, *others = sorted(plans(Forecast(base), 0.15), key=Forecast(base).step_s)
    for plan in (best, others[0]):
        again = replace(base, span_s=3 * Forecast(base).span_s(plan))
        assert shortlist(again, Auto(), held(plan, base)).tried == ()
    found = shortlist(replace(base, span_s=3 * base.span_s), Auto())
    assert found.raw_bias == pytest.approx(3.0)
    fast = facts(FAST)
    again = replace(fast, span_s=Forecast(fast).span_s(PLANS[0]))
    before = replace(held(PLANS[0], fast), raw_bias=1e9)
    assert RAW not in [each.plan for each in shortlist(again, Auto(), before).tried]


def test_a_look_goes_back_to_raw_when_the_link_has_become_fast():
    plan = PLANS[2]
    fast = facts(FAST)
    found = shortlist(replace(fast, span_s=Forecast(fast).span_s(plan)), Auto(), held(plan, fast))
    assert found.tried[0].plan == RAW
    back = verdict(found, plan, [each.step_s for each in found.tried])
    assert (back.plan, back.error) == (RAW, 0.0)
    assert back.raw_s == back.step_s
    assert "back to raw" in words.decided(found, back, plan, 4, 9)


def test_a_plan_that_loses_too_much_by_now_may_not_stay():
    plan, base = PLANS[4], facts(SLOW)
    best = replace(base, span_s=Forecast(base).span_s(plan))
    assert base.error(plan) > 0.15
    found = shortlist(best, Auto(), held(plan, base))
    assert found.step_s == inf
    assert all(each.error <= 0.15 for each in found.tried)
    assert "lose too much" in words.trying(found, 4)
    assert verdict(found, plan, [9.0] * len(found.tried)).plan != plan


def test_what_ranks_tell_each_other_arrives_as_it_was():
    found = shortlist(facts(SLOW), Auto())
    assert Shortlist.from_json(json.loads(json.dumps(found.to_json()))) == found
    chosen = verdict(found, RAW, [0.1] * len(found.tried))
    assert Verdict.from_json(json.loads(json.dumps(chosen.to_json()))) == chosen


def test_looking_again_takes_two_percent_of_a_run_at_most():
    found = facts(FAST, cost_s=0.5)
    assert shortlist(found, Auto()).look_in == pytest.approx(0.5 / (0.02 * found.step_s), abs=1)
    assert shortlist(facts(FAST), Auto(every=40)).look_in == 40


@pytest.mark.parametrize("error", [1e-4, 0.001, 0.15, 1.0])
def test_candidates_are_unbiased_and_fit_the_budget(error):
    specs = candidates(error)
    assert len(set(specs)) == len(specs) >= 3
    assert all(gw.parse(spec).unbiased and str(gw.parse(spec)) == spec for spec in specs)


def test_settings_are_spelled_and_refused():
    assert as_auto(" auto:error=0.05,every=50") == Auto(error=0.05, every=50)
    assert as_auto(str(Auto(error=0.05, every=50))) == Auto(error=0.05, every=50)
    assert str(Auto()) == "auto"
    assert as_auto("qsgd") is None
    with pytest.raises(ValueError, match=r"`error` of auto must be from 0\.0001 to 1"):
        as_auto("auto:error=2")
    with pytest.raises(ValueError, match="`every` of auto must be an integer of at least 20"):
        gw.Auto(every=3)
    with pytest.raises(ValueError, match="'bits=4' in 'auto:bits=4' is not a setting of auto"):
        as_auto("auto:bits=4")


@pytest.mark.parametrize("auto", ["auto", "auto:error=0.1", Auto()])
def test_it_is_refused_where_a_codec_is_needed(auto):
    said = r"'auto' is no codec: .* `gw.attach\(ddp, 'auto'\)`.*; here name a codec"
    takers = [
        as_codec,
        lambda auto: gw.encode(auto, None),
        lambda auto: gw.simulate(auto, [], gw.Key()),
        lambda auto: gw.Policy(codecs={"a": str(auto)}),
    ]
    for take in takers:
        with pytest.raises(ValueError, match=said):
            take(auto)


def test_plans_are_told_in_plain_words():
    mixed = Assignment(((0, "dqsg"), (2, "qsgd:bits=4")))
    assert words.plan_in_words(mixed, 2) == "1 layer by dqsg and 1 by qsgd:bits=4"
    assert words.plan_in_words(mixed, 5) == "3 layers raw, 1 by dqsg and 1 by qsgd:bits=4"
    assert words.plan_in_words(RAW, 5) == "all 5 layers raw"
    assert words.plan_in_words(Assignment(((1, "dqsg"),)), 1) == "1 layer by dqsg"
