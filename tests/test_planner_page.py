"""The page of `gradwire plan --html`: its model is ours, it fetches nothing, and it can be used."""

import itertools
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradwire.cli.app import app
from gradwire.planner import advice, rates
from gradwire.planner.page import HERE, WORKERS, data, page
from gradwire.planner.predict import Model, Setting
from gradwire.planner.request import Request, network_of, works_among
from gradwire.planner.work import PLAIN, raw
from test_report import CHROMIUM, FLAGS, Outside, Visit, needs_chromium

NODE = shutil.which("node")
GRID = list(
    itertools.product(
        [1e5, 12_345_678, 1_300_000_000],
        [2, 4, 64, 1024],
        [1.25e5, 1.25e8, 1.25e10],
        [0.0, 5e-5, 0.05],
        [0.001, 0.3],
        [0.5, 4.0],
    )
)


def planned(**changes):
    numbers = {
        "params": "1.3e9", "workers": 64, "bandwidth": "10gbit", "latency": "50us",
        "compute": "300ms", "cores": None, "profile": None, "codecs": (),
    }  # fmt: skip
    return Request(**{**numbers, **changes}).planned()


def cases():
    """Settings and works, as the page gets them, and what Python says of each."""
    inputs, expected = [], []
    found = rates.rates_of(rates.CODECS)
    for params, workers, rate, latency, compute, cores in GRID:
        network = network_of(workers, rate, latency)
        setting = Setting(network, Model.of(int(params), compute), cores)
        works = [raw(PLAIN, workers, first_s=1e-10), *works_among(found, workers)[0]]
        where = {
            "params": int(params), "workers": workers, "rate": rate, "latency": latency,
            "compute": compute, "cores": cores, "cpu": network.send_cpu,
        }  # fmt: skip
        inputs.append({"where": where, "works": [work.to_json() for work in works]})
        expected.append([setting.predict(work).step_s for work in works])
    return inputs, expected


HARNESS = """
const found = CASES.map(({where, works}) => works.map((work) => predict(where, work)));
"""


def in_node(inputs, folder):
    script = folder / "run.js"
    model = (HERE / "model.js").read_text()
    body = f"const CASES = {json.dumps(inputs)};{HARNESS}console.log(JSON.stringify(found));"
    script.write_text(f"{model}\n{body}")
    done = subprocess.run([NODE, script], capture_output=True, text=True, check=True, timeout=240)
    return json.loads(done.stdout)


def in_chromium(inputs, folder):
    file = folder / "run.html"
    model = (HERE / "model.js").read_text()
    body = f"const CASES = {json.dumps(inputs)};{HARNESS}"
    put = 'document.getElementById("out").textContent = JSON.stringify(found);'
    file.write_text(f'<pre id="out"></pre><script>{model}\n{body}{put}</script>')
    document = Visit(file, folder).document
    return json.loads(unescape(re.search(r'<pre id="out">(.*?)</pre>', document, re.S)[1]))


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(
            in_node, marks=pytest.mark.skipif(NODE is None, reason="node is not installed")
        ),
        pytest.param(in_chromium, marks=needs_chromium),
    ],
)
def test_the_model_of_the_page_is_ours(engine, tmp_path):
    inputs, expected = cases()
    for case, found, ours in zip(inputs, engine(inputs, tmp_path), expected, strict=True):
        assert found == pytest.approx(ours, rel=1e-9), case["where"]


def test_nothing_in_the_page_points_outside():
    text = page(planned())
    assert Outside(text).found == []
    assert "default-src 'none'" in text
    assert "url(" not in text
    assert "@" + "MODEL@" not in text
    assert len(text) < 200_000


def test_the_page_starts_where_the_plan_is_and_knows_other_numbers_of_workers():
    found = data(planned(workers=100))
    assert found["start"]["workers"] == 100
    assert set(found["works"]) == {str(n) for n in (*WORKERS, 100)}
    assert [work["codec"] for work in found["works"]["2"]] == [PLAIN, *rates.CODECS]


def test_an_odd_name_cannot_end_the_script():
    odd = replace(planned(), machine="</script><b>odd")
    assert "</script><b>" not in page(odd)


@needs_chromium
def test_the_page_renders_and_fetches_nothing(tmp_path):
    found = planned()
    file = tmp_path / "plan.html"
    file.write_text(page(found))
    visit = Visit(file, tmp_path)
    assert visit.complaints == []
    assert visit.requests == []
    curves = re.findall(r'class="curve" points="([^"]+)"', visit.document)
    assert len(curves) == 1 + len(rates.CODECS)
    assert all("NaN" not in points for points in curves)
    assert visit.document.count('type="range"') == 5
    best = advice.choice(found.rows)
    said = re.search(r'id="advice"[^>]*>([^<]*)<', visit.document)[1]
    assert said.startswith(f"Use {best.codec} at 10 Gbit/s")


MOVE = """
<script>
const slider = document.getElementById("rate");
slider.value = slider.max;
slider.dispatchEvent(new Event("input"));
const wide = document.documentElement.scrollWidth;
document.title = `${wide}/${window.innerWidth}`;
</script></body>
"""


@needs_chromium
def test_a_slider_redraws_curves_and_recommendation_on_a_phone(tmp_path):
    """At the fastest link nothing pays any more, and nothing is wider than the screen."""
    file = tmp_path / "plan.html"
    text = page(planned(params="1e6", compute="1s"))
    file.write_text(text.replace("</body>", MOVE))
    done = subprocess.run(
        [CHROMIUM, *FLAGS, "--window-size=390,844", f"--user-data-dir={tmp_path / 'p'}",
         file.as_uri()],
        capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    said = re.search(r'id="advice"[^>]*>([^<]*)<', done.stdout)[1]
    assert said.startswith("Do not compress at 1 Tbit/s")
    wide, screen = map(int, re.search(r"<title>(\d+)/(\d+)</title>", done.stdout).groups())
    assert wide <= screen


def test_the_command_writes_the_page(tmp_path):
    file = tmp_path / "plan.html"
    done = CliRunner().invoke(
        app,
        ["plan", "--params", "1e8", "-w", "4", "--bandwidth", "1gbit", "--compute", "1s",
         "-c", "bf16", "-c", "qsgd:bits=4", "--html", str(file)],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "Page:" in done.output
    assert "qsgd:bits=4" in Path(file).read_text()
