"""What the process has imported that all turns are forked from: no thread is started, no connection is made."""

from __future__ import annotations

import s3fs  # noqa: F401
import worker  # noqa: F401
