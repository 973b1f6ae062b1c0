"""What Linux 6.18 did with its sockets, a whole stack does: conversations with a scripted peer, replayed.

Recordings under tests/data/sockets (and those of tests/data/receive and receive_t that begin with a handshake):
readiness and every call in every state, closing, keepalive, user timeouts, retries, SYN retries, ICMP
errors, path MTU, IPv6, deferred accept, SYN cookies, ECN, socket options.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from pytcp.tcp import api
from pytcp.tcp.sock import Sock

from . import script_calls as calls
from .conversation import DATA, Replay, load, replay

FILES: dict[str, Path] = {path.stem: path for path in sorted(DATA.glob("*.json"))}
for folder in ("receive", "receive_t"):
    FILES |= {path.stem: path for path in sorted((DATA.parent / folder).glob("*.json")) if re.match(r"[degikmnpqrtwxz]\d|s04|s05|drs|gso|f_", path.stem)}
OPTION_TABLES = [name for name in FILES if name.startswith("o0") and "inherit" not in name]
# options of features that do not exist here, and those whose value is of the moment
NO_OPTION = {"TCP_REPAIR", "TCP_ZEROCOPY_RECEIVE"}
MOMENTARY = {"TCP_TIMESTAMP", "TCP_INFO"}

# recordings of features that do not exist here; their data are not kept
NOT_YET: dict[str, str] = {
    "b05 b07": "bursts of MTU probing that differ between the kernel's own runs (tests/unit/test_mtu_probe.py has what does not)",
    "t09": "the second key of the script was not written down (see tests/unit/test_fastopen.py)",
    "e06 e07 e09": "AccECN is not built",
    "f12": "there are no time stamps of what is received",
}


@pytest.mark.parametrize("name", [name for name in FILES if not name.startswith("o0")])
def test_the_stack_does_what_linux_did(name: str) -> None:
    found = replay(load(FILES[name]))
    assert not found, "\n".join(found[:5])


@pytest.mark.parametrize(("names", "reason"), NOT_YET.items())
def test_recordings_of_missing_features_are_not_kept(names: str, reason: str) -> None:
    assert not [path.stem for path in DATA.glob("*.json") if path.stem.split("_")[0] in names.split()], reason


# ---------------------------------------------------------------- socket options


def opened(family: int, state: str, listener_calls: list[str]) -> tuple[Replay, Sock, Sock]:
    """A socket in the state an option table was measured in: (what keeps its stack, the socket, its listener)."""
    handshake: list[dict[str, Any]] = [{"t": 0.001, "app": "listen(5)"}]
    if state == "established":
        opts = {"mss": 1460, "sackok": 1, "ws": 7, "order": ["mss", "sackok", "nop", "nop", "nop", "ws"]}
        handshake += [
            {"t": 0.002, "peer": {"flags": "S", "seq": 0, "len": 0, "win": 65535, "opts": opts}},
            {"t": 0.004, "peer": {"flags": ".", "seq": 1, "len": 0, "ack": 1, "win": 65408}},
            {"t": 0.005, "app": "accept()"},
        ]
    run = Replay({"name": "options", "setup": {"ip": family}, "steps": [] if state == "closed" else handshake})
    conn = run.conn({"t": 0.0})
    conn.before_listen += listener_calls
    run.run()
    sk = run.socket(conn)
    return run, sk, conn.listener or sk


def attempt(sk: Sock, option: str, value: int | bytes) -> str:
    try:
        api.setsockopt(sk, *calls.option_key(option, sk.family), value)
    except OSError as error:
        return calls.error_name(error.errno or 0)
    return "ok"


def reading(sk: Sock, option: str, length: int = 0) -> Any:
    try:
        return api.getsockopt(sk, *calls.option_key(option, sk.family), length)
    except OSError as error:
        return calls.error_name(error.errno or 0)


@pytest.mark.parametrize("name", OPTION_TABLES)
@pytest.mark.parametrize("state", ["closed", "listening", "established"])
def test_options_take_and_give_what_linux_does(name: str, state: str) -> None:
    case = load(FILES[name])
    wrong: list[tuple[Any, ...]] = []
    for row in case["rows"]:
        option = row["option"]
        if row["state"] != state or option in NO_OPTION | MOMENTARY:
            continue
        _run, sk, _ = opened(case["setup"]["ip"], state, [])
        first = reading(sk, option)
        if row["default"] not in (first, "varies") and not isinstance(row["default"], list):
            wrong.append((option, "default", row["default"], first))
        for text, want in row["set"].items():
            value = int(text)
            got: Any = attempt(sk, option, value)
            if got == "ok":
                got = reading(sk, option)
                got = "same" if got == value else got
            if got != want:
                wrong.append((option, value, want, got))
        for length in (1, 2):
            got = reading(sk, option, length)
            got = len(got) if isinstance(got, bytes) else got
            if got != row[f"getlen{length}"]:
                wrong.append((option, f"read into {length}", row[f"getlen{length}"], got))
        _run, sk, _ = opened(case["setup"]["ip"], state, [])
        if (attempt(sk, option, b"\2"), attempt(sk, option, pack("=ii", 2, 0))) != (row["len1"], row["len8"]):
            wrong.append((option, "1 byte, 8 bytes", (row["len1"], row["len8"]), (attempt(sk, option, b"\2"), attempt(sk, option, pack("=ii", 2, 0)))))
    assert not wrong


def test_an_accepted_connection_has_the_listeners_options() -> None:
    rows = [row for row in load(FILES["o06_inherit"])["rows"] if row["option"] not in NO_OPTION]
    for row in rows:
        option = row["option"]
        _run, child, listener = opened(4, "established", [f"setsockopt({option},{row['set']})"])
        assert (option, reading(child, option)) == (option, row["child"])
        # the recording read the listener before listen(), which forgets this one
        assert reading(listener, option) == row["listener"] or option == "TCP_QUICKACK"
    assert len(rows) > 30


# ---------------------------------------------------------------- the replayer itself


def altered(name: str, kind: str, change: Any) -> dict[str, Any]:
    """A recording in which the last step of a kind is told differently."""
    case: dict[str, Any] = json.loads(FILES[name].read_text())
    step = next(step for step in reversed(case["steps"]) if kind in step)
    change(step)
    return {"name": name} | case


@pytest.mark.parametrize(
    ("name", "kind", "change"),
    [
        ("c17_half_close_peer", "kernel", lambda step: step["kernel"].update(win=step["kernel"]["win"] + 1024)),
        ("c17_half_close_peer", "kernel", lambda step: step["kernel"].update(ack=step["kernel"]["ack"] + 1)),
        ("c17_half_close_peer", "kernel", lambda step: step["kernel"].update(flags="R.")),
        ("k01_keepalive_silent", "kernel", lambda step: step.update(t=step["t"] - 0.3)),
        ("f21_nodelay_cork_push", "kernel", lambda step: step["kernel"].update(len=step["kernel"]["len"] + 1)),
        ("v01_syn_v6", "kernel", lambda step: step["kernel"].update(flow=step["kernel"]["flow"] + 1)),
        ("c29_tw_reuse_ts1_reuse1_delay1000_after300", "kernel", lambda step: step["kernel"].update(ts=[step["kernel"]["ts"][0], 1])),
        ("m01_fragneeded_68", "kernel", lambda step: step["kernel"].update(df=1)),
        ("p_estab", "table", lambda step: step.update(table="CLOSE_WAIT")),
        ("p_urgent", "app", lambda step: step.update(ret="EIO")),
        ("m16_other_connection_no_ack", "info", lambda step: step["info"].update(unacked=2)),
        ("c25_fin_wait2_timeout_2", "table", lambda step: step.update(t=step["t"] + 1)),
    ],
)
def test_a_recording_that_says_something_else_is_not_matched(name: str, kind: str, change: Any) -> None:
    assert replay(altered(name, kind, change))


def test_a_segment_the_kernel_did_not_send_is_noticed() -> None:
    case = json.loads(FILES["c17_half_close_peer"].read_text())
    last = max(i for i, step in enumerate(case["steps"]) if "kernel" in step)
    del case["steps"][last]
    assert any("does not send" in line or "gives" in line for line in replay({"name": "c17_half_close_peer"} | case))
