"""The API reference: one Markdown page per public module, from its docstrings, and an index."""

from __future__ import annotations

import argparse
import re
import sys
from functools import partial
from pathlib import Path

from griffe import GriffeLoader, Parser
from griffe2md import ConfigDict, default_config, render_object_docs

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
    ("pytcp.sockets.epoll", "many sockets at once"),
    ("pytcp.sockets.datagrams", "trio's view of it"),
    ("pytcp.sockets.factory", "unmodified trio programs"),
    ("pytcp.sockets.resolver", "host names"),
    ("pytcp.sockets.http", "the small web server and client"),
    ("pytcp.lab.testbed", "a namespace with a Linux peer"),
    ("pytcp.lab.wired", "captures and an emulated wire in front of a stack"),
    ("pytcp.lab.experiment", "what an experiment is"),
    ("pytcp.lab.world", "one run: hosts, wires and time"),
    ("pytcp.lab.hosts", "a host of an experiment"),
    ("pytcp.lab.wires", "the wire between two of them"),
    ("pytcp.lab.workloads", "downloads, bursts, streams"),
    ("pytcp.lab.transactions", "questions and answers"),
    ("pytcp.lab.distribution", "quantiles and numbers"),
    ("pytcp.lab.real", "an experiment over a TAP"),
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
    ("pytcp.link.qdisc.fq", "the fq queueing discipline"),
    ("pytcp.link.qdisc.htb", "an htb class"),
    ("pytcp.link.pcapng", "captures"),
    ("pytcp.net.stack", "the host: interfaces, addresses, routes"),
    ("pytcp.clock.virtual", "virtual time"),
    ("pytcp.clock.real", "real time"),
    ("pytcp.tcp.cong", "registering congestion controls"),
    ("pytcp.tcp.cong.base", "writing one"),
    ("pytcp.tcp.info", "tcp_info"),
    ("pytcp.tcp.gates", "what a connection waits for"),
    ("pytcp.tcp.trace", "decisions as events"),
    ("pytcp.net.tracer", "listening to them"),
)


def _config(module: str) -> ConfigDict:
    config = default_config.copy()
    config["filters"] = FILTERS[:1] if module in CONSTANTS else FILTERS
    return config


_HEADING = re.compile(r"^#+ `([\w.]+)`", re.MULTILINE)
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(#([\w.]+)\)")


def linked(made: dict[str, str]) -> dict[str, str]:
    """The pages with links that a Markdown viewer can follow: to the headings' own anchors, on whatever page they are. What is on none is plain text."""
    anchors: dict[str, tuple[str, str]] = {}
    for page, text in made.items():
        used: dict[str, int] = {}
        for name in _HEADING.findall(text):
            slug = re.sub(r"[^\w-]", "", name.lower())
            count = used[slug] = used.get(slug, -1) + 1
            anchors.setdefault(name, (page, f"{slug}-{count}" if count else slug))

    def link(page: str, found: re.Match[str]) -> str:
        text, name = found.groups()
        if name not in anchors:
            return text
        where, anchor = anchors[name]
        return f"[{text}]({'' if where == page else where}#{anchor})"

    return {page: _LINK.sub(partial(link, page), text) for page, text in made.items()}


def pages() -> dict[str, str]:
    """Every page of the reference by name. The package is read once for all of them."""
    made = {}
    loader = GriffeLoader(
        search_paths=[ROOT, *sys.path],
        docstring_parser=Parser(default_config["docstring_style"] or "google"),
        docstring_options=default_config["docstring_options"],
        allow_inspection=False,
    )
    package = loader.load("pytcp")
    loader.resolve_aliases()
    index = ["# API reference", "", "Made from the docstrings by `tools/apidocs`.", ""]
    for module, purpose in MODULES:
        source = ROOT.joinpath(*module.split("."))
        if not source.with_suffix(".py").exists() and not (source / "__init__.py").exists():
            continue
        page = f"{module}.md"
        made[page] = render_object_docs(package[module.partition(".")[2]], _config(module)).rstrip("\n") + "\n"
        index.append(f"- [{module}]({module}.md): {purpose}")
    made["README.md"] = "\n".join(index) + "\n"
    return linked(made)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/apidocs", description="Write the API reference in docs/api/ from the docstrings.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when it is out of date")
    check = parser.parse_args().check
    OUT.mkdir(parents=True, exist_ok=True)
    before = {path.name: path.read_text() for path in OUT.glob("*.md")}
    made = pages()
    if check:
        stale = sorted(name for name in before.keys() | made.keys() if before.get(name) != made.get(name))
        if stale:
            print(f"out of date: {', '.join(stale)}; run tools/apidocs", file=sys.stderr)
        return 1 if stale else 0
    for name in before.keys() - made.keys():
        (OUT / name).unlink()
    for name, text in made.items():
        (OUT / name).write_text(text)
    print(f"{len(made)} pages in {OUT.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
