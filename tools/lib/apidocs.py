"""The API reference: one Markdown page per public module, from its docstrings, and an index."""

from __future__ import annotations

import sys
from pathlib import Path

from griffe2md import ConfigDict, default_config, write_package_docs

ROOT = Path(__file__).resolve().parent.parent.parent
OUT = ROOT / "docs" / "api"
# names of a module's own, and constants where they are not what the page is about
FILTERS = ["!^_", "!^[A-Z][A-Z0-9_]*$"]
CONSTANTS = ("pytcp.link.frame",)

# (module, what it is for), in the order a reader meets them
MODULES = (
    ("pytcp.sockets.open", "a stack with trio's functions on it; virtual time"),
    ("pytcp.sockets.streams", "streams and listeners"),
    ("pytcp.sockets.socket", "the non-blocking socket"),
    ("pytcp.sockets.udp", "the non-blocking datagram socket"),
    ("pytcp.sockets.datagrams", "trio's view of it"),
    ("pytcp.sockets.factory", "unmodified trio programs"),
    ("pytcp.sockets.resolver", "host names"),
    ("pytcp.sockets.http", "the small web server and client"),
    ("pytcp.lab.testbed", "a namespace with a Linux peer"),
    ("pytcp.lab.wired", "captures and an emulated wire in front of a stack"),
    ("pytcp.link.frame", "what a device must do"),
    ("pytcp.link.tap", "TAP devices"),
    ("pytcp.link.tun", "TUN devices: IP without Ethernet"),
    ("pytcp.link.packet", "packet sockets on a veth"),
    ("pytcp.link.descriptor", "a device somebody else has opened"),
    ("pytcp.link.callback", "packets through plain functions"),
    ("pytcp.sockets.tunnel", "packets through async functions"),
    ("pytcp.link.pipe", "two stacks in one process"),
    ("pytcp.link.emulator", "a wire that loses, delays, reorders"),
    ("pytcp.link.aqm", "queues of a bottleneck: CoDel, RED"),
    ("pytcp.link.rates", "rates that vary: functions of time, mahimahi traces"),
    ("pytcp.link.delayed", "completions on time, late, missed"),
    ("pytcp.link.pcapng", "captures"),
    ("pytcp.net.stack", "the host: interfaces, addresses, routes"),
    ("pytcp.clock.virtual", "virtual time"),
    ("pytcp.clock.real", "real time"),
    ("pytcp.tcp.cong", "registering congestion controls"),
    ("pytcp.tcp.cong.base", "writing one"),
    ("pytcp.tcp.info", "tcp_info"),
)


def _config(module: str) -> ConfigDict:
    config = default_config.copy()
    config["filters"] = FILTERS[:1] if module in CONSTANTS else FILTERS
    return config


def pages() -> dict[Path, str]:
    """Every page of the reference, by path."""
    made = {}
    index = ["# API reference", "", "Made from the docstrings by `tools/apidocs`.", ""]
    for module, purpose in MODULES:
        source = ROOT.joinpath(*module.split("."))
        if not source.with_suffix(".py").exists() and not (source / "__init__.py").exists():
            continue
        path = OUT / f"{module}.md"
        write_package_docs(module, _config(module), output=str(path))
        made[path] = path.read_text()
        index.append(f"- [{module}]({module}.md): {purpose}")
    made[OUT / "README.md"] = "\n".join(index) + "\n"
    return made


def main() -> int:
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        print("usage: tools/apidocs [--check]", file=sys.stderr)
        return 2
    OUT.mkdir(parents=True, exist_ok=True)
    before = {path: path.read_text() for path in OUT.glob("*.md")}
    made = pages()
    stale = sorted(path.name for path in before.keys() | made.keys() if before.get(path) != made.get(path))
    if check:
        for path, text in before.items():
            path.write_text(text)
        for path in made.keys() - before.keys():
            path.unlink(missing_ok=True)
        if stale:
            print(f"out of date: {', '.join(stale)}; run tools/apidocs", file=sys.stderr)
        return 1 if stale else 0
    for path in before.keys() - made.keys():
        path.unlink()
    for path, text in made.items():
        path.write_text(text)
    print(f"{len(made)} pages in {OUT.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
