"""The HTML report without a browser: its data are those of the records, its table those of the figures, and text stays text."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from pytcp.lab.experiment import Table
from pytcp.lab.named import write_whole
from pytcp.lab.record import Record
from pytcp.lab.report import Column, build, figures_table, write_html

pytest.importorskip("plotly", reason="needs pip install -e .[test]")


def page_json(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def small(variant: str = "before") -> Record:
    record = Record({"experiment": "demo", "variant": variant, "seed": 3, "settings": {"rtt": "40ms"}}, ["bulk"])
    for t, gate in ((0, "app"), (40_000_000, "cwnd")):
        record.series.append({"t_ns": t, "flow": "bulk", "cwnd": 10, "ssthresh": 0x7FFFFFFF, "srtt_us": 40_000, "gate": gate})
    for t, seq, segs, why in ((1_000_000, 0, 2, "cwnd"), (41_000_000, 2896, 1, "queue")):
        row = {"seq": seq, "end_seq": seq + segs * 1448, "segs": segs, "gso_size": 1448, "rtx": 0, "why": why}
        record.events.append({"t_ns": t, "flow": "bulk", "kind": "xmit", **row})
    return record


def test_the_page_holds_every_super_segment_with_its_reason_and_what_held_the_next() -> None:
    data = page_json(build({"before": small()}, {}, {}))
    [track] = data["tracks"]
    assert track["xmit"]["t"] == [1_000_000, 41_000_000]
    assert [data["words"][why] for why in track["xmit"]["why"]] == ["cwnd", "queue"]
    assert [[data["words"][gate], ns] for gate, ns in [track["xmit"]["held"][0][:2]]] == [["app", 39_000_000]]
    assert track["classes"] == ["cwnd", "queue"]
    assert data["unit"] == "ms"


def test_a_column_that_never_had_a_value_is_no_panel() -> None:
    [track] = page_json(build({"before": small()}, {}, {}))["tracks"]
    assert set(track["series"]) == {"t", "cwnd", "srtt_us"}


def test_variants_are_named_in_legends_and_flows_where_there_are_several() -> None:
    two = small("after")
    two.series.append({"t_ns": 40_000_001, "flow": "cross", "cwnd": 1})
    assert [track["name"] for track in page_json(build({"before": small(), "after": two}, {}, {}))["tracks"]] == ["before", "after: bulk", "after: cross"]
    assert [track["name"] for track in page_json(build({"after": two}, {}, {}))["tracks"]] == ["bulk", "cross"]


def test_figures_stand_beside_those_published_with_the_ratio() -> None:
    table = figures_table(
        {"before": {"packets": 560, "rate": 0.123456}, "after": {"packets": 224, "rate": 1.0}},
        {"before": {"packets": 565}, "after": {"packets": 216}},
        [Column("packets", "packets to IP", "{:,.0f}")],
        ("before", "after"),
    )
    rows = [re.sub(r"<[^>]+>", " ", row).split() for row in re.findall(r"<tr>(.*?)</tr>", table)]
    assert rows[1] == ["packets", "to", "IP", "565", "560", "216", "224", "0.38", "0.40"]
    assert rows[2] == ["rate", "0.1235", "1", "8.10"]
    assert figures_table({}, {}, []) == ""
    # of a variant that did not run nothing is shown, and what is not claimed says so
    table = figures_table({"a": {"x": 2}, "b": {"x": 4}}, {"a": {"x": 1}, "c": {"x": 9}}, [Column("x", "x", "{:.0f}", False)], ("a", "b"))
    assert "<th colspan=1>b</th>" in table
    assert "9" not in table
    assert "2.00 (not claimed)" in table


def test_tables_of_the_variants_stand_beside_each_other() -> None:
    tables = {name: [Table("Sizes", ("round", "segments"), [("1", "10"), ("<2>", size)])] for name, size in (("before", "5x2"), ("after", "1x10"))}
    page = build({"before": small(), "after": small("after")}, {}, {}, tables=tables)
    assert page.count("<h2>Sizes</h2>") == 1
    assert "<tr><th>&lt;2&gt;</th><td>5x2</td></tr>" in page
    assert "<tr><th>&lt;2&gt;</th><td>1x10</td></tr>" in page


def test_text_of_records_and_figures_cannot_become_markup(tmp_path: Path) -> None:
    record = small()
    record.meta["settings"] = {"name": "</script><script>alert(1)</script>"}
    record.flows[0] = "bulk"
    record.events.append({"t_ns": 41_000_001, "flow": "<b>&", "kind": "rto"})
    page = build({"<i>": record}, {"<i>": {"<u>": "</td>"}}, {}, title="a < b", notes=[("<h>", ["<p>"])])
    own = page[: page.index("<script>/**")]  # all but the library and the script
    for text in ("</script><script>alert", "<i>", "<u>", "<h>", "<title>a <"):
        assert text not in own
    assert page_json(page)["tracks"][1]["name"] == "<b>&"


def test_the_page_may_not_ask_for_anything() -> None:
    page = build({"before": small()}, {}, {})
    assert "default-src 'none'" in page
    head = page[: page.index('<script type="application/json"')]
    assert not re.findall(r'(?:src|href)="(?!data:)', head)


def test_rows_left_out_are_owned_up_to(tmp_path: Path) -> None:
    record = Record({"variant": "x"}, limit=2)
    record.events.extend({"t_ns": t, "flow": "a", "kind": "rto"} for t in range(5))
    assert "Not recorded, because a table was full: x: 3 events" in build({"x": record}, {}, {})


def test_settings_that_all_variants_share_are_written_once() -> None:
    page = build({"before": small(), "after": small("after")}, {}, {})
    assert page.count("<td colspan=2>40ms</td>") == 1
    assert "<td>before</td><td>after</td>" in page


def test_an_empty_record_still_makes_a_page() -> None:
    data = page_json(build({"x": Record({}, ["a"])}, {}, {}))
    assert data["span"] == 1
    with pytest.raises(ValueError, match="no record"):
        write_html("nowhere.html", [])


def test_without_plotly_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ImportError, match="pip install 'plotly>=6'"):
        build({"x": small()}, {}, {})


def test_a_full_disk_leaves_the_page_that_was_there_and_no_half_of_another(tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    for before in ([], [page]):
        for file in before:
            file.write_text("an earlier one")
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        try:
            with pytest.raises(OSError) as raised:
                write_html(page, [small()])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert (raised.value.errno, raised.value.filename) == (errno.EFBIG, str(page))
        assert list(tmp_path.iterdir()) == before
    assert page.read_text() == "an earlier one"


def test_a_page_may_go_where_no_file_can_be_put_in_place(tmp_path: Path) -> None:
    with pytest.raises(OSError) as raised:
        write_html("/dev/full", [small()])
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, "/dev/full")
    there = tmp_path / "there.html"
    link = tmp_path / "link.html"
    link.symlink_to(there)
    write_html(link, [small()])
    assert link.is_symlink() and there.stat().st_size > 1_000_000


def test_a_page_opens_with_the_flows_that_sent_most_in_all_variants_and_no_more_than_is_legible() -> None:
    def run(sent: dict[str, int]) -> Record:
        record = Record({}, list(sent))
        for t, (flow, segs) in enumerate(sent.items()):
            record.events.append({"t_ns": t, "flow": flow, "kind": "xmit", "seq": 0, "end_seq": segs * 1000, "segs": segs, "rtx": 0, "why": "queue"})
        return record

    sent = {"client": 1, "bulk": 100, "idle": 0, **{f"client {number}": 1 for number in range(2, 40)}}
    data = page_json(build({"before": run(sent), "after": run(sent)}, {}, {}))
    assert data["shown"] == {"variants": ["before", "after"], "flows": ["client", "bulk"]}
    assert data["flows"][-1] == "idle"  # who sends comes first
    alone = page_json(build({"only": run({"receiver": 0})}, {}, {}))
    assert alone["shown"]["flows"] == ["receiver"]


def test_a_report_that_is_written_again_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    path.chmod(0o600)
    write_whole(path, "new")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o600)
    assert os.listdir(tmp_path) == ["report.html"]
