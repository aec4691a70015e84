"""A stand-in for PyTorch where it is not installed, as far as pages use it: batches of a dataset, by forked or spawned processes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from types import SimpleNamespace
from typing import Any

import numpy as np


class Dataset:
    """The base class of datasets."""


@dataclass
class DataLoader:
    """The batches of a dataset, as torch's loader hands them to a program."""

    dataset: Any
    batch_size: int
    shuffle: bool = False
    num_workers: int = 0
    multiprocessing_context: str | None = None
    collate_fn: Callable[[Any], Any] | None = None
    persistent_workers: bool = False

    def __iter__(self) -> Iterator[Any]:
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.shuffle(order)
        batches = [order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size)]
        fetch = partial(_fetch, self.dataset, self.collate_fn)
        if self.num_workers == 0:
            yield from map(fetch, batches)
            return
        with ProcessPoolExecutor(self.num_workers, get_context(self.multiprocessing_context)) as workers:
            yield from workers.map(fetch, batches)


def _fetch(dataset: Any, collate: Callable[[Any], Any] | None, indices: Sequence[int]) -> Any:
    assert collate is not None, "this stand-in has no collation of its own"
    many = getattr(dataset, "__getitems__", None)
    return collate(many(indices) if many else [dataset[index] for index in indices])


from_numpy = np.asarray
utils = SimpleNamespace(data=SimpleNamespace(Dataset=Dataset, DataLoader=DataLoader))
__version__ = "none"
