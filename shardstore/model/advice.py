"""The words of advice in errors: as Python says them. The command line says the same in its own words (``apps/cli/output.py``)."""

from __future__ import annotations


class _Unsaid:
    """A value that only the user knows."""

    def __repr__(self) -> str:
        return "…"


UNSAID = _Unsaid()


def storage_option(protocol: str, name: str, value: object = UNSAID) -> str:
    """Return how an option is given to the filesystem of a protocol: ``storage_options={'s3': {'anon': True}}``."""
    return f"storage_options={{{protocol!r}: {{{name!r}: {value!r}}}}}"


def check_endpoint(protocol: str) -> str:
    """Return what to do where no server answers."""
    return f"check the network, and the address of the server, {storage_option(protocol, 'endpoint_url')}"
