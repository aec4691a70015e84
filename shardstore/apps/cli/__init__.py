"""The command line: one module for commands of one kind. It needs the extra ``cli`` (typer and rich).

Nothing imports this room but the entry point of the command. Begin with ``app.py``, whose table has
all commands, then ``keys.py``.
"""
