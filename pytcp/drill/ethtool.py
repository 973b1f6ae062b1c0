"""The part of ethtool that scripts use, `-K DEVICE tso off gso off`, for machines that do not have ethtool.

`python -m pytcp.drill.ethtool -K tun0 tso off`; the kernel target puts it in the way of scripts' commands when there is
no other. SIOCETHTOOL with the old per-feature requests, which every kernel has (include/uapi/linux/ethtool.h).
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct
import sys

SIOCETHTOOL = 0x8946
SETTERS = {"tx": 0x17, "sg": 0x19, "tso": 0x1F, "gso": 0x24, "gro": 0x2C}
EXIT_USAGE = 1


def main(arguments: list[str]) -> int:
    """Returns the exit status."""
    if len(arguments) < 4 or arguments[0] not in ("-K", "--offload", "--features") or len(arguments) % 2:
        print("usage: -K DEVICE FEATURE on|off ...", file=sys.stderr)
        return EXIT_USAGE
    device = arguments[1].encode()[:15]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for feature, state in zip(arguments[2::2], arguments[3::2], strict=True):
            if feature not in SETTERS or state not in ("on", "off"):
                print(f"unknown: {feature} {state}", file=sys.stderr)
                return EXIT_USAGE
            value = array.array("B", struct.pack("=II", SETTERS[feature], int(state == "on")))
            try:
                fcntl.ioctl(sock, SIOCETHTOOL, struct.pack("16sQ16x", device, value.buffer_info()[0]))
            except OSError as error:
                print(f"{feature} {state}: {error.strerror}", file=sys.stderr)
                return EXIT_USAGE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
