"""Lines of Python that prepare a repository of icechunk for virtual references, and open it so that they can be read."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

_KEPT = "/:!$&'()*+,;=@[]~"
_LOCAL = (  # as icechunk 1 and icechunk 2 show a storage of local files
    re.compile(r"ObjectStorage\(backend=LocalFileSystemObjectStoreBackend\(path=(.*)\)\)", re.DOTALL),
    re.compile(r".*type: local filesystem\npath: ([^\n]*)", re.DOTALL),
)


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


def opening_lines(library: Any, repository: Any, session: Any, base: str, branch: str, path: str) -> str:
    """Return the lines that open a repository in another process. ``storage`` is to be given, unless it is known."""
    prefixes = prefixes_of(session.config, base)
    is_repository = isinstance(repository, library.Repository)
    lines = ["import icechunk", "import zarr"]
    local = shown_local_path(repository.storage) if is_repository else None
    if local is not None:
        lines.append(f"storage = icechunk.local_filesystem_storage({local!r})")
    else:
        lines.append("# storage: the one that the repository was opened with")
    if not is_repository:
        lines.append("# after session.commit(…)")
    elif set(prefixes) - set(prefixes_of(library.Repository.fetch_config(repository.storage), base)):
        lines.append("# The stored config has no such container: first call repository.save_config() in the process that made it")
    entries = ", ".join(f"{prefix!r}: {_credentials(library, prefix)}" for prefix in prefixes)
    lines += [
        f"access = icechunk.containers_credentials({{{entries}}})",
        "repository = icechunk.Repository.open(storage, authorize_virtual_chunk_access=access)",
        f"session = repository.readonly_session({branch!r})",
        f"node = zarr.open(session.store, path={path!r}, mode='r')",
    ]
    return "\n".join(lines)


def _credentials(library: Any, prefix: str) -> str:
    """Return the expression for the credentials of a container."""
    protocol = prefix.partition("://")[0]
    if protocol == "s3":
        return "icechunk.s3_credentials(from_env=True)"
    if protocol in ("gs", "gcs"):
        return "icechunk.gcs_credentials(from_env=True)"
    name = "LocalFileSystemAccess" if protocol == "file" else "HttpAccess"
    return f"icechunk.credentials.{name}" if hasattr(library.credentials, name) else "None"
