"""A TCP/IP stack in Python that behaves like Linux, segment for segment."""

__version__ = "0.1.0"
