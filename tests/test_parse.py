"""Specs: what is no codec is refused with a sentence, and with nothing else."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradwire as gw
from gradwire.codecs import REGISTRY, as_codec
from laws import EXAMPLES

WORDS = sorted({word for spec in EXAMPLES for item in spec.split(",") for word in item.split("=")})
NUMBERS = ["0", "-1", "4", "0.5", "1e999", "nan", "-inf", "9" * 5000, "1_0", "²", "0.9@", "*@/", ""]
NAMES = st.sampled_from([*REGISTRY, *EXAMPLES])
SETTINGS = st.sampled_from(
    sorted({name for codec in map(gw.parse, EXAMPLES) for name in vars(codec)})
)
VALUES = st.sampled_from([*WORDS, *NUMBERS, *EXAMPLES]) | st.text(max_size=4)
SPECS = st.builds(
    lambda name, items: f"{name}:{','.join(f'{setting}={value}' for setting, value in items)}",
    NAMES,
    st.lists(st.tuples(SETTINGS, VALUES), max_size=3),
)


@given(SPECS | st.text(alphabet=",:;=.@*/ -_aefnqsgdQ0123456789", max_size=30))
@settings(max_examples=400, deadline=None)
def test_only_a_codec_or_a_sentence_comes_of_a_spec(spec):
    with contextlib.suppress(ValueError):
        codec = gw.parse(spec)
        assert gw.parse(str(codec)) == codec


def test_codecs_within_codecs_without_end():
    with pytest.raises(ValueError, match="codecs within codecs"):
        gw.parse("gradiveq:inner=" * 3000)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("qsgd:bits=4,bits=5", r"'qsgd:bits=4,bits=5' says `bits` twice; say it once\."),
        ("qsgd:", r"'qsgd:' lacks a setting; write `qsgd` alone, or `qsgd:setting=value`"),
        ("qsgd:bits=4,", "lacks a setting"),
        ("qsgd:,bits=4", "lacks a setting"),
        ("fp16:", r"lacks a setting; .* settings are none\."),
        ("qsgd:bits", "'bits' in 'qsgd:bits' is not a setting of qsgd"),
        ("", r"no codec is called ''; there are none, fp16, "),
    ],
)
def test_what_is_wrong_is_said(spec, sentence):
    with pytest.raises(ValueError, match=sentence):
        gw.parse(spec)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("QSGD", "qsgd"),
        ("DQSG:levels=3", "dqsg"),
        ("FP16", "fp16"),
        ("GlobalQSGD", "global-qsgd"),
        ("global_qsgd", "global-qsgd"),
        ("FFTSparse", "fft"),
        ("TopK", "topk"),
        ("EDEN:bits=1", "eden"),
        ("GradiVeQ", "gradiveq"),
        ("qsdg", "qsgd"),
    ],
)
def test_the_name_that_was_meant_is_suggested(name, meant):
    with pytest.raises(ValueError, match=rf"Did you mean '{meant}'\?$"):
        gw.parse(name)


def test_what_is_no_spec():
    for nothing in (None, 4, gw.QSGD()):
        with pytest.raises(TypeError, match=r"a spec is a string such as 'qsgd:bits=4', got "):
            gw.parse(nothing)


def test_a_codec_or_its_spec():
    codec = gw.QSGD(bits=2)
    assert as_codec(codec) is codec
    assert as_codec("qsgd:bits=2") == codec
    with pytest.raises(TypeError, match=r"must be a codec such as .* or its spec, got None\."):
        as_codec(None)
