"""Shows the progress of long work on stderr: a bar on a terminal, and a line now and then elsewhere.

Functions that work for long take ``progress``: a function that is called now and then, or ``True``, which shows it. The rooms of such
functions and the commands import ``shown``. Begin with ``shown.py``.
"""
