"""From a file and settings to a verdict: what the command, the pytest plugin and tests call."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from ipaddress import ip_address
from pathlib import Path

from pytcp.tcp.profiles import DEFAULT as DEFAULT_PROFILE

from .errors import DrillError, ScriptError, Where, shortened
from .packets import Addresses
from .parser import parse
from .report import printable
from .runner import Runner
from .script import Script
from .target import IP_MODES, Setup, Target

TARGETS = ("pytcp", "kernel")
VERDICTS = ("pass", "fail", "unsupported", "error", "skipped")

_V4 = {"local": "192.168.0.1", "gateway": "192.168.0.2", "remote": "192.0.2.1", "prefix": "16"}
_V6 = {"local": "fd3d:fa7b:d17d::1", "gateway": "fd3d:fa7b:d17d:8888::", "remote": "2001:db8::1", "prefix": "48"}


@dataclass(slots=True)
class Result:
    """What became of one script on one target."""

    file: str
    target: str
    ip: str
    verdict: str
    reason: str = ""
    seconds: float = 0.0
    report: str = ""
    line: int = 0

    def as_json(self) -> dict[str, object]:
        """The fields programs get."""
        fields = asdict(self)
        return {name: fields[name] for name in ("file", "target", "ip", "verdict", "reason", "seconds", "line")}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the caller says about all scripts; options given here are stronger than a script's own."""

    options: Mapping[str, str | None] = field(default_factory=dict)
    macros: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 60.0
    compat: bool = False
    strict: bool = False
    hz: int = 0  # pytcp target: timer tick of the modelled kernel, 1/s; 0 = its default, 250
    profile: str = DEFAULT_PROFILE  # pytcp target: which kernel is modelled


def default_macros(ip: str) -> dict[str, str]:
    """The macros packetdrill's own runner defines, which its scripts count on."""
    six = ip != "ipv4"  # the socket's family, also where the addresses are mapped
    return {"CMSG_LEVEL_IP": "SOL_IPV6" if six else "SOL_IP", "CMSG_TYPE_RECVERR": "IPV6_RECVERR" if six else "IP_RECVERR"}


def setup_for(script: Script, ip: str, settings: Settings) -> Setup:
    """The set-up of one run. Raises ScriptError for an option that makes no sense."""
    options = {**script.options, **settings.options}
    ip = options.get("ip_version") or ip
    if ip == "ipv4-mapped-ipv6":
        ip = "ipv4-mapped"
    if ip not in IP_MODES:
        raise ScriptError(f"--ip_version={ip}: there are {', '.join(IP_MODES)}", script.option_places.get("ip_version"))
    defaults = _V6 if ip == "ipv6" else _V4
    setup = Setup(ip=ip, folder=Path(script.name).parent, timeout_s=settings.timeout_s, compat=settings.compat, hz=settings.hz, profile=settings.profile)

    def text(name: str, default: str) -> str:
        value = options.get(name)
        if value is None:
            return default
        try:
            if ip_address(value).version != (6 if ip == "ipv6" else 4):
                return default  # a script of the other family: run with ours
        except ValueError:
            raise ScriptError(f"--{name}={value} is no address", script.option_places.get(name)) from None
        return value

    def whole(name: str, default: int, high: int) -> int:
        value = options.get(name)
        if value is None:
            return default
        if not value.isdigit() or len(value) > 12 or not 0 <= int(value) <= high:
            raise ScriptError(f"--{name}={value} is not a number in 0..{high}", script.option_places.get(name))
        return int(value)

    setup.local, setup.remote, setup.prefix = text("local_ip", defaults["local"]), text("remote_ip", defaults["remote"]), int(defaults["prefix"])
    setup.gateway = text("gateway_ip", defaults["gateway"])
    if ip_address(setup.gateway) == ip_address(setup.local):
        setup.gateway = str(ip_address(setup.local) + 1)
    setup.bind_port = whole("bind_port", 8080, 65535)
    setup.connect_port = whole("connect_port", 8080, 65535)
    setup.mtu = whole("mtu", 1520 if ip == "ipv6" else 1500, 65535)  # one MSS for all modes
    setup.mss = whole("mss", 0, 65535)
    setup.tolerance_ns = whole("tolerance_usecs", 4000, 10**9) * 1000
    setup.stamp_tick_ns = whole("tcp_ts_tick_usecs", 0, 10**6) * 1000
    setup.strict_segments = "strict_segments" in options or settings.strict
    try:
        setup.tolerance_percent = float(options.get("tolerance_percent") or 12.5)
    except ValueError:
        raise ScriptError("--tolerance_percent is a number", script.option_places.get("tolerance_percent")) from None
    if setup.mtu < (1280 if ip == "ipv6" else 68):
        raise ScriptError(f"--mtu={setup.mtu} is too small for {ip}", script.option_places.get("mtu"))
    return setup


def make_target(name: str, setup: Setup) -> Target:
    """A target by name."""
    if name == "pytcp":
        from .target_pytcp import PytcpTarget

        return PytcpTarget(setup)
    if name == "kernel":
        from .target_kernel import KernelTarget

        return KernelTarget(setup)
    raise ValueError(f"target {name!r} is not one of {', '.join(TARGETS)}")


def run_text(text: str, name: str = "script", target: str = "pytcp", ip: str = "ipv4", settings: Settings | None = None) -> Result:
    """Run a script given as text; never raises for anything the script says or does."""
    settings = settings or Settings()
    try:
        script = parse(text, name, {**default_macros(ip), **settings.macros})
    except DrillError as error:
        result = Result(name, target, ip, "error")
        _record(result, error)
        return result
    return run_script(script, target, ip, settings)


def run_script(script: Script, target: str = "pytcp", ip: str = "ipv4", settings: Settings | None = None) -> Result:
    """Run a parsed script; as `run_text`, never raises for anything in it."""
    began = time.monotonic()
    result = Result(script.name, target, ip, "pass")
    try:
        setup = setup_for(script, ip, settings or Settings())
        result.ip = setup.ip
        to = Addresses(ip_address(setup.local).packed, ip_address(setup.remote).packed)
        Runner(script, make_target(target, setup), setup, to).run()
    except DrillError as error:
        _record(result, error)
    result.seconds = round(time.monotonic() - began, 6)
    return result


def record_file(path: str | Path, target: str = "pytcp", ip: str = "ipv4", settings: Settings | None = None) -> str:
    """Run a script and return one that says what the target did. Raises DrillError, OSError."""
    from .record import Recorder

    settings = settings or Settings()
    script = parse(Path(path).read_text(encoding="utf-8-sig", errors="replace"), str(path), {**default_macros(ip), **settings.macros})
    setup = setup_for(script, ip, settings)
    to = Addresses(ip_address(setup.local).packed, ip_address(setup.remote).packed)
    return Recorder(script, make_target(target, setup), setup, to).record()


def _record(result: Result, error: DrillError) -> None:
    result.verdict = error.verdict
    result.reason = printable(error.reason)
    where: Where | None = error.where
    result.line = where.line if where is not None else 0
    if isinstance(error, ScriptError):
        result.report = printable(error.show(result.file))
        return
    place = f"{result.file}:{where.line}: " if where is not None else f"{result.file}: "
    lines = [f"{place}{error.reason}"]
    if where is not None:
        lines.append(f"  {where.line} | {shortened(where.text)}")
    report = getattr(error, "report", "")
    result.report = printable("\n".join([*lines, report] if report else lines))


def run_file(path: str | Path, target: str = "pytcp", ip: str = "ipv4", settings: Settings | None = None) -> Result:
    """Run a script file; a file that cannot be read is an error."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        return Result(str(path), target, ip, "error", f"cannot read it: {error.strerror}")
    return run_text(text, str(path), target, ip, settings)
