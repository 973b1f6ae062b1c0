"""The `pytcp` command: one module per subcommand, loaded when it is called."""
