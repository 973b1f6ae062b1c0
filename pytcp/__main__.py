"""`python -m pytcp` is the `pytcp` command."""

from pytcp.cli.main import main

main()
