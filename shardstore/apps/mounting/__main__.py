"""``python -m shardstore.apps.mounting``: the process of a mount. ``mounts`` starts it; the arguments are for those who list processes."""

from __future__ import annotations

import os
import sys

from shardstore.apps.mounting.process import main

code = main()
sys.stdout.flush()
sys.stderr.flush()
os._exit(code)  # threads of clients that wait for a server that is gone must not keep it
