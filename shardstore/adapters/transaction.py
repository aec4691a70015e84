"""``with store.transaction():`` for every face."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from shardstore.adapters.handle import Handle

logger = logging.getLogger(__name__)


@contextmanager
def transaction(handle: Handle) -> Iterator[None]:
    """Hold back writes until the block ends, then commit them: one commit a shard, chunks before metadata.

    Writes of all threads of this process take part, through every face on the same place that was opened with the same
    options. An exception inside the block discards
    everything and says how much that was; one from the commit itself says what had been stored.
    """
    handle.begin()
    try:
        yield
    except BaseException as exc:
        discarded = handle.rollback()
        exc.add_note(f"the transaction on {handle.url} was rolled back: {discarded} held-back keys were discarded, nothing was stored")
        logger.info("transaction on %s rolled back, %d keys discarded", handle.url, discarded)
        raise
    handle.commit()
