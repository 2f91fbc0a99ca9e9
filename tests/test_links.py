"""The benchmark of links: its rows, file, tables and plot. Times are never tested."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import link_results as results
import links_report
from link_results import BASELINES, Link
from links_plot import draw
from links_report import MARKS

FOLDER = Path(links_report.__file__).parent
CODECS = ["none", "qsgd:bits=4", "<odd>"]


def said(what, *seconds):
    """What a worker prints: PyTorch's own variants have no handle."""
    stats_bytes = None if what in BASELINES else 12.5e6
    held = None if what in BASELINES else 7
    return {
        "what": what, "seconds": list(seconds), "wire_bytes": 12.6e6, "stats_bytes": stats_bytes,
        "buffer_bytes": held, "residual_bytes": held,
    }  # fmt: skip


def measured(rate="1gbit", workers=2, model="mlp", slower=1.0, reached=0.95e9):
    steps = zip([*BASELINES, *CODECS], [0.05, 0.4, 0.3, 0.2, 0.4, 0.125, 0.8], strict=True)
    found = [said(what, slower * step_s) for what, step_s in steps]
    return results.rows_of(Link(rate, workers, model), reached, found)


def test_rounds_are_one_row_and_ratios_are_to_plain_ddp():
    found = [said("compute alone", 0.2), said("plain DDP", 1.0, 3.0), said("none", 4.0)]
    found += [said("compute alone", 0.2), said("plain DDP", 2.0), said("none", 6.0, 5.0)]
    _, plain, none = results.rows_of(Link("1gbit", 2, "mlp"), 1e9, found)
    assert (plain.seconds, plain.step_s, plain.ratio) == ([1.0, 3.0, 2.0], 2.0, 1.0)
    assert (none.seconds, none.step_s, none.ratio) == ([4.0, 6.0, 5.0], 5.0, 2.5)


@pytest.mark.parametrize(("rate", "bps"), [("100mbit", 1e8), ("1gbit", 1e9), ("10gbit", 1e10)])
def test_the_limit_is_the_larger_of_compute_and_payload(rate, bps):
    """The payload of `handle.stats()`, or where there is none what the interface counts."""
    rows = {row.what: row for row in measured(rate)}
    assert rows["none"].limit_s == max(0.05, 12.5e6 * 8 / bps)
    assert rows["plain DDP"].limit_s == max(0.05, 12.6e6 * 8 / bps)


def test_on_loopback_only_compute_limits_and_no_interface_is_counted():
    for row in measured("loopback"):
        assert (row.limit_s, row.wire_bytes) == (0.05, None)


def test_a_file_gives_back_its_rows(tmp_path):
    rows = [*measured(), *measured("loopback")]
    results.write(tmp_path / "links.json", rows)
    assert results.read(tmp_path / "links.json") == rows
    assert [path.name for path in tmp_path.iterdir()] == ["links.json"]


def test_a_link_measured_anew_is_replaced_whole():
    two, four, anew = measured(), measured(workers=4), measured(slower=2.0)[:-1]
    assert results.merged([*two, *four], anew) == [*four, *anew]


def test_links_are_in_order():
    rows = [*measured(model="cnn"), *measured("10gbit"), *measured(workers=4), *measured()]
    assert [str(link) for link in results.links_of(rows)] == [
        "1 Gbit/s, 2 workers",
        "1 Gbit/s, 4 workers",
        "10 Gbit/s, 2 workers",
        "1 Gbit/s, 2 workers, CNN",
    ]


def test_a_rate_that_is_not_reached_is_said():
    assert results.shortfalls([*measured(reached=0.91e9), *measured("loopback", reached=1.0)]) == []
    (sentence,) = results.shortfalls(measured("10gbit", workers=4, reached=5.7e9))
    assert sentence.startswith("10 Gbit/s, 4 workers: ")
    assert "5.7 Gbit/s" in sentence


def test_the_printed_table_has_a_line_for_every_row():
    head, *lines = results.table(measured()).splitlines()
    assert len(lines) == len(BASELINES) + len(CODECS)
    assert head.endswith("MB on wire MB in stats")
    assert re.split(r"  +", lines[5]) == [
        "1 Gbit/s, 2 workers", "qsgd:bits=4", "0.125", "0.312", "80%", "12.60", "12.50"
    ]  # fmt: skip


def test_markdown_leaves_open_what_was_not_measured():
    rows = [*measured()[:-1], *measured(workers=4)]
    lines = links_report.markdown(rows).splitlines()
    assert "| link, workers | 1 Gbit/s, 2 | 1 Gbit/s, 4 |" in lines
    assert "| compute alone | 0.050 (0.125) | 0.050 (0.125) |" in lines
    assert "| `qsgd:bits=4` | 80% | 80% |" in lines
    assert "| `<odd>` | | 0.80 (2.00) |" in lines
    assert "Headers add 0.8% to 0.8%, most where messages are smallest:" in lines


def test_loopback_alone_has_no_table_of_bytes():
    assert "interface" not in links_report.markdown(measured("loopback"))


def test_a_page_is_changed_between_its_marks_and_drawn_beside(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{MARKS.begin}\nold\n{MARKS.end}\nafter\n")
    results.write(tmp_path / "links.json", measured())
    monkeypatch.setattr(
        sys, "argv", ["links_report.py", str(tmp_path / "links.json"), "--page", str(page)]
    )
    links_report.main()
    once = page.read_text()
    links_report.main()
    assert page.read_text() == once
    assert once.startswith(f"before\n{MARKS.begin}\n\n![Seconds a step")
    assert once.endswith(f"|\n\n{MARKS.end}\nafter\n")
    assert "old" not in once
    assert (tmp_path / links_report.PLOT).read_text() == draw(measured())


def test_the_page_of_the_documentation_has_the_marks():
    page = (FOLDER.parent / "docs" / "performance.md").read_text()
    assert "Seconds a step" in MARKS.replaced(page, links_report.markdown(measured()))


def test_a_page_without_marks_is_refused():
    with pytest.raises(SystemExit, match="each once"):
        MARKS.replaced("no marks", "section")


def test_the_plot_has_a_bar_and_a_limit_for_every_row():
    rows = [*measured(), *measured(workers=4), *measured("loopback", model="cnn")]
    root = ET.fromstring(draw(rows))
    bars = [e for e in root.iter() if e.get("class") in ("compute", "torch", "gradwire")]
    limits = [e for e in root.iter() if e.get("class") == "limit"]
    assert len(bars) == len(rows) + 3  # and the key
    assert len(limits) == len(rows) + 1
    words = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert words.count("<odd>") == 2  # labels once for each rate
    assert words.count("4 workers") == 1


def test_bars_of_one_rate_share_their_scale():
    root = ET.fromstring(draw([*measured(), *measured(workers=4, slower=2.0)]))
    widths = [float(e.get("width")) for e in root.iter() if e.get("class") == "gradwire"]
    none, _, odd, slow_none, _, slow_odd = widths[1:]
    assert slow_odd == max(widths)
    assert slow_none == pytest.approx(2 * none, abs=0.1)
    assert odd == pytest.approx(2 * none, abs=0.1)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["-c", "qsdg"], "Did you mean 'qsgd'"),
        (["--workers", "1"], "at least 2"),
        (["--add"], "--json"),
        (["--plot", "links.png"], "SVG"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(arguments, complaint):
    command = [sys.executable, str(FOLDER / "links.py"), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


def test_a_machine_without_the_tools_is_told_before_anything_runs(tmp_path):
    command = [sys.executable, str(FOLDER / "links.py"), "--quick"]
    code = f"""
import runpy, sys
from gradwire.lab.links import namespaces
namespaces.PLACES = {str(tmp_path)!r}
sys.argv = {command[1:]!r}
sys.path.insert(0, {str(FOLDER)!r})
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert done.stderr == (
        "Error: links need `ip` and `tc`: install iproute2 (`apt install iproute2`).\n"
    )


@pytest.mark.slow
def test_links_of_several_runs_make_one_file(tmp_path):
    """On loopback, with real workers; the other link in the file stays."""
    path = tmp_path / "links.json"
    results.write(path, [*measured(), *measured("loopback", model="cnn")])
    command = [sys.executable, str(FOLDER / "links.py"), "--rate", "loopback", "--model", "cnn"]
    command += ["--workers", "2", "-c", "qsgd:bits=4", "--steps", "3", "--json", str(path), "--add"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "[5/5] loopback, 2 workers, CNN: qsgd:bits=4 ..." in done.stderr
    rows = results.read(path)
    assert rows[:-5] == measured()
    assert [row.what for row in rows[-5:]] == [*BASELINES, "qsgd:bits=4"]
    assert rows[-1].stats_bytes < 1e6
    assert rows[-1].reached_bps > 0
