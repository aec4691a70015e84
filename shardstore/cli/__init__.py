"""The command line: one file for each command. Needs the extra ``cli`` (typer and rich)."""
