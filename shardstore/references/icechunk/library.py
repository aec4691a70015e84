"""The package icechunk, which nothing else of shardstore imports: its errors as ours, and objects of its zarr stores as bytes; places of
its repositories, and of the objects that they refer to, from URLs and from options as fsspec has them; and lines of Python that prepare a
repository for virtual references, and open it so that they can be read.

Credentials go into storages and into what readers give, never into a config: that is stored in the repository.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from shardstore.errors import Conflict, InvalidInput, StorageError, Unsupported
from shardstore.extras import how_to_install
from shardstore.model.redaction import HARMLESS, redacted
from shardstore.opening.address import text_of

Options = Mapping[str, Any]
OptionsOf = Callable[[str], Options]
"""Returns the options for a URL."""

_S3_OPTIONS = frozenset({"key", "secret", "token", "anon", "endpoint_url", "client_kwargs", "requester_pays"})
_CLIENT_OPTIONS = frozenset({"endpoint_url", "region_name"})
_GCS_OPTIONS = frozenset({"token"})
_KEPT = "/:!$&'()*+,;=@[]~"
_LOCAL = (  # as icechunk 1 and icechunk 2 show a storage of local files
    re.compile(r"ObjectStorage\(backend=LocalFileSystemObjectStoreBackend\(path=(.*)\)\)", re.DOTALL),
    re.compile(r".*type: local filesystem\npath: ([^\n]*)", re.DOTALL),
)
_REGION_OF_ENDPOINTS = "us-east-1"  # servers that are not Amazon's have no regions, and take any


def library() -> Any:
    """Return the package. Raises ``Unsupported`` if it is not installed."""
    try:
        import icechunk
    except ModuleNotFoundError as exc:
        raise Unsupported(f"repositories of icechunk need icechunk: {how_to_install('icechunk')}") from exc
    return icechunk


def is_major_2(icechunk: Any) -> bool:
    """Return whether this is icechunk 2 or newer, which takes and gives references as columns."""
    return hasattr(icechunk.IcechunkStore, "array_chunk_iterator")


@contextmanager
def translated(branch: str) -> Iterator[None]:
    """Raise errors of icechunk as ours, in a block that commits to a branch. Raises ``Unsupported`` if icechunk is not installed."""
    icechunk = library()
    try:
        yield
    except icechunk.ConflictError as exc:
        raise Conflict(f"another writer committed to branch {branch!r} first: nothing was committed. Start again") from exc
    except icechunk.IcechunkError as exc:
        raise StorageError(f"icechunk: {exc}") from exc


async def get_bytes(store: Any, key: str) -> bytes | None:
    """Return the object at a key of a zarr store of icechunk; ``None`` if there is none."""
    from zarr.core.buffer import default_buffer_prototype  # comes with icechunk, and is slow to import

    data = await store.get(key, default_buffer_prototype())
    return None if data is None else bytes(data.to_bytes())


async def put_bytes(store: Any, key: str, data: bytes) -> None:
    """Store an object at a key of a zarr store of icechunk."""
    from zarr.core.buffer import default_buffer_prototype  # comes with icechunk, and is slow to import

    await store.set(key, default_buffer_prototype().buffer.from_bytes(data))


# -- places ------------------------------------------------------------------------------------------------------------


def storage_at(target: Any, options: Options) -> Any:
    """Return the ``icechunk.Storage`` at a folder or URL; one that is given is returned.

    Raises:
        InvalidInput: icechunk has no storage for such a URL, or not with these options.
        Unsupported: icechunk is not installed.
    """
    icechunk = library()
    if isinstance(target, icechunk.Storage):
        if options:
            raise InvalidInput("storage options go with a URL; an icechunk.Storage has its own")
        return target
    if not isinstance(target, str | os.PathLike):
        raise InvalidInput(f"a repository of icechunk is a folder, a URL or an icechunk.Storage, not of type {type(target).__name__}")
    url = text_of(target)
    check_options("storage options", options)
    protocol, _, rest = url.partition("://")
    if not (rest if "://" in url else url):
        raise InvalidInput(f"{url!r} names no place for a repository of icechunk: give a folder or a URL")
    if "://" not in url or protocol in ("file", "local"):
        _check_known(url, {name: value for name, value in options.items() if name not in HARMLESS}, frozenset())
        path = local_path(url)
        above = next(part for part in (path, *map(str, Path(path).parents)) if os.path.lexists(part))
        if not os.path.isdir(above):
            raise InvalidInput(f"{above} is a file, so there can be no repository of icechunk at {path}: give a folder")
        return icechunk.local_filesystem_storage(path)
    bucket, _, prefix = rest.strip("/").partition("/")
    if protocol in ("s3", "s3a"):
        return icechunk.s3_storage(bucket=bucket, prefix=prefix or None, **_s3_place(url, options), **_s3_access(options))
    if protocol in ("gs", "gcs"):
        return icechunk.gcs_storage(bucket=bucket, prefix=prefix or None, **_gcs_access(url, options, strict=True))
    raise InvalidInput(
        f"{redacted(url)} is not a place that icechunk gets from here: file, s3 and gs are. Give an icechunk.Storage for another one"
    )


def check_options(what: str, options: object) -> None:
    if not isinstance(options, Mapping):
        raise InvalidInput(f"{what} are a mapping from names to values, not of type {type(options).__name__}")


def place_of(storage: Any) -> str | None:
    """Return the URL of an ``icechunk.Storage``, if it is a folder of local files; nothing is known of other storages."""
    path = shown_local_path(storage)
    return None if path is None else f"file://{os.path.abspath(path)}"


def local_path(url: str) -> str:
    """Return the absolute path of a folder that is given as a path or as a ``file://`` URL."""
    return os.path.abspath(os.path.expanduser(url.removeprefix("local://").removeprefix("file://")))


def add_containers(config: Any, bases: Iterable[str], options_of: OptionsOf) -> dict[str, str]:
    """Give a config a virtual chunk container for each place that it has none for; return the prefix of each place's container. Raises
    ``InvalidInput``: icechunk does not read such a place, or not with these options.
    """
    icechunk = library()
    found: dict[str, str] = {}
    for base in bases:
        there = [one.url_prefix for one in (config.virtual_chunk_containers or {}).values()]
        prefix = next((one for one in there if location_of(base).startswith(one)), None)
        if prefix is None:
            prefix = prefix_of(base)
            config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, _store_at(prefix, options_of(base))))
        found[base] = prefix
    return found


def credentials_for(prefixes: Iterable[str], options_of: OptionsOf) -> dict[str, Any]:
    """Return what readers give as ``authorize_virtual_chunk_access`` for these containers: the credentials of the options, else those of
    the environment.
    """
    icechunk = library()
    found: dict[str, Any] = {}
    for prefix in prefixes:
        protocol = prefix.partition("://")[0]
        if protocol in ("s3", "s3a"):
            found[prefix] = icechunk.s3_credentials(**_s3_access(options_of(prefix)))
        elif protocol in ("gs", "gcs"):
            found[prefix] = icechunk.gcs_credentials(**_gcs_access(prefix, options_of(prefix), strict=False))
        else:  # icechunk 1 has neither
            found[prefix] = getattr(icechunk.credentials, "LocalFileSystemAccess" if protocol == "file" else "HttpAccess", None)
    return dict(icechunk.containers_credentials(found))


def _store_at(prefix: str, options: Options) -> Any:
    icechunk = library()
    protocol = prefix.partition("://")[0]
    if protocol == "file":
        return icechunk.local_filesystem_store(prefix.removeprefix("file://"))
    if protocol == "s3":
        place = _s3_place(prefix, options)
        return icechunk.s3_store(**place, anonymous=bool(options.get("anon")), s3_compatible="endpoint_url" in place)
    if protocol in ("gs", "gcs"):
        return icechunk.gcs_store({})
    if protocol in ("http", "https"):
        return icechunk.http_store({"allow_http": "true"} if protocol == "http" else {})
    raise InvalidInput(f"icechunk does not read objects at {redacted(prefix)}: it knows file, s3, gs, gcs, http, https")


def _s3_place(url: str, options: Options) -> dict[str, Any]:
    client = options.get("client_kwargs") or {}
    _check_known(url, options, _S3_OPTIONS)
    _check_known(url, client, _CLIENT_OPTIONS)
    found: dict[str, Any] = {}
    endpoint = options.get("endpoint_url") or client.get("endpoint_url")
    if endpoint:
        found |= {"endpoint_url": endpoint, "allow_http": str(endpoint).startswith("http:"), "force_path_style": True}
    region = client.get("region_name") or (_REGION_OF_ENDPOINTS if endpoint else None)
    if region:
        found["region"] = region
    if options.get("requester_pays"):
        found["requester_pays"] = True
    return found


def _s3_access(options: Options) -> dict[str, Any]:
    if options.get("anon"):
        return {"anonymous": True}
    if options.get("key") and options.get("secret"):
        names = {"access_key_id": "key", "secret_access_key": "secret", "session_token": "token"}
        return {name: options[given] for name, given in names.items() if options.get(given)}
    return {"from_env": True}


def _gcs_access(url: str, options: Options, *, strict: bool) -> dict[str, Any]:
    if strict:
        _check_known(url, options, _GCS_OPTIONS)
    token = options.get("token")
    if token == "anon":
        return {"anonymous": True}
    if isinstance(token, str) and os.path.isfile(token):
        return {"service_account_file": token}
    if strict and token not in (None, "google_default"):
        raise InvalidInput(
            f"the token for {redacted(url)} is not one that icechunk takes: it must be 'anon', a file, or absent. Give an icechunk.Storage"
        )
    return {"from_env": True}


def _check_known(url: str, options: Options, known: frozenset[str]) -> None:
    if unknown := sorted(set(options) - known):
        raise InvalidInput(
            f"icechunk has no such option for {redacted(url)}: {unknown[0]!r}. These are understood here: {', '.join(sorted(known))}. For "
            "other options give an icechunk.Storage, and config= with virtual chunk containers of your own"
        )


# -- lines of Python ---------------------------------------------------------------------------------------------------


def location_of(text: str) -> str:
    """Return a path, or a URL of a storage that encodes nothing, as icechunk has it: a URL of which the path is decoded."""
    return text.replace("%", "%25").replace("?", "%3F").replace("#", "%23")


def prefix_of(base: str) -> str:
    """Return the prefix of a virtual chunk container for what is below ``base``, which ends with ``/``; it ends above a name that URLs
    encode, since icechunk compares it with the encoded one.
    """
    head, _, rest = base.partition("://")
    segments = rest.split("/")[:-1]
    whole = next((i for i, segment in enumerate(segments) if quote(segment, safe=_KEPT) != segment), len(segments))
    return f"{head}://" + "".join(f"{segment}/" for segment in segments[:whole])


def container_lines(url: str, base: str) -> str:
    """Return the lines that add a virtual chunk container for what begins with ``base``, or else for ``url``."""
    text = base if base and url.startswith(base) else url.rpartition("/")[0] + "/"
    prefix = prefix_of(text)
    head = prefix.partition("://")[0]
    store = {
        "file": f"icechunk.local_filesystem_store({prefix.removeprefix('file://')!r})",
        "s3": 'icechunk.s3_store(region="…")',
        "gs": "icechunk.gcs_store({})",
        "gcs": "icechunk.gcs_store({})",
        "http": 'icechunk.http_store({"allow_http": "true"})',
        "https": "icechunk.http_store()",
    }[head]
    return "\n".join(
        [
            "config = repository.config",
            f"config.set_virtual_chunk_container(icechunk.VirtualChunkContainer({prefix!r}, {store}))",
            "repository = repository.reopen(config=config)",
            "repository.save_config()",
        ]
    )


def shown_local_path(storage: Any) -> str | None:
    """Return the folder of a storage of local files, which icechunk shows only in the text of the storage; ``None`` for other storages."""
    shown = repr(storage).strip()
    found = next((match for pattern in _LOCAL if (match := pattern.fullmatch(shown))), None)
    return None if found is None else found[1]


def prefixes_of(config: Any, base: str) -> list[str]:
    """Return the prefixes of a config's virtual chunk containers that hold objects below ``base``."""
    containers = (config.virtual_chunk_containers or {}).values() if config is not None else ()
    prefixes = sorted(container.url_prefix for container in containers)
    return [prefix for prefix in prefixes if base.startswith(prefix) or prefix.startswith(base)]


def opening_lines(repository: Any, session: Any, base: str, branch: str, path: str) -> str:
    """Return the lines that open a repository in another process. ``storage`` is to be given, unless it is known."""
    icechunk = library()
    prefixes = prefixes_of(session.config, base)
    is_repository = isinstance(repository, icechunk.Repository)
    lines = ["import icechunk", "import zarr"]
    local = shown_local_path(repository.storage) if is_repository else None
    if local is not None:
        lines.append(f"storage = icechunk.local_filesystem_storage({local!r})")
    else:
        lines.append("# storage: the one that the repository was opened with")
    if not is_repository:
        lines.append("# after session.commit(…)")
    elif set(prefixes) - set(prefixes_of(icechunk.Repository.fetch_config(repository.storage), base)):
        lines.append("# The stored config has no such container: first call repository.save_config() in the process that made it")
    entries = ", ".join(f"{prefix!r}: {_credentials(prefix)}" for prefix in prefixes)
    lines += [
        f"access = icechunk.containers_credentials({{{entries}}})",
        "repository = icechunk.Repository.open(storage, authorize_virtual_chunk_access=access)",
        f"session = repository.readonly_session({branch!r})",
        f"node = zarr.open(session.store, path={path!r}, mode='r')",
    ]
    return "\n".join(lines)


def _credentials(prefix: str) -> str:
    protocol = prefix.partition("://")[0]
    if protocol == "s3":
        return "icechunk.s3_credentials(from_env=True)"
    if protocol in ("gs", "gcs"):
        return "icechunk.gcs_credentials(from_env=True)"
    name = "LocalFileSystemAccess" if protocol == "file" else "HttpAccess"
    return f"icechunk.credentials.{name}" if hasattr(library().credentials, name) else "None"
