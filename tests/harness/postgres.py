"""A database of PostgreSQL, started from the programs that are installed, on a socket in a directory of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PORT = 5432
"""The port that the name of the socket has; nothing listens there."""


class NoPostgres(Exception):
    """PostgreSQL cannot be started here; the message says why."""


def _programs() -> Path:
    found = [shutil.which("pg_ctl"), *map(str, Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))]
    for program in found:
        if program is not None:
            return Path(program).parent
    raise NoPostgres("PostgreSQL is not installed")


@contextmanager
def postgres() -> Iterator[Path]:
    """The directory of the socket of a server that trusts the user ``me``; its database is ``postgres``. Raises ``NoPostgres``."""
    programs = _programs()
    user = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root
    if user is not None and user not in {entry.pw_name for entry in pwd.getpwall()}:
        raise NoPostgres("PostgreSQL does not run as root, and there is no user postgres")
    place = Path(tempfile.mkdtemp(prefix="shardstore-postgres-"))
    place.chmod(0o777)

    def call(name: str, *arguments: str) -> None:
        command = [str(programs / name), "-D", str(place / "data"), *arguments]
        subprocess.run(command, check=True, user=user, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    try:
        call("initdb", "-A", "trust", "-U", "me", "--no-sync")
        call("pg_ctl", "-w", "-o", f"-k {place} -p {PORT} -c listen_addresses='' -c fsync=off", "start")
        try:
            yield place
        finally:
            call("pg_ctl", "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def postgres_url(place: Path, options: str = "") -> str:
    """Return SQLAlchemy's URL of the database; ``options`` are more parameters: ``application_name=me``."""
    return f"postgresql+psycopg://me@/postgres?host={place}&port={PORT}{'&' if options else ''}{options}"
