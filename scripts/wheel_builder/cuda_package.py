"""Makes the wheel of tersor-cuda13 from a wheel of tersor with CUDA: its extension module only."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

DISTRIBUTION = "tersor_cuda13"
METADATA = """Metadata-Version: 2.4
Name: tersor-cuda13
Version: {version}
Summary: CUDA kernels of tersor: import tersor, which finds this package
License-Expression: Apache-2.0
{licenses}Requires-Python: {requires_python}
Requires-Dist: tersor=={version}
Requires-Dist: nvidia-nccl-cu13>=2.14
Description-Content-Type: text/markdown

The extension module of `tersor` with kernels for NVIDIA GPUs. The driver must support CUDA 13.
`import tersor` loads this module instead of its own. `tersor.build_info()` names the module in use.
"""
INIT = '''"""The extension module of tersor {version} with CUDA. Import ``tersor`` instead."""

__version__ = "{version}"
'''


def repack(wheel: Path) -> Path:
    """Returns the new wheel, in the folder of ``wheel``."""
    _, version, tag = wheel.stem.split("-", 2)
    info = f"{DISTRIBUTION}-{version}.dist-info"
    files: dict[str, bytes] = {f"{DISTRIBUTION}/__init__.py": INIT.format(version=version).encode()}
    with zipfile.ZipFile(wheel) as old:
        for name in old.namelist():
            folder, _, rest = name.partition("/")
            if name.startswith("tersor/_core.") and name.endswith(".so"):
                files[f"{DISTRIBUTION}/{rest}"] = old.read(name)
            elif not folder.endswith(".dist-info"):
                continue
            elif rest == "WHEEL" or rest.startswith("licenses/"):
                files[f"{info}/{rest}"] = old.read(name)
            elif rest == "METADATA":
                requires = header(old.read(name).decode(), "Requires-Python")
    licenses = sorted(name.partition("licenses/")[2] for name in files if "licenses/" in name)
    files[f"{info}/METADATA"] = METADATA.format(
        version=version,
        requires_python=requires,
        licenses="".join(f"License-File: {name}\n" for name in licenses),
    ).encode()
    new = wheel.with_name(f"{DISTRIBUTION}-{version}-{tag}.whl")
    with zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), record(files, f"{info}/RECORD"))
    return new


def header(metadata: str, name: str) -> str:
    return next(
        line.partition(":")[2].strip() for line in metadata.splitlines() if line.startswith(name)
    )


def record(files: dict[str, bytes], own_name: str) -> str:
    """The list of files with their hashes, in the format of installed packages."""
    lines = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}")
    return "\n".join([*lines, f"{own_name},,", ""])
