"""The report is one file that asks for no network, and the table that ends a run.

What a browser makes of it is asked of a real one, if there is one.
"""

import io
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from gradwire.lab.links.shape import Shape
from gradwire.lab.records import Evaluation, Layer, Point, Result, Settings
from gradwire.lab.report.about import about
from gradwire.lab.report.axes import axis, decades, rounds
from gradwire.lab.report.page import page, write_report
from gradwire.lab.report.series import styles
from gradwire.lab.report.times import STAGES, stages
from gradwire.lab.scores import behind, score_text, score_title, sooner
from gradwire.lab.summary import summary
from gradwire.lab.table import Comparison

CODECS = ("none", "qsgd:bits=4", "<b>odd</b>")
PLOTS = ("score-time", "score-bytes", "score-steps", "loss-steps")
ORIGIN = {"command": "gradwire train -c '<b>'", "machine": "2 cores"}
MOST_BYTES = 2_000_000
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--enable-logging=stderr",
    "--virtual-time-budget=5000",
    "--dump-dom",
)
DARK = "--blink-settings=preferredColorScheme=0"
BROWSER_ITSELF = "not an origin"  # the initiator of requests that no page made


def settings(codecs: tuple[str, ...] = CODECS) -> Settings:
    return Settings("mnist-cnn", codecs, 4, 20, 32, 0.05, 0, 1, None, None, None, 1)


def result(
    codec: str,
    ratio: float | None = 0.25,
    loss: float = 0.5,
    score: float = 0.975,
    score_name: str = "accuracy",
    remarks: tuple[str, ...] = (),
    target: float | None = None,
    pace: float = 0.1,
    step_s: float = 0.1,
) -> Result:
    curve = tuple(Point(i, loss / i, 1000 * i, pace * i) for i in range(1, 21))
    scores = tuple(
        Evaluation(i, score * i / 20, loss / i, 1000 * i, pace * i) for i in range(2, 21, 2)
    )
    return Result(
        codec=codec,
        task="mnist-cnn",
        score=score,
        score_name=score_name,
        higher_is_better=score_name == "accuracy",
        loss=loss,
        bytes_per_step=1000,
        bits_per_value=8.0,
        ratio=ratio,
        step_s=step_s,
        compute_s=0.05,
        encode_s=0.01,
        comm_s=0.02,
        decode_s=0.01,
        steps=20,
        workers=4,
        seed=0,
        parameters=1234,
        link=None,
        target=target,
        reached=next(
            (each for each in scores if target is not None and each.score >= target), None
        ),
        scores=scores,
        curve=curve,
        layers=(Layer("0.weight", 12800, 4.06, True, 0.02), Layer("0.bias", 16, 32.0, True, 0.0)),
        remarks=remarks,
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("report") / "deep" / "er"
    return write_report(settings(), [result(codec) for codec in CODECS], directory)


class Outside(HTMLParser):
    """Collects every attribute of a page that could make a browser fetch something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {"src", "href", "srcset", "data", "action", "poster", "background"}
        self.found += [f"{tag} {name}={value}" for name, value in attrs if name in names]


def test_nothing_in_the_page_points_outside(report: Path) -> None:
    text = report.read_text()
    assert Outside(text).found == []
    style = re.search(r"<style>(.*?)</style>", text, re.S)
    assert style
    assert "url(" not in style[1]
    assert "@import" not in style[1]
    assert "default-src 'none'" in text
    assert Outside('<script src="https://example.com/x.js"></script>').found


def test_every_codec_is_named_escaped_and_has_its_own_colour(report: Path) -> None:
    text = report.read_text()
    assert "qsgd:bits=4" in text
    assert "&lt;b&gt;odd" in text
    assert "<b>odd" not in text
    assert len({style.css for style in styles([f"codec{i}" for i in range(42)])}) == 42


def test_runs_that_diverged_or_sent_nothing_have_a_report_too() -> None:
    text = page(
        settings(("none",)),
        [result("none", ratio=None, loss=float("nan"), score=float("nan"))],
        ORIGIN,
    )
    assert "0&times;</span> the bytes of float32" in text
    assert "polyline data-series" not in text


def test_a_score_that_is_a_loss_may_diverge_too() -> None:
    diverged = result("fp16", score=float("nan"), score_name="bits_per_character")
    results = [result("none", score_name="bits_per_character"), diverged]
    assert diverged.to_json()["bits_per_character"] is None
    assert "nan" in shown(results)
    assert "nan% better" not in page(settings(("none", "fp16")), results, ORIGIN)


def shown(results: list[Result], width: int = 100) -> str:
    out = Console(width=width, file=io.StringIO())
    out.print(Comparison(results))
    return out.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("score_name", "scores", "direction", "standings"),
    [
        ("accuracy", (0.8, 0.6, 0.9), "higher is better", ("25.0% worse", "12.5% better")),
        ("bits_per_character", (2.0, 2.5, 1.9), "lower is better", ("25.0% worse", "5.0% better")),
    ],
)
def test_table_and_report_know_which_way_a_score_is_good(
    score_name: str, scores: tuple[float, ...], direction: str, standings: tuple[str, ...]
) -> None:
    results = [
        result(c, score=s, score_name=score_name) for c, s in zip(CODECS, scores, strict=True)
    ]
    text = shown(results)
    report = page(settings(), results, ORIGIN)
    _, *percents = [f"{behind(r, results):.2%}" for r in results]
    assert [float(percent.rstrip("%")) > 0 for percent in percents] == [True, False]
    for percent in percents:
        assert percent in text
        assert f"<td>{percent}</td>" in report
    for place in (text, report):
        assert direction in " ".join(place.split())
    for standing in standings:
        assert f"{standing} than none" in report


def test_without_none_there_is_nothing_to_be_behind() -> None:
    assert behind(result("fp16"), [result("fp16")]) is None
    assert behind(result("none", score=0.0), [result("none", score=0.0)]) is None


def test_a_score_is_named_and_written_as_its_kind_is_read() -> None:
    bits = result("none", score=2.34567, score_name="bits_per_character")
    assert (score_title(bits), score_text(bits)) == ("test bits per character", "2.3457")
    assert score_text(result("none")) == "97.50%"
    assert "test bits/character" in page(settings(("none",)), [bits], ORIGIN)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
@pytest.mark.parametrize("score_name", ["accuracy", "bits_per_character"])
def test_long_names_are_broken_after_commas_alone(width: int, score_name: str) -> None:
    names = [
        "global-qsgd:dither=exponential",
        "gradiveq:energy=0.8,warmup_steps=10,train_steps=30,inner=fp16",
    ]
    lines = shown([result(name, score_name=score_name) for name in names], width).splitlines()
    assert max(map(len, lines)) <= width
    starts = [line.split()[0] for line in lines if line.strip()]
    for name in names:
        first = next(i for i, start in enumerate(starts) if start.startswith(name[:8]))
        pieces = [starts[first]]
        while pieces[-1].endswith(","):
            pieces.append(starts[first + len(pieces)])
        assert "".join(pieces) == name


@pytest.mark.parametrize("width", [20, 30, 40, 60])
def test_every_table_names_its_codecs_at_any_width(width: int) -> None:
    names = ["none", "qsgd:bits=4", "global-qsgd:dither=exponential"]
    text = shown([result(name) for name in names], width)
    *tables, _caption, _sum = text.split("\n\n")
    assert len(tables) > 1
    for table in tables:
        assert max(map(len, table.splitlines())) <= width
        assert all(name in "".join(table.split()) for name in names)
    for head in ("accuracy", "float32", "step", "loss", "/value", "compute", "decode"):
        assert head in "".join(tables)


def test_what_is_to_be_known_of_a_run_is_in_table_report_and_json() -> None:
    remarks = ("ndqsg sent its plain code 38 times.", "<b>odd</b> was `learning`.")
    results = [result("none"), result("ndqsg", remarks=remarks), result("fp16", remarks=remarks)]
    text = shown(results)
    report = page(settings(), results, ORIGIN)
    for remark in remarks:
        assert text.count(remark) == 1
    assert '<p class="remark">ndqsg sent its plain code 38 times.</p>' in report
    assert "&lt;b&gt;odd&lt;/b&gt; was <code>learning</code>." in report
    assert results[1].to_json()["remarks"] == remarks
    assert 'class="remark"' not in page(settings(), [result("none")], ORIGIN)


def test_one_worker_is_not_workers() -> None:
    alone = Settings("mnist-cnn", ("none",), 1, 1, 1, 0.05, 0, 1, None, None, None, 1)
    report = page(alone, [result("none")], ORIGIN)
    assert "mnist-cnn on 1 worker, loopback<" in report
    assert "<b>1</b> step<" in report
    assert "<b>1</b> example a worker" in report


def race(**paces: float) -> list[Result]:
    """Results of codecs that reach 80 % of a score of 0.975 at step 18, at their own pace."""
    return [result(name, target=0.8, pace=pace) for name, pace in paces.items()]


def test_the_table_says_how_much_sooner_the_target_was_reached() -> None:
    results = [*race(none=0.4, qsgd=0.1), result("fft", score=0.7, target=0.8)]
    text = shown(results)
    table = text.partition("\n\n")[0]
    rows = {line.split()[0]: line.split()[1:5] for line in table.splitlines()}
    assert rows["none"] == ["1.0", "7.2", "18", "0.0"]
    assert rows["qsgd"] == ["4.0", "1.8", "18", "0.0"]
    assert rows["fft"] == ["-", "never", "never", "never"]
    assert "seconds steps" in " ".join(text.split())
    assert "to 80%" in text
    assert (sooner(results[1], results), sooner(results[2], results)) == (4.0, None)
    assert sooner(results[1], results[1:]) is None


def test_a_brief_table_is_short_and_ends_with_the_sum() -> None:
    results = race(none=0.4, qsgd=0.1)
    out = Console(width=100, file=io.StringIO())
    out.print(Comparison(results, brief=True))
    lines = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) == 6
    assert lines[-1] == summary(results)


@pytest.mark.parametrize(
    ("results", "sentence"),
    [
        (
            race(none=0.4, qsgd=0.1),
            "`qsgd` reached 80% accuracy 4.0 times sooner than `none` (float32): "
            "after 1.8 s instead of 7.2 s.",
        ),
        (
            race(none=0.1, qsgd=0.4),
            "No codec reached 80% accuracy sooner than `none`, which took 1.8 s.",
        ),
        (
            [result("none", score=0.7, target=0.8), *race(fft=0.2)],
            "`fft` reached 80% accuracy after 3.6 s; `none` did not reach it in 20 steps.",
        ),
        (
            [result("none", score=0.7, target=0.8), result("fft", score=0.71, target=0.8)],
            "No codec reached 80% accuracy in 20 steps; `fft` came nearest, with 71.00%.",
        ),
        (race(fft=0.2), "`fft` reached 80% accuracy after 3.6 s."),
        (race(fft=0.2, qsgd=0.1),
         "`qsgd` reached 80% accuracy after 1.8 s, sooner than the others."),
        ([result("none"), result("fft")],
         "No codec made a step much shorter than `none` did, which took 100 ms."),
        ([result("none"), result("fft", step_s=0.02, score=0.78)],
         "`fft` made a step 5.0 times shorter than `none` did, 20 ms instead of 100 ms, with a "
         "score 20.0% worse."),
        ([result("fp16", step_s=0.05), result("fft")],
         "`fp16` took the shortest steps, 50 ms each."),
        ([result("fft")], "A step with `fft` took 100 ms."),
    ],
)  # fmt: skip
def test_a_comparison_comes_to_a_sentence(results: list[Result], sentence: str) -> None:
    assert summary(results) == sentence
    assert sentence in " ".join(shown(results).split())


def heads(results: list[Result], width: int) -> list[str]:
    return [line for line in shown(results, width).splitlines() if line.startswith("codec")]


def test_other_columns_give_way_before_names_do() -> None:
    short, long = ([result(name)] for name in ("qsgd:bits=4", "global-qsgd:dither=exponential"))
    assert len(heads(short, 100)) == len(heads(long, 120)) == 1
    main, others = heads(long, 100)
    assert main.split()[-1] == others.split()[-1] == "ms"
    assert "none" in main
    assert "loss" in others


def test_what_rounds_to_zero_has_no_sign() -> None:
    results = [result("none", score=0.9), result("fp16", score=0.900001)]
    assert "-0.00%" not in shown(results) + page(settings(), results, ORIGIN)


def test_charts_come_in_the_order_in_which_they_are_read(report: Path) -> None:
    text = report.read_text()
    places = [text.index(f'id="{plot}"') for plot in PLOTS]
    assert places == sorted(places)
    assert text.index("Accuracy against time") < text.index("Accuracy against bytes")


def test_the_page_says_what_it_comes_to_and_what_it_comes_from() -> None:
    results = race(none=0.4, qsgd=0.1)
    link = Shape.parse("50mbit,delay=20ms")
    text = page(replace(settings(), link=link), results, ORIGIN)
    assert (
        '<p class="summary"><code>qsgd</code> reached 80% accuracy 4.0 times sooner than '
        "<code>none</code> (float32): after 1.8 s instead of 7.2 s.</p>"
    ) in text
    assert "mnist-cnn on 4 workers, 50 Mbit/s, 20 ms each way</h1>" in text
    assert "<dd><code>gradwire train -c &#x27;&lt;b&gt;&#x27;</code></dd>" in text
    assert "<dt>machine</dt><dd>2 cores</dd>" in text
    assert "4.0&times; sooner" in text


def test_where_it_comes_from_is_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/bin/gradwire", "train", "-c", "two words"])
    found = about()
    assert found["command"] == "gradwire train -c 'two words'"
    assert torch.__version__ in found["versions"]
    assert re.search(r"\d cores? for all workers, \d+ GiB$", found["machine"])


def test_a_small_page() -> None:
    codecs = [f"qsgd:bits={i}" for i in range(1, 13)]
    assert len(page(settings(), [result(c, target=0.9) for c in codecs], ORIGIN)) < MOST_BYTES / 10


def test_a_codec_that_never_arrives_says_so_and_has_no_mark() -> None:
    results = [*race(none=0.4), result("fft", score=0.7, target=0.8)]
    text = page(settings(), results, ORIGIN)
    assert "never reached 80%" in text
    assert text.count('class="mark" data-series="0"') == 3
    assert 'class="mark" data-series="1"' not in text


def test_the_stages_of_a_step_add_up_to_it() -> None:
    """Compute took 50 of 100 ms; the lanes spent 10, 20 and 10 beside it and after."""
    shares = dict(zip(STAGES, stages(result("none")), strict=True))
    assert sum(shares.values()) == pytest.approx(0.1)
    assert shares == pytest.approx(
        {"compute": 0.05, "encode": 0.0125, "send": 0.025, "decode": 0.0125}
    )
    alone = replace(result("none"), encode_s=0.0, comm_s=0.0, decode_s=0.0, compute_s=0.2)
    assert stages(alone) == (0.1, 0.0, 0.0, 0.0)


def test_layers_have_their_bits_and_errors() -> None:
    text = page(settings(), [result("qsgd"), result("gradiveq")], ORIGIN)
    assert "<td>4.06 bits<small>error 2.0%</small></td>" in text
    assert "1 parameter more" in text
    bound = replace(result("gradiveq"), layers=(Layer("w", 1, 16.0, False, None),))
    assert "<td>&le; 16 bits</td>" in page(settings(), [bound], ORIGIN)
    raw = replace(result("none"), layers=(Layer("w", 1, 32.0, True, 0.0),))
    assert '<section class="panel" hidden>' in page(settings(), [raw], ORIGIN)


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (0.0, 34.6), (0.781, 0.959), (5.0, 5.1), (0.0, 1e-3), (0, 99999)]
)
def test_ticks_are_round_few_and_within(low: float, high: float) -> None:
    for found in (rounds(low, high), decades(low, high) if low else [1.0]):
        assert found == sorted(set(found))
    line = axis("", "", [low, high])
    assert 3 <= len(line.ticks()) <= 7
    for tick in line.ticks():
        assert -1e-6 <= line.place(tick) <= 1 + 1e-6


def test_places_on_an_axis() -> None:
    assert axis("", "", [10, 1000], is_log=True).place(100) == pytest.approx(0.5)
    assert axis("", "", [10, 30]).place(15) == 0.25
    assert axis("", "", [4.0]).place(4.0) == 0.5
    assert axis("", "", []).ticks()
    assert axis("", "", [3e-12, 1.0], is_log=True).ticks()[0] == 1e-11
    assert axis("", "", [2.3, 4.9], is_log=True).ticks() == [3.0, 4.0]  # no power of ten is near


class Visit:
    """What chromium makes of a page: the finished document, complaints, requests of the page."""

    def __init__(self, path: Path, scratch: Path, *more: str) -> None:
        assert CHROMIUM
        net_log = scratch / "net.json"
        flags = [
            *FLAGS,
            f"--user-data-dir={scratch / 'profile'}",
            f"--log-net-log={net_log}",
            *more,
        ]
        done = subprocess.run(
            [CHROMIUM, *flags, path.as_uri()],
            capture_output=True,
            text=True,
            timeout=240,
            check=True,
        )
        self.document = done.stdout
        self.complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        events = [event.get("params", {}) for event in json.loads(net_log.read_text())["events"]]
        self.requests = [
            event["url"]
            for event in events
            if event.get("initiator", BROWSER_ITSELF) != BROWSER_ITSELF
        ]

    @property
    def answer(self) -> Any:
        """What `asking` found out."""
        found = re.search(r'<pre id="answer">(.*?)</pre>', self.document, re.S)
        assert found, self.complaints
        return json.loads(unescape(found[1]))


ANSWER = """<script>
const answer = document.createElement("pre");
answer.id = "answer";
answer.textContent = JSON.stringify((() => {%s})());
document.body.append(answer);
</script>"""


def asking(report: Path, scratch: Path, script: str) -> Path:
    """A copy of the page that says what `script` returns."""
    copy = scratch / "asking.html"
    copy.write_text(report.read_text().replace("</body>", ANSWER % script + "</body>"))
    return copy


@needs_chromium
def test_all_charts_render_and_nothing_is_fetched(report: Path, tmp_path: Path) -> None:
    script = """return [...document.querySelectorAll("polyline")].map(line => {
      const box = line.getBoundingClientRect();
      const plot = line.closest(".plot").getBoundingClientRect();
      const isWide = box.width > 0.5 * plot.width, isHigh = box.height > 0.2 * plot.height;
      return [line.closest("figure").id, isWide, isHigh];
    })"""
    visit = Visit(asking(report, tmp_path, script), tmp_path)
    assert visit.answer == [[plot, True, True] for plot in PLOTS for _ in CODECS]
    assert visit.complaints == []
    assert visit.requests == []


@needs_chromium
def test_series_are_picked_out_hidden_and_shown_alone(report: Path, tmp_path: Path) -> None:
    script = """
      const card = document.querySelectorAll(".card")[1];
      const lines = [...document.querySelectorAll("#score-time polyline")];
      const shown = () => lines.map(line => getComputedStyle(line).display !== "none");
      const bright = () => lines.map(line => Number(getComputedStyle(line).opacity) === 1);
      const click = detail => card.dispatchEvent(new MouseEvent("click", {detail}));
      const found = [];
      card.dispatchEvent(new PointerEvent("pointerenter")); found.push(bright());
      card.dispatchEvent(new PointerEvent("pointerleave")); found.push(bright());
      click(1); found.push(shown(), card.getAttribute("aria-pressed"));
      click(1); found.push(shown(), card.getAttribute("aria-pressed"));
      click(1); click(2); found.push(shown());
      click(1); click(2); found.push(shown());
      return found;"""
    every, second = [True] * 3, [False, True, False]
    assert Visit(asking(report, tmp_path, script), tmp_path).answer == [
        second, every, [True, False, True], "false", every, "true", second, every
    ]  # fmt: skip


@needs_chromium
def test_a_point_is_read_off(report: Path, tmp_path: Path) -> None:
    """The last point of the second codec: 97.5 % after 20 steps."""
    script = """
      const plot = document.querySelector("#score-steps .plot");
      const box = plot.querySelector("svg").getBoundingClientRect();
      for (const index of [0, 2]) document.querySelectorAll(".card")[index].click();
      const point = [...plot.querySelectorAll("polyline")[1].points].at(-1);
      const clientX = box.left + point.x / 1000 * box.width;
      const clientY = box.top + point.y / 1000 * box.height;
      plot.dispatchEvent(new PointerEvent("pointermove", {clientX, clientY}));
      return plot.querySelector(".tip").textContent;"""
    answer = Visit(asking(report, tmp_path, script), tmp_path).answer
    assert answer == "qsgd:bits=4: 97.5% at 20 steps"


@needs_chromium
def test_light_and_dark_are_two(report: Path, tmp_path: Path) -> None:
    script = """
      const sum = color => color.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0);
      const style = getComputedStyle(document.body);
      return sum(style.color) - sum(style.backgroundColor);"""
    page = asking(report, tmp_path, script)
    assert Visit(page, tmp_path).answer < -400
    assert Visit(page, tmp_path, DARK).answer > 400


@needs_chromium
@pytest.mark.parametrize("width", [390, 768, 1400])
def test_the_page_fits_its_window(tmp_path: Path, width: int) -> None:
    """In a frame, since a browser's own window cannot be so narrow; text keeps its size."""
    long = "gradiveq:energy=0.8,warmup_steps=10,train_steps=30,inner=fp16"
    remark = f"{long} was still learning in 3 of 20 steps, sent raw."
    codecs = ["none", long, *(f"qsgd:bits=4,block={i}" for i in range(10))]
    results = [result(codec, target=0.9, remarks=(remark,)) for codec in codecs]
    text = page(settings(), results, {**ORIGIN, "command": "x" * 500})
    script = """
      const inside = document.querySelector("iframe").contentDocument;
      const {scrollWidth, clientWidth} = inside.documentElement;
      const words = [...inside.querySelectorAll("span, small, td, p")];
      const sizes = words.map(word => parseFloat(getComputedStyle(word).fontSize));
      return [inside.defaultView.innerWidth, scrollWidth - clientWidth, Math.min(...sizes)];"""
    look = f"border: 0; width: {width}px; height: 3000px"
    frame = f'<iframe style="{look}" srcdoc="{escape(text)}"></iframe>'
    waiting = (
        (ANSWER % script)
        .replace("<script>", "<script>onload = () => {")
        .replace("</script>", "}</script>")
    )
    (tmp_path / "frame.html").write_text(f"<body>{frame}{waiting}</body>")
    assert Visit(tmp_path / "frame.html", tmp_path).answer == [width, 0, 12]


@needs_chromium
def test_a_page_that_fetches_would_be_caught(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text('<script src="https://example.invalid/x.js"></script>')
    assert Visit(page, tmp_path).requests == ["https://example.invalid/x.js"]
