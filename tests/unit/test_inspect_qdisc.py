"""`pytcp qdisc` prints what iproute2's `tc` printed for the same facts.

Lines and JSON of pfifo and noqueue were printed by tc (iproute2 6.1.0) on a Linux 6.18 kernel (of a veth, whose refcnt is 3), and so were the
rates, sizes and times; fq's format is that of the example in tc-fq(8).
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from pytcp.cli.inspect import client, qdisc
from pytcp.cli.main import cli
from pytcp.clock.virtual import VirtualRuntime
from pytcp.link.delayed import Delayed
from pytcp.link.pipe import pipe_pair
from pytcp.link.qdisc import Fq, Htb, Pfifo
from pytcp.net import snapshot
from pytcp.net.stack import Stack


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> Stack:
    """A running stack with a pfifo, an fq, an htb, and a loopback without any."""
    runtime = VirtualRuntime()
    stack = Stack(runtime, seed=1)
    for number, (spec, mode) in enumerate([(Pfifo(100), "reaped"), (Fq(maxrate=125_000), Delayed()), (Htb(12_500), "orphan")]):
        end = pipe_pair(runtime.heap, names=(f"v{number}", "far"))[0]
        stack.add_interface(end, [f"10.0.{number}.1/24"], qdisc=spec, tx_mode=mode, ipv6=False)

    class Running:
        pid, command = 1, "python3"

        def ask(self, verb: str, what: str) -> Any:
            assert (verb, what) == ("get", "qdiscs")
            return iter(json.loads(json.dumps(snapshot.qdiscs(stack))))

    monkeypatch.setattr(client, "choose", lambda wanted: Running())
    return stack


def run(*args: str, status: int = 0) -> str:
    done = CliRunner().invoke(cli, ["qdisc", *args])
    assert done.exit_code == status, done.output
    return done.output


PFIFO = """\
qdisc pfifo 8002: root refcnt 2 limit 100p
 Sent 420 bytes 6 pkt (dropped 0, overlimits 0 requeues 0)·
 backlog 0b 0p requeues 0
""".replace("·", " ")
NOQUEUE = """\
qdisc noqueue 0: root refcnt 2·
 Sent 0 bytes 0 pkt (dropped 0, overlimits 0 requeues 0)·
 backlog 0b 0p requeues 0
""".replace("·", " ")


def test_pfifo_and_no_discipline_look_as_in_tc(stack: Stack) -> None:
    fifo = stack.interface("v0").qdisc
    assert fifo is not None
    fifo.bytes, fifo.packets = 420, 6
    assert run("-s", "show", "dev", "v0") == PFIFO
    assert run("-s", "show", "dev", "lo") == NOQUEUE
    assert run("show", "dev", "v0") == "qdisc pfifo 8002: root refcnt 2 limit 100p\n"
    assert json.loads(run("-s", "-j", "show", "dev", "v0")) == [
        {"kind": "pfifo", "handle": "8002:", "root": True, "refcnt": 2, "options": {"limit": 100}, "bytes": 420, "packets": 6, "drops": 0, "overlimits": 0,
         "requeues": 0, "backlog": 0, "qlen": 0},
    ]  # fmt: skip
    assert run("-j", "list", "dev", "lo") == '[{"kind":"noqueue","handle":"0:","root":true,"refcnt":2,"options":{}}]\n'


def test_all_interfaces_are_named_in_order(stack: Stack) -> None:
    assert [line.split()[1:5] for line in run().splitlines()] == [
        ["noqueue", "0:", "dev", "lo"], ["pfifo", "8002:", "dev", "v0"], ["fq", "8003:", "dev", "v1"], ["htb", "8004:", "dev", "v2"],
    ]  # fmt: skip


def test_fq_shows_its_settings_and_flows(stack: Stack) -> None:
    assert run("-s", "show", "dev", "v1").replace(" \n", "\n") == (
        "qdisc fq 8003: root refcnt 2 limit 10000p flow_limit 100p buckets 1024 orphan_mask 1023 quantum 3028b initial_quantum 15140b maxrate 1Mbit"
        " low_rate_threshold 550Kbit refill_delay 40ms horizon 10s horizon_drop\n"
        " Sent 0 bytes 0 pkt (dropped 0, overlimits 0 requeues 0)\n"
        " backlog 0b 0p requeues 0\n"
        "  flows 0 (inactive 0 throttled 0)\n"
        "  gc 0 highprio 0 throttled 0\n"
    )


def test_htb_shows_its_rates(stack: Stack) -> None:
    assert run("show", "dev", "v2") == "qdisc htb 8004: root refcnt 2 rate 100Kbit ceil 100Kbit burst 1600b cburst 1600b \n"


def test_details_are_the_ring(stack: Stack) -> None:
    assert run("-d", "show", "dev", "v1").splitlines()[-1] == "  ring delayed 0p of 256 unsent 0p completed 0 dropped 0 late 0 missed 0"
    [found] = json.loads(run("-d", "-j", "show", "dev", "lo"))
    assert found["ring"] == {"mode": "orphan", "limit": 1000, "held": 0, "unsent": 0, "completed": 0, "dropped": 0}


@pytest.mark.parametrize(("value", "text"), [(125_000, "1Mbit"), (154_250, "1234Kbit"), (1_250_000_000, "10Gbit"), (68_750, "550Kbit"), (1, "8bit")])
def test_rates_as_tc_prints_them(value: int, text: str) -> None:
    assert qdisc.rate(value) == text


@pytest.mark.parametrize(("value", "text"), [(10_240, "10Kb"), (4999, "4999b"), (5_242_880, "5Mb"), (3000, "3000b"), (15_140, "15140b")])
def test_sizes_as_tc_prints_them(value: int, text: str) -> None:
    assert qdisc.size(value) == text


@pytest.mark.parametrize(("value", "text"), [(50_000, "50ms"), (1500, "1.5ms"), (2_000_000, "2s"), (999, "999us")])
def test_times_as_tc_prints_them(value: int, text: str) -> None:
    assert qdisc.duration(value) == text


def test_what_is_not_there_is_an_error(stack: Stack) -> None:
    assert "Cannot find device" in run("show", "dev", "nosuch", status=1)
    assert "'v0' is not expected here: [show] [dev NAME]." in run("show", "v0", status=2)
    assert "read-only: [show] [dev NAME], no 'add'." in run("add", "dev", "v0", "root", "fq", status=2)
