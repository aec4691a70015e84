"""The command line: one file a command. Needs the extra ``cli`` (typer and rich)."""
