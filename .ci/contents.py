"""Compare the wheel and the source distribution of a directory with the files of the repository: all of them, and nothing else."""

import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import BytesParser
from pathlib import Path

BUILT = "shardstore/native/libkernel.2.so"
ONLY_SOURCE = re.compile(r"shardstore/native/(kernel\.c|build_hook\.py)$")

[wheel], [source] = (sorted(Path(sys.argv[1]).glob(pattern)) for pattern in ("*.whl", "*.tar.gz"))
tracked = set(subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True).stdout.splitlines())


def compare(name: str, there: set[str], wanted: set[str]) -> None:
    assert there == wanted, f"{name} lacks {sorted(wanted - there)}, and has besides {sorted(there - wanted)}"


with zipfile.ZipFile(wheel) as archive:
    names = set(archive.namelist())
    [metadata] = (archive.read(name) for name in names if name.endswith(".dist-info/METADATA"))
package = {name for name in tracked if name.startswith("shardstore/") and not ONLY_SOURCE.match(name)}
compare(wheel.name, {name for name in names if ".dist-info/" not in name} - {BUILT}, package)
assert (BUILT in names) != wheel.name.endswith("-py3-none-any.whl"), f"{wheel.name} has a kernel, or none, against its name"

with tarfile.open(source) as archive:
    names = {name.partition("/")[2] for name in archive.getnames()}
compare(source.name, names - {"PKG-INFO"}, {name for name in tracked if not name.startswith(".github/")})

read = BytesParser().parsebytes(metadata)
assert wheel.name.startswith(f"shardstore-{read['Version']}-"), read["Version"]
address = dict(url.split(", ") for url in read.get_all("Project-URL", []))["Repository"]
relative = re.findall(r"\]\((?![a-z+]+:|#)[^)]*\)", read.get_payload())
assert not relative, f"links that lead nowhere on a package index: {relative}"
links = set(re.findall(r"\]\((https://github\.com/[^)#]*)", read.get_payload()))
ours = {link for link in links if link.startswith(address + "/")}
for link in ours:
    assert link.removeprefix(address).split("/", 3)[3] in tracked, f"{link} is no file of the repository"
assert ours, f"no link of the README begins with {address}"
print(f"{len(package)} files in {wheel.name}, {len(names)} in {source.name}, {len(ours)} links of the README lead to files")
