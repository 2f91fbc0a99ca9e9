"""The check of the planner: what it calls right, and that it goes on where it stopped."""

import pytest

import plan_check
from link_results import Link, write
from plan_verdict import MARKS, Checked, markdown, percentile, table, verdict
from test_links import measured

LINK = Link("1gbit", 2, "mlp")


def row(error, pays=True, said=True):
    return Checked(LINK, "qsgd:bits=4", 1.0, 1.0 + error, 2.0, pays, said)


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([row(0.0)] * 20, 0),
        ([row(0.06), row(-0.06)] * 10, 0),
        ([row(0.08), row(-0.08)] * 10, 1),  # the median
        ([row(0.0)] * 17 + [row(-0.2)] * 3, 1),  # the 90th percentile
        ([row(0.0)] * 19 + [row(0.5)], 0),
        ([row(0.0)] * 18 + [row(0.0, pays=True, said=False)] * 2, 1),
        ([row(0.0)] * 19 + [row(0.0, pays=True, said=False)], 0),
        ([row(0.0, pays=None, said=None)] * 3, 0),
    ],
)
def test_what_is_right_enough(rows, code, capsys):
    assert verdict(rows) == code
    assert f"{len(rows)} rows" in capsys.readouterr().out


def test_the_table_has_a_line_for_every_row_and_says_what_is_wrong():
    lines = table([row(0.1), row(-0.5, pays=True, said=False)]).splitlines()
    assert len(lines) == 3
    assert "+10%" in lines[1]
    assert lines[2].endswith("wrong: pays or not")


def test_a_page_gets_the_table_between_its_marks():
    text = MARKS.replaced(f"before\n{MARKS.begin}\nold\n{MARKS.end}\nafter\n", markdown([row(0.1)]))
    assert "old" not in text
    assert "| qsgd:bits=4 | 1.000, 1.100 (+10%) |" in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    with pytest.raises(SystemExit, match="each once"):
        MARKS.replaced("no marks", "")


def test_a_percentile_is_one_of_the_values():
    assert percentile(list(range(1, 11)), 0.9) == 9
    assert percentile([5.0], 0.9) == 5.0


def test_links_that_were_measured_are_not_measured_again(tmp_path, monkeypatch):
    _, rows = plan_check.files(tmp_path, LINK)
    write(rows, measured())
    asked = []

    def pretend(link, variants, arguments, progress):
        asked.append(link)
        return measured(workers=link.workers)

    monkeypatch.setattr(plan_check, "prepare_links", lambda rates: None)
    monkeypatch.setattr(plan_check.link_run, "measure", pretend)
    monkeypatch.setattr("sys.argv", ["plan_check.py", "--out", str(tmp_path), "--rate", "1gbit",
                                     "--model", "mlp"])  # fmt: skip
    for name in ("FILE", "CODECS", "SECONDS"):
        monkeypatch.setenv(getattr(plan_check.plan_worker, name), "")
    plan_check.measure(plan_check.parse_arguments())
    assert asked == [Link("1gbit", 4, "mlp")]
    plan_check.measure(plan_check.parse_arguments())
    assert len(asked) == 1
