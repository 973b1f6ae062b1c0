"""What an experiment is: settings with units, variants, files of one's own, and messages that say where a mistake is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pytcp.cli.lab import command
from pytcp.lab import units
from pytcp.lab.experiment import ExperimentError, load, names, run_variant
from pytcp.lab.runs import run_all
from pytcp.lab.units import BYTES, COUNT, RATE, TIME, Kind

DOCS = Path(__file__).parents[2] / "docs" / "experiments.md"

OWN = '''
from typing import Annotated, Literal

from pytcp.lab.experiment import Figures, experiment
from pytcp.lab.units import MS, Between, Share, SomeBytes, Time
from pytcp.lab.workloads import Bulk
from pytcp.lab.world import World

Few, Word = Annotated[int, Between(1, 8)], Literal["a", "b"]
@experiment("mine", "A question", variants={"plain": {}, "small": {"size": "20kB", "client:net.ipv4.tcp_sack": 0}})
def run(world: World, size: SomeBytes = 100_000, rtt: Time = 10 * MS, how: Word = "a", fast: bool = False, share: Share = 0.5, n: Few = 2) -> Figures:
    client, server = world.host("client"), world.host("server")
    world.wire(client, server, delay=rtt // 2)
    flow = Bulk(server, client, size)
    world.run(lambda: flow.done)
    return {"received": flow.received, "seconds": flow.seconds, "sack": client.stack.sysctl.tcp_sack, "peer_sack": server.stack.sysctl.tcp_sack}
'''


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    return path


def cli(*words: str | Path) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words])


def message(*words: str | Path, status: int = 2) -> str:
    """What a run that must fail says: with status 2 and its usage when the call is wrong, with 1 and the line when a file is."""
    result = cli("run", *words, "-j", "1")
    assert result.exit_code == status, result.output
    assert ("Usage: " in result.output) is (status == 2)
    assert "Traceback" not in result.output
    return result.output


# ---------------------------------------------------------------- units


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("40ms", TIME, 40_000_000), ("138.4ms", TIME, 138_400_000), ("1.5s", TIME, 1_500_000_000), ("0", TIME, 0), ("2min", TIME, 120_000_000_000),
        ("10MB", BYTES, 10_000_000), ("64KiB", BYTES, 65536), ("1448", BYTES, 1448), ("1e6", BYTES, 1_000_000), ("1.5kB", BYTES, 1500),
        ("25Gbit", RATE, 25_000_000_000), ("50Mbit/s", RATE, 50_000_000), ("400k", COUNT, 400_000), ("7", COUNT, 7),
    ],
)  # fmt: skip
def test_quantities(text: str, kind: Kind, value: int) -> None:
    assert units.parse(text, kind) == value
    assert units.parse(units.show(value, kind).replace(" ", ""), kind) == value


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (138_400_000, TIME, "138.4ms"), (200_000, TIME, "200us"), (0, TIME, "0"), (80_000, BYTES, "80KB"), (131_072, BYTES, "128KiB"), (1048, BYTES, "1048"),
        (60_000, COUNT, "60k"), (128, COUNT, "128"), (50_000_000, RATE, "50Mbit"), (1_234_567_891, TIME, "1234567891ns"),
    ],
)  # fmt: skip
def test_quantities_are_shown_as_short_as_they_can_be_read_back(value: int, kind: Kind, text: str) -> None:
    assert units.show(value, kind) == text
    assert units.parse(text, kind) == value


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("40", TIME, "needs a unit of time: ns, us, ms, s, min"),
        ("40mss", TIME, "unknown unit 'mss' of time in '40mss'; near: ms"),
        ("10mb", BYTES, "near: MB"),
        ("fast", RATE, "is not a rate like 25Gbit"),
        ("0.5ns", TIME, "no whole number of ns"),
        ("1e99s", TIME, "out of range"),
        ("-5ms", TIME, "is not a time like 40ms"),
    ],
)
def test_what_is_no_quantity_says_what_would_be(text: str, kind: Kind, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        units.parse(text, kind)


# ---------------------------------------------------------------- settings


def test_a_setting_of_one_host_leaves_the_other(own: Path) -> None:
    outcomes = run_all(str(own), processes=1).outcomes
    assert outcomes["plain"].figures == {**outcomes["plain"].figures, "received": 100_000, "sack": 1, "peer_sack": 1}
    assert outcomes["small"].figures == {**outcomes["small"].figures, "received": 20_000, "sack": 0, "peer_sack": 1}


def test_the_users_setting_is_the_last(own: Path) -> None:
    outcome = run_variant(str(own), "small", sets=[("size", "30kB"), ("net.ipv4.tcp_sack", "1")])
    assert (outcome.figures["received"], outcome.figures["sack"]) == (30_000, 1)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("siez=1", "mine has no setting 'siez'; near: size"),
        ("net.ipv4.tcp_sak=1", "near: net.ipv4.tcp_sack"),
        ("pytcp.autosize_at=never", "'never' is not one of xmit, sendmsg"),
        ("net.ipv4.tcp_sack=many", "net.ipv4.tcp_sack: 'many' is not a number"),
        ("rtt=40", "rtt: '40' needs a unit of time"),
        ("how=c", "how: 'c' is not one of a, b"),
        ("fast=perhaps", "fast: 'perhaps' is neither yes nor no"),
        ("cc=cubik", "no congestion control 'cubik'"),
        ("clinet:net.ipv4.tcp_sack=1", "there is no host 'clinet' for clinet:net.ipv4.tcp_sack; near: client"),
        ("rtt", "'rtt' is not KEY=VALUE"),
        ("share=half", "share: 'half' is not a number"),
        ("n=2x", "n: '2x' is not a whole number"),
        ("size=0", "size: 0 is not at least 1"),
        ("n=9", "n: 9 is not between 1 and 8"),
        ("share=1.5", "share: 1.5 is not between 0 and 1"),
        ("share=nan", "share: nan is not between 0 and 1"),
    ],
)
def test_a_wrong_setting_says_what_is_near(own: Path, setting: str, says: str) -> None:
    assert says in message(own, "--set", setting, status=1 if setting.startswith("clinet:") else 2)  # hosts are known when it has run


def test_a_setting_like_nothing_gets_the_experiments_own_and_not_every_sysctl(own: Path) -> None:
    assert "mine has no setting 'xyzzy'; there are: size, rtt, how, fast, share, n, cc, or any sysctl\n" in message(own, "--set", "xyzzy=1")
    assert "; near: net.ipv4.tcp_sack, net.ipv4.tcp_dsack\n" in message(own, "--set", "net.ipv4.tcp_sackk=1")


def test_of_dotted_names_those_are_near_whose_last_part_is() -> None:
    sysctls = ["net.ipv4.tcp_ecn", "net.ipv4.tcp_sack", "net.ipv4.tcp_mem"]
    assert units.near("net.ipv4.tcp_sackk", sysctls) == units.near("tcp_sackk", sysctls) == ["net.ipv4.tcp_sack"]
    assert units.near("net.ipv4.nothing", sysctls) == []
    assert units.near("MBIT", ["Mbit", "kbit"])[0] == "Mbit"


def test_a_disk_that_is_full_is_told_with_the_file(own: Path) -> None:
    for option in ("--pcap", "--record"):
        result = cli("run", own, "--variant", "plain", option, "/dev/full")
        assert isinstance(result.exception, OSError)
        assert (result.exception.filename, result.exception.strerror) == ("/dev/full", "No space left on device")


def test_an_unknown_name_or_variant_says_what_is_near(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no experiment 'scaling-ratoi'; near: scaling-ratio" in message("scaling-ratoi")
    assert "(a file of your own needs its path: ./mine.py)" in message("mine.txt")
    (tmp_path / "mine.sh").touch()
    monkeypatch.chdir(tmp_path)
    for path in ("mine.sh", "./mine.sh"):
        assert f"{path}: not a Python file, which an experiment of your own is\n" in message(path)
    assert "mine has no variant 'smal'; near: small" in message(own, "--variant", "smal")
    assert "there is no such file" in message("./nowhere.py")


# ---------------------------------------------------------------- a file of one's own


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("def run(", "def run((", 11, "invalid syntax"),
        ('world.host("client")', 'world.hots("client")', 12, "AttributeError: 'World' object has no attribute 'hots'"),
        ("delay=rtt // 2", "dealy=rtt // 2", 13, "TypeError"),
        ("size: SomeBytes = 100_000", "size: SomeBytes", 10, "parameter 'size' has no default"),
        ('"size": "20kB"', '"size": "20kb"', 10, "unknown unit 'kb' of size"),
        ('return {"received"', 'return 5, {"received"', 10, "which is no dict of figures"),
        ('{"received": flow.received', '{"received": flow', 10, "as figure 'received', which is no number"),
        ('"seconds": flow.seconds', '"seconds": float("nan")', 10, "returned nan as figure 'seconds', which is no number"),
        ("flow.done)", "False)", 15, "nothing more will happen, and the workload is not done"),
        ("client:net.ipv4.tcp_sack", "clint:net.ipv4.tcp_sack", 0, "there is no host 'clint'"),
    ],
)
def test_a_mistake_shows_its_own_line(own: Path, old: str, new: str, line: int, says: str) -> None:
    own.write_text(OWN.replace(old, new))
    output = message(own, status=1)
    assert says in output
    if line:
        assert f"{own}:{line}: " in output
        source = OWN.replace(old, new).splitlines()[line - 1].strip()
        assert output.rstrip().endswith(source), "the line is quoted"


def test_an_experiment_needs_no_variants(own: Path) -> None:
    own.write_text(OWN.replace(', variants={"plain": {}, "small": {"size": "20kB", "client:net.ipv4.tcp_sack": 0}}', ""))
    result = json.loads(cli("run", own, "--json", "-j", "1").stdout)
    assert result["variants"]["only"]["received"] == 100_000


def test_variants_that_a_setting_makes_equal_run_once_by_the_name_that_fits_best(own: Path) -> None:
    own.write_text(OWN.replace(', "client:net.ipv4.tcp_sack": 0', ""))
    chosen = load(str(own))
    assert chosen.distinct([]) == ["plain", "small"]
    assert chosen.distinct([("rtt", "20ms")]) == ["plain", "small"]
    assert chosen.distinct([("size", "20kB"), ("rtt", "20ms")]) == ["small"]
    assert chosen.distinct([("size", "30kB")]) == ["plain"]
    assert list(run_all(str(own), sets=[("size", "20kB")]).outcomes) == ["small"]
    assert list(run_all(str(own), ["plain", "small"], sets=[("size", "20kB")], processes=1).outcomes) == ["plain", "small"], "who names them gets them"
    said = "Of variants that do not differ with that, one ran."
    assert said in cli("run", own, "--set", "size=20kB").output
    assert said not in cli("run", own, "--set", "rtt=20ms", "-j", "1").output


def test_variants_that_differ_in_a_sysctl_of_one_host_stay_apart(own: Path) -> None:
    assert load(str(own)).distinct([("size", "20kB")]) == ["plain", "small"]
    assert load(str(own)).distinct([("size", "20kB"), ("client:net.ipv4.tcp_sack", "0")]) == ["small"]


def test_a_wire_refuses_an_mtu_that_ip_does_not_have(own: Path) -> None:
    own.write_text(OWN.replace("delay=rtt // 2", "delay=rtt // 2, mtu=3"))
    assert "an mtu of 3 bytes; IPv4 has 68 to 65535" in message(own, status=1)


def test_the_notes_of_an_experiment_are_not_said_of_other_settings(own: Path) -> None:
    own.write_text(OWN.replace('"A question", ', '"A question", differences=["The reason."], '))
    assert "\nDifferences\n- The reason." in cli("run", own, "-j", "1").output
    assert "\nDifferences (without these settings)\n- The reason." in cli("run", own, "-j", "1", "--set", "size=30kB").output


def test_a_setting_that_makes_no_sense_shows_where_it_failed(own: Path) -> None:
    own.write_text(OWN.replace("delay=rtt // 2", "delay=rtt // n // (n - 2)"))
    assert re.search(r"mine\.py:\d+: ZeroDivisionError", message(own, status=1))


@pytest.mark.parametrize("name", names())
def test_what_an_experiment_divides_by_or_waits_for_is_not_nothing(name: str) -> None:
    for parameter in load(name).parameters.values():
        if parameter.name in ("size", "requests", "connections", "transactions", "message", "mtu", "duration", "rounds"):
            with pytest.raises(ExperimentError, match=f"{parameter.name}: 0 is not "):
                parameter.parse("0")


def test_a_file_without_an_experiment_and_one_with_two(own: Path) -> None:
    own.write_text("x = 1\n")
    assert "has no experiment; put @experiment(NAME" in message(own)
    own.write_text(OWN + OWN.replace('"mine"', '"other"').replace("def run", "def run2"))
    assert f"say which: {own}:mine, {own}:other" in message(own)
    assert cli("run", f"{own}:other", "--json", "-j", "1").exit_code == 0


# ---------------------------------------------------------------- what comes out


def test_json_has_exactly_what_it_promises(own: Path) -> None:
    result = json.loads(cli("run", own, "--json", "--seed", "3", "-j", "1").stdout)
    assert set(result) == {"experiment", "seed", "profile", "variants", "published"}
    assert (result["experiment"], result["seed"]) == ("mine", 3)
    assert set(result["variants"]) == {"plain", "small"}
    assert result["published"] == {}


def test_where_a_variant_runs_does_not_show_in_its_figures(own: Path) -> None:
    assert run_all(str(own), processes=1).as_json() == run_all(str(own), processes=2).as_json()


def test_the_packets_and_the_record_of_each_variant(own: Path, tmp_path: Path) -> None:
    cli("run", own, "--pcap", tmp_path / "p.pcapng", "--record", tmp_path / "r.jsonl", "-j", "1")
    for variant in ("plain", "small"):
        assert (tmp_path / f"p-{variant}.pcapng").stat().st_size > 20_000
        head = json.loads((tmp_path / f"r-{variant}.jsonl").read_text().splitlines()[0])
        assert (head["meta"]["variant"], head["flows"]) == (variant, ["client", "server"])


def test_the_five_are_listed_with_what_may_be_set() -> None:
    assert names() == ["autocork-nodelay", "fairness", "hystart-reset", "push-barrier", "scaling-ratio", "tso-autosizing"]
    text = cli("list").stdout
    for name in names():
        chosen = load(name)
        assert f"{name}: {chosen.title}" in text
        assert all(parameter in text for parameter in chosen.parameters)


@pytest.mark.parametrize("name", names())
def test_every_experiment_has_its_packets_in_the_capture(name: str, tmp_path: Path) -> None:
    chosen = load(name)
    short = {"requests": "2000", "duration": "1s"}
    sets = [item for item in short.items() if item[0] in chosen.parameters]
    run_variant(name, next(iter(chosen.variants)), sets=sets, pcap=str(tmp_path / "p.pcapng"))
    assert (tmp_path / "p.pcapng").stat().st_size > 20_000


@pytest.mark.parametrize("name", names())
def test_an_experiment_is_a_short_file(name: str) -> None:
    text = load(name).file.read_text()
    assert 60 <= sum(bool(line.strip()) for line in text.splitlines()) <= 150


def test_a_published_figure_needs_its_variant(own: Path) -> None:
    own.write_text(OWN.replace('"A question", ', '"A question", published={"plian": {"seconds": 1}}, '))
    with pytest.raises(ExperimentError, match="figures of 'plian', which is no variant; near: plain"):
        load(str(own))


# ---------------------------------------------------------------- docs/experiments.md


def example(name: str, tmp_path: Path) -> str:
    found = re.search(rf"```python\n# {name}\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert found is not None
    (tmp_path / name).write_text(found[1])
    return str(tmp_path / name)


def test_the_sixth_experiment_of_the_page(tmp_path: Path) -> None:
    figures = {name: outcome.figures for name, outcome in run_all(example("newcomer.py", tmp_path), processes=1).outcomes.items()}
    # a queue of 300 packets at 20 Mbit/s is 180 ms; CoDel's target is 5
    assert figures["droptail"]["srtt"] > 150 > 60 > figures["codel"]["srtt"]
    assert figures["codel"]["share"] > 0.35 > figures["droptail"]["share"]


def test_the_congestion_control_of_the_page(tmp_path: Path) -> None:
    figures = {name: outcome.figures for name, outcome in run_all(example("polite.py", tmp_path), processes=1).outcomes.items()}
    # 1448 of each 1514 bytes at 20 Mbit/s are 19.1 Mbit/s
    assert all(18.5 < of["mbit"] < 19.2 for of in figures.values())
    assert figures["polite"]["srtt_ms"] < 60 < 120 < figures["cubic"]["srtt_ms"]


def test_where_a_file_cannot_be_written_is_said_before_anything_runs(own: Path) -> None:
    assert "/nowhere/x.html: there is no such folder" in message(own, "--html", "/nowhere/x.html")


def test_a_report_of_all_variants(own: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    assert cli("run", own, "--html", tmp_path / "r.html", "-j", "1").exit_code == 0
    page = (tmp_path / "r.html").read_text()
    assert "mine: A question" in page and "plain" in page and "small" in page
