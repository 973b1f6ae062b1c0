"""The HTML report in a real browser: it draws every point, asks for nothing, and answers a pointer.

Chromium without a head, driven by Selenium. Skipped where there is no browser; PYTCP_REQUIRE_BROWSER=1 makes that a failure.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("selenium", reason="needs pip install -e .[test]")
pytest.importorskip("plotly", reason="needs pip install -e .[test]")

from click.testing import CliRunner
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from pytcp.cli.main import cli
from pytcp.lab.experiment import load
from pytcp.lab.record import Record
from pytcp.lab.report import write_html
from tests.sim.recorded import bulk

MS = 1_000_000
MSS = 1448


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        reason = "no chromium with chromedriver (apt-get install chromium chromium-driver)"
        if os.environ.get("PYTCP_REQUIRE_BROWSER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    options = Options()
    options.binary_location = chromium
    for argument in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1400,1000", "--hide-scrollbars"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    session = webdriver.Chrome(options=options, service=Service(driver))
    yield session
    session.quit()


class Page:
    """A report that is open in the browser."""

    def __init__(self, browser: Any, path: Path) -> None:
        self.browser = browser
        browser.get_log("browser")
        browser.get_log("performance")
        browser.get(path.as_uri())
        WebDriverWait(browser, 60).until(lambda _: self.script("return document.documentElement.dataset.ready"))

    def script(self, code: str, *arguments: Any) -> Any:
        return self.browser.execute_script(code, *arguments)

    def requests(self) -> list[str]:
        """Addresses asked for since the page was opened."""
        messages = [json.loads(entry["message"])["message"] for entry in self.browser.get_log("performance")]
        return [message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"]

    def complaints(self) -> list[str]:
        """What the console says."""
        return [entry["message"] for entry in self.browser.get_log("browser")]

    def traces(self, **meta: str) -> list[dict[str, Any]]:
        """Traces whose meta has these values: x, y, base, hovertext, name."""
        code = """
            return document.getElementById("chart").data.filter(t => t.meta && Object.entries(arguments[0]).every(([k, v]) => t.meta[k] === v))
              .map(t => ({ name: t.name, x: t.x, y: t.y, base: t.base, hovertext: t.hovertext, meta: t.meta }));"""
        found: list[dict[str, Any]] = self.script(code, meta)
        return found

    def segments(self) -> list[tuple[float, float, float, str]]:
        """Bars of the time–sequence graph: time, lowest and highest sequence number, what a pointer would be told."""
        return sorted(
            (x, base, base + y, text)
            for trace in self.traces(panel="sequence")
            if "why" in trace["meta"]
            for x, y, base, text in zip(trace["x"], trace["y"], trace["base"], trace["hovertext"], strict=True)
        )

    def zoom(self, low: float, high: float) -> None:
        self.script("return Plotly.relayout('chart', {'xaxis.range[0]': arguments[0], 'xaxis.range[1]': arguments[1]})", low, high)
        WebDriverWait(self.browser, 20).until(lambda _: self.script("return document.getElementById('chart').layout.xaxis.range")[0] == low)

    def point_at(self, x: float, y: float) -> str:
        """Move the pointer there in the first panel; what pops up."""
        code = """
            const chart = document.getElementById("chart");
            chart.scrollIntoView();
            const box = chart.getBoundingClientRect(), x = chart._fullLayout.xaxis, y = chart._fullLayout.yaxis;
            return [box.left + x._offset + x.l2p(arguments[0]), box.top + y._offset + y.l2p(arguments[1])];"""
        left, top = self.script(code, x, y)
        for nudge in (1, 0):
            self.browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": left + nudge, "y": top})
            time.sleep(0.1)
        WebDriverWait(self.browser, 10).until(lambda _: self.browser.find_elements(By.CSS_SELECTOR, "#chart .hovertext"))
        return str(self.script("return [...document.querySelectorAll('#chart .hovertext')].map(one => one.textContent).join('\\n')"))


def known() -> Record:
    """Four super-segments, a retransmit among them, with a SACK, an edge, gates and a mark."""
    record = Record({"experiment": "known", "variant": "only", "seed": 1}, ["bulk"])

    def xmit(t_ms: int, first: int, segs: int, why: str, rtx: int = 0) -> None:
        row = {"seq": first * MSS, "end_seq": (first + segs) * MSS, "segs": segs, "gso_size": MSS, "flags": ".", "rtx": rtx, "why": why}
        record.events.append({"t_ns": t_ms * MS, "flow": "bulk", "kind": "xmit", **row, "quota": 10, "max_segs": 7, "cwnd": 20, "inflight": 10})

    def other(t_ms: int, kind: str, **fields: Any) -> None:
        record.events.append({"t_ns": t_ms * MS, "flow": "bulk", "kind": kind, **fields})

    other(0, "gate", old="app", new="cwnd")
    xmit(10, 0, 7, "autosize")
    other(10, "gate", old="cwnd", new="pacing")
    xmit(30, 7, 3, "cwnd")
    other(40, "ca_state", old="Open", new="Recovery")
    other(40, "ack", una=0, sacks=[[7 * MSS, 10 * MSS]], wnd=40 * MSS)
    other(50, "lost", seq=0, end_seq=MSS, segs=1, why="rack", again=0)
    xmit(50, 0, 1, "again", rtx=1)
    other(50, "retransmit", seq=0, end_seq=MSS, segs=1, cause="lost")
    other(60, "ack", una=10 * MSS, sacks=[], wnd=30 * MSS)
    xmit(70, 10, 2, "queue")
    for t_ms in range(0, 100, 10):
        record.series.append({"t_ns": t_ms * MS, "flow": "bulk", "cwnd": 20 - t_ms // 10, "ssthresh": 10})
        record.queues.append({"t_ns": t_ms * MS, "queue": "bottleneck", "packets": 3, "bytes": 3 * 1500, "drops": int(t_ms >= 20), "marks": 0})
    return record


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "known.html"
    write_html(path, [known()], {"only": {"packets": 4}}, {"only": {"packets": 5}})
    return path


@pytest.fixture
def page(browser: Any, report: Path) -> Page:
    """The report of `known`, showing everything."""
    page = Page(browser, report) if browser.current_url != report.as_uri() else Page.__new__(Page)
    page.browser = browser
    browser.find_element(By.TAG_NAME, "body").send_keys("0")
    return page


def test_every_super_segment_is_a_bar_from_its_first_to_its_last_byte(page: Page) -> None:
    tall = page.script("const y = document.getElementById('chart')._fullLayout.yaxis; return (y.range[1] - y.range[0]) / y._length")
    bars = page.segments()
    sizes = ["7 segments, 10,136 bytes", "3 segments, 4,344 bytes", "1 segment, 1,448 bytes", "2 segments, 2,896 bytes"]
    assert [x for x, *_ in bars] == [10, 30, 50, 70]
    assert [text.removeprefix("<b>").split("</b>")[0] for *_, text in bars] == sizes
    for (_, low, high, _), (first, last) in zip(bars, ((0, 7), (7, 10), (0, 1), (10, 12)), strict=True):
        assert abs(low - first * MSS) <= 3 * tall
        assert abs(high - last * MSS) <= 3 * tall


def test_sack_acknowledgement_edge_gates_marks_and_series_are_drawn(page: Page) -> None:
    [sack] = page.traces(line="SACK")
    assert (sack["x"], sack["base"], sack["y"]) == ([40], [7 * MSS], [3 * MSS])
    [acks] = page.traces(panel="sequence", line="ACK")
    assert (acks["x"], acks["y"]) == ([40, 60], [0, 10 * MSS])
    assert page.traces(panel="sequence", line="window edge")[0]["y"] == [40 * MSS]  # it did not move
    assert {trace["meta"]["gate"]: (trace["base"], trace["x"]) for trace in page.traces(panel="gates")} == {"cwnd": ([0], [10]), "pacing": ([10], [80])}
    [lost] = page.traces(panel="sequence", line="lost")
    assert (lost["x"], lost["y"]) == ([50], [MSS / 2])
    [mark] = page.traces(panel="events", kind="ca_state")
    assert mark["x"] == [40]
    [cwnd] = page.traces(panel="cwnd", line="cwnd")
    assert cwnd["y"] == list(range(20, 10, -1))
    [drops] = page.traces(panel="queue bottleneck", line="dropped")
    assert drops["x"] == [20]


def test_pointing_at_a_super_segment_tells_why_it_had_its_size_and_what_held_the_next(page: Page) -> None:
    told = page.point_at(10, 3.5 * MSS)
    assert "7 segments, 10,136 bytes" in told
    assert "this size: autosize" in told
    assert "cwnd 20 · in flight 10 · quota 10 · max segs 7" in told
    assert "next one held back (20 ms)" in told
    assert "pacing 20 ms" in told
    again = page.point_at(50, 0.5 * MSS)
    assert "retransmit" in again
    assert "sent again because of: lost" in again


def test_it_asked_for_nothing_and_the_console_is_silent(browser: Any, report: Path) -> None:
    page = Page(browser, report)
    page.script("document.getElementById('theme').click()")
    page.script("document.getElementById('theme').click()")
    addresses = page.requests()
    assert len([address for address in addresses if address.startswith("file:")]) == 1  # the page itself
    assert [address for address in addresses if not address.startswith(("file:", "data:", "blob:"))] == []
    assert page.complaints() == []


def test_figures_stand_beside_those_published(page: Page) -> None:
    cells = page.script("return [...document.querySelectorAll('tbody tr')][0].innerText")
    assert cells.split() == ["packets", "5", "4"]


def test_dark_and_light_differ_and_both_have_contrast(page: Page) -> None:
    seen = {}
    for _ in range(2):
        page.script("document.getElementById('theme').click()")
        style = page.script("const s = getComputedStyle(document.body); return [document.documentElement.dataset.theme, s.color, s.backgroundColor]")
        text = page.script("return document.getElementById('chart').layout.font.color")
        ink, ground = (sum(map(int, colour[4:-1].split(","))) / 3 for colour in style[1:])
        assert abs(ink - ground) > 150
        seen[style[0]] = text
    assert set(seen) == {"dark", "light"}
    assert seen["dark"] != seen["light"]


def long() -> Record:
    record = Record({"variant": "long"}, ["bulk"])
    for number in range(100_000):
        row = {"seq": number * 2 * MSS, "end_seq": (number + 1) * 2 * MSS, "segs": 2, "rtx": int(number == 77_777), "why": "cwnd" if number % 2 else "autosize"}
        record.events.append({"t_ns": number * 10_000, "flow": "bulk", "kind": "xmit", **row})
    record.series.extend({"t_ns": number * 100_000, "flow": "bulk", "cwnd": 100 if number == 5_432 else 10} for number in range(10_000))
    return record


def test_a_run_of_a_hundred_thousand_super_segments_stays_usable_and_says_what_it_merged(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "long.html"
    write_html(path, [long()])
    page = Page(browser, path)
    assert page.script("return document.getElementById('data').type") == "application/zlib"
    bars = page.segments()
    assert len(bars) < 10_000
    said = page.script("return document.getElementById('drawn').textContent")
    assert said.startswith(f"100,000 super-segments in view, drawn as {len(bars):,} bars")
    # nothing that is seen got lost: the retransmit, the peak, both ends
    assert sum("retransmit" in text for _, _, _, text in bars) == 1
    [cwnd] = page.traces(panel="cwnd", line="cwnd")
    assert max(cwnd["y"]) == 100
    assert min(low for _, low, _, _ in bars) <= 0
    assert max(high for _, _, high, _ in bars) >= 200_000 * MSS
    # in a stretch of 2 ms there are 200 of them, one every 10 us, and the retransmit among them keeps its own reason
    page.zoom(777, 779)
    inside = [text for x, _, _, text in page.segments() if 777 <= x <= 779]
    assert len(inside) == 201
    assert [text.split("<br>")[0] for text in inside if "retransmit" in text] == ["<b>2 segments, 2,896 bytes</b> at 777.770 ms · <b>retransmit</b>"]
    assert "each drawn" in page.script("return document.getElementById('drawn').textContent")
    # and back again
    browser.find_element(By.TAG_NAME, "body").send_keys("0")
    WebDriverWait(browser, 20).until(lambda _: len(page.segments()) == len(bars))
    assert page.complaints() == []


def test_a_browser_that_cannot_unpack_a_long_run_says_which_can(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "long.html"
    write_html(path, [long()])
    old = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": "delete window.DecompressionStream"})
    try:
        browser.get(path.as_uri())
        assert browser.find_element(By.ID, "chart").text == "This browser cannot unpack so long a run: that takes Chrome 80, Firefox 113 or Safari 16.4."
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", old)


def test_keys_move_and_zoom_the_view(page: Page) -> None:
    page.zoom(20, 40)
    body = page.browser.find_element(By.TAG_NAME, "body")

    def view(keys: str) -> list[float]:
        body.send_keys(keys)
        time.sleep(0.2)
        found: list[float] = page.script("return document.getElementById('chart').layout.xaxis.range")
        return found

    assert view(Keys.ARROW_RIGHT) == [25, 45]
    assert view("+") == [30, 40]
    assert view("-") == [27.5, 42.5]
    assert view("0")[1] > 90


def test_variants_of_a_real_run_are_compared_on_one_time_axis(browser: Any, tmp_path: Path) -> None:
    records = {name: bulk(name, 400_000) for name in ("cubic", "reno")}
    path = tmp_path / "two.html"
    write_html(path, records)
    page = Page(browser, path)
    for name, record in records.items():
        drawn = sum(len(trace["x"]) for trace in page.traces(panel="sequence", track=name) if "why" in trace["meta"])
        assert drawn == sum(1 for _ in record.happened("xmit")) > 20
    assert {trace["meta"]["track"] for trace in page.traces(panel="queue bottleneck")} == {"cubic bottleneck", "reno bottleneck"}
    # one click leaves one of them
    page.script("document.querySelector('#variants button').click()")
    assert page.traces(panel="sequence", track="cubic") == []
    assert page.traces(panel="sequence", track="reno")
    assert {trace["meta"]["track"] for trace in page.traces(panel="queue bottleneck")} == {"reno bottleneck"}
    assert page.complaints() == []


def test_the_report_of_an_experiment_opens_with_its_senders_and_its_figures(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "scaling.html"
    words = ["lab", "run", "scaling-ratio", "--set", "size=200kB", "--set", "rtt=20ms", "--variant", "65-never", "--variant", "128-never", "--html", str(path)]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    page = Page(browser, path)
    assert {trace["meta"]["track"] for trace in page.traces(panel="sequence")} == {"65-never: server", "128-never: server"}
    seconds = page.script("return [...document.querySelectorAll('tbody tr')][0].innerText").split("\t")
    assert seconds[0] == load("scaling-ratio").figures[0].label
    assert [float(seconds[place]) for place in (1, 3)] == [40, 22]  # published
    # the window that was offered bounds what is sent: half of it with half of the share
    widest = [max(page.traces(panel="windows", track=f"{name}: server", line=name)[0]["y"]) for name in ("65-never", "128-never")]
    assert widest[0] == pytest.approx(widest[1] / 2, rel=0.02)
    assert page.complaints() == []


def test_in_print_the_chart_is_light_and_fits_one_page(page: Page) -> None:
    page.script("document.documentElement.dataset.theme === 'light' && document.getElementById('theme').click()")
    page.script("dispatchEvent(new Event('beforeprint'))")
    try:
        assert page.script("return document.documentElement.dataset.theme") == "light"
        size = page.script("const l = document.getElementById('chart')._fullLayout; return [l.width, l.height]")
        assert size[0] <= 1040
        assert size[1] <= 690
        assert page.script("return document.querySelector('details').open")
    finally:
        page.script("dispatchEvent(new Event('afterprint'))")
    assert page.script("return document.documentElement.dataset.theme") == "dark"
