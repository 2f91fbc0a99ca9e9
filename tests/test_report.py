"""The report is one file: it renders with no network, and asks for none."""

import io
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from gradwire.lab.records import Point, Result, Settings
from gradwire.lab.report import color, page, write_report
from gradwire.lab.table import Comparison, behind, score, score_title

CODECS = ("none", "qsgd:bits=4", "<b>odd</b>")
PLOTS = ("loss-steps", "loss-bytes", "loss-time")
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
BROWSER_ITSELF = "not an origin"  # the initiator of requests that no page made

pytest.importorskip("plotly")


def settings(codecs: tuple[str, ...] = CODECS) -> Settings:
    return Settings("mnist-cnn", codecs, 4, 20, 32, 0.05, 0, 1, None)


def result(
    codec: str,
    ratio: float | None = 0.25,
    loss: float = 0.5,
    score: float = 0.975,
    score_name: str = "accuracy",
    remarks: tuple[str, ...] = (),
) -> Result:
    curve = tuple(Point(i, loss / i, 1000 * i, 0.1 * i) for i in range(1, 21))
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
        step_s=0.1,
        compute_s=0.05,
        encode_s=0.01,
        comm_s=0.02,
        decode_s=0.01,
        steps=20,
        workers=4,
        seed=0,
        parameters=1234,
        link=None,
        curve=curve,
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
    assert len({color(i) for i in range(40)}) == 40


def test_runs_that_diverged_or_sent_nothing_have_a_report_too() -> None:
    text = page(settings(("none",)), [result("none", ratio=None, loss=float("nan"))])
    runs = re.search(r'id="runs">(.*?)</script>', text, re.S)
    assert runs
    assert json.loads(runs[1])[0]["curve"][0]["loss"] is None


def test_a_score_that_is_a_loss_may_diverge_too() -> None:
    diverged = result("fp16", score=float("nan"), score_name="bits_per_character")
    results = [result("none", score_name="bits_per_character"), diverged]
    assert diverged.to_json()["bits_per_character"] is None
    assert "nan" in shown(results)
    assert "nan% better" not in page(settings(("none", "fp16")), results)


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
    report = page(settings(), results)
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
    assert (score_title(bits), score(bits)) == ("test bits per character", "2.3457")
    assert score(result("none")) == "97.50%"
    assert "test bits/character" in page(settings(("none",)), [bits])


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
    *tables, _ = text.split("\n\n")
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
    report = page(settings(), results)
    for remark in remarks:
        assert text.count(remark) == 1
    assert '<p class="remark">ndqsg sent its plain code 38 times.</p>' in report
    assert "&lt;b&gt;odd&lt;/b&gt; was <code>learning</code>." in report
    assert results[1].to_json()["remarks"] == remarks
    assert 'class="remark"' not in page(settings(), [result("none")])


def test_one_worker_is_not_workers() -> None:
    alone = Settings("mnist-cnn", ("none",), 1, 1, 1, 0.05, 0, 1, None)
    report = page(alone, [result("none")])
    assert "mnist-cnn on 1 worker<" in report
    assert "<b>1</b> step<" in report
    assert "<b>1</b> example a worker" in report


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
    assert "-0.00%" not in shown(results) + page(settings(), results)


class Visit:
    """What chromium makes of a page: the finished document, complaints, requests of the page."""

    def __init__(self, path: Path, scratch: Path) -> None:
        assert CHROMIUM
        net_log = scratch / "net.json"
        flags = [*FLAGS, f"--user-data-dir={scratch / 'profile'}", f"--log-net-log={net_log}"]
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


@needs_chromium
def test_three_plots_render_and_nothing_is_fetched(report: Path, tmp_path: Path) -> None:
    visit = Visit(report, tmp_path)
    for plot in PLOTS:
        drawn = visit.document.split(f'id="{plot}"')[1].split('<div class="panel">')[0]
        assert "main-svg" in drawn
        assert len(re.findall(r'class="trace scatter', drawn)) == 2 * len(CODECS)
    assert visit.complaints == []
    assert visit.requests == []


@needs_chromium
def test_a_page_that_fetches_would_be_caught(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text('<script src="https://example.invalid/x.js"></script>')
    assert Visit(page, tmp_path).requests == ["https://example.invalid/x.js"]
