#!/usr/bin/env python3
"""Checks rules beyond the compiler: includes between layers, and lengths of files and lines.

usage: check_structure.py REPOSITORY    prints every violation; exit status 1 after a violation
"""
import pathlib
import re
import sys

# A file may include headers of its own layer and of previous layers. The longest matching prefix of the path
# defines the layer.
LAYERS = [
    "include", "kernels/scalar", "kernels/host", "kernels/device", "kernels/cast", "kernels/quantize",
    "kernels", "codecs", "comm/transport", "comm/collectives", "comm/tuning", "comm/calls", "comm",
]  # fmt: skip
TOP_LAYER = len(LAYERS)
TOP_FOLDERS = ["bench", "tests", "python_bindings"]
EXTENSIONS = {".h", ".cc", ".cuh", ".cu"}
MAX_LINES = 400
REASON = "Long because"  # the opening of a longer file gives the reason
OPENING_LINES = 15
MAX_COLUMNS = 100

# Forbidden includes per folder: codecs are independent of ranks, transports are independent of codecs, and comm
# uses only the kernels without codec formats.
FORBIDDEN = {
    "kernels": r"tersor/(transport|inprocess|mpi|nccl|tcp|collectives|reducer)\.h",
    "codecs": r"tersor/(transport|inprocess|mpi|nccl|tcp|collectives|reducer)\.h",
    "comm": r"kernels/(?!scalar/|host/|device/).*",
    "comm/transport": r"tersor/(codec|codecs/.*|collectives|reducer)(\.h)?",
}
# Libraries allowed in only one folder and one public header.
CONFINED = {"mpi.h": "mpi", "nccl.h": "nccl", "sodium.h": "tcp"}
# The simulated device needs no other folder. Other folders include only its public header.
DEVICE = "tests/ptx_device/"
LIBRARY_HEADERS = ("tersor/mpi.h", "tersor/nccl.h", "tersor/tcp.h")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def layer_of(path):
    """Returns the layer of a path relative to the root, or None."""
    if path.split("/")[0] in TOP_FOLDERS:
        return TOP_LAYER
    found = [layer for layer in LAYERS if path.startswith(layer + "/")]
    return LAYERS.index(max(found, key=len)) if found else None


def includes(text):
    return INCLUDE.findall(text)


def check_include(path, quote, name):
    """Returns a sentence for each violation of an include."""
    if ".." in name.split("/"):
        yield f"includes {name}: no '..'"
        return
    target = "include/" + name if name.startswith("tersor/") else name
    target_layer = layer_of(target)
    if quote == '"' and (target_layer is None or name.startswith("tersor/")):
        yield f'includes "{name}": write <tersor/…>, or a path from the root'
    if target_layer is not None and target_layer > layer_of(path):
        yield f"includes {name}: that is a layer above"
    for folder, words in FORBIDDEN.items():
        own = path.startswith(folder + "/")
        if own and re.fullmatch(words, name):
            yield f"includes {name}: {folder}/ must not know it"
    if name.startswith(DEVICE) and not path.startswith(DEVICE) and name != DEVICE + "hooks.h":
        yield f"includes {name}: {DEVICE}hooks.h is the public header"
    if quote == '"' and path.startswith(DEVICE) and not name.startswith(DEVICE):
        yield f"includes {name}: {DEVICE} includes no other folder"
    library = CONFINED.get(name)
    homes = (f"comm/transport/{library}/", f"include/tersor/{library}.h", "tests/", "bench/")
    if library and not path.startswith(homes):
        yield f"includes {name}: only comm/transport/{library}/ may"


def check_text(text):
    lines = text.split("\n")
    if len(lines) - 1 > MAX_LINES and not any(REASON in line for line in lines[:OPENING_LINES]):
        yield f"has {len(lines) - 1} lines, more than {MAX_LINES}, and does not say why"
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_COLUMNS:
            yield f"line {number} has {len(line)} columns, more than {MAX_COLUMNS}"


MAPPED = ["kernels", "comm", "comm/transport"]  # the folders whose folders the map lists


def check_map(root):
    """CONTRIBUTING.md's map lists every folder of the library."""
    pages = root / "CONTRIBUTING.md"
    if not pages.exists():
        return
    listed = set(re.findall(r"\b[\w/]+/", "\n".join(re.findall(r"^ {4,}\S.*", pages.read_text(), re.M))))
    for parent in MAPPED:
        for folder in sorted((root / parent).glob("*/")):
            if not {f"{folder.name}/", f"{parent}/{folder.name}/"} & listed:
                yield f"CONTRIBUTING.md: the map lacks {parent}/{folder.name}/"


def check_pages(root):
    """The site's list has every public header. Only the part `docs` of scripts/test builds the site."""
    pages = root / "docs" / "site" / "public.py"
    if not pages.exists():
        return
    listed = pages.read_text()
    for header in sorted((root / "include" / "tersor").rglob("*.h")):
        if f'"{header.stem}"' not in listed:
            yield f"docs/site/public.py: lacks {header.relative_to(root).as_posix()}"


def check_exports(root):
    """Headers declare every private name that a shared library exports. Only the part `abi` builds the library."""
    exports = root / "cmake" / "exports.map.in"
    if not exports.exists():
        return
    folders = [root / top for top in ("include", "kernels", "codecs", "comm")]
    words = {word for top in folders for file in top.rglob("*.h") for word in re.findall(r"\w+", file.read_text())}
    for name in re.findall(r"tersor::(\w+)(?:::)?\*;", exports.read_text()):
        if name not in words:
            yield f"cmake/exports.map.in: no header declares {name}"


def check_umbrella(root):
    """tersor.h includes no single codec and no optional library, not even indirectly."""
    seen, pending = set(), ["tersor/tersor.h"]
    while pending:
        name = pending.pop()
        header = root / "include" / name
        if name in seen or not header.is_file():
            continue
        seen.add(name)
        pending += [found for _, found in includes(header.read_text()) if found.startswith("tersor/")]
    for name in sorted(seen):
        if name.startswith("tersor/codecs/") or name in LIBRARY_HEADERS:
            yield f"include/tersor/tersor.h: brings in {name}"


def sources(root):
    for top in ["include", "kernels", "codecs", "comm"] + TOP_FOLDERS:
        for file in sorted((root / top).rglob("*")):
            if file.suffix in EXTENSIONS and file.is_file():
                yield file, file.relative_to(root).as_posix()


def type_names(text, beginning):
    """Types defined in a text, except member types defined outside of their class."""
    return re.findall(beginning + r"(?:class|struct|enum|enum class) (\w+)(?: final)?(?: :(?!:)[^;{]*)? \{", text, re.M)


def public_names(root):
    """Types defined at the first column of public headers. A specialized template counts where the
    primary template is defined.
    """
    headers = (file.read_text(encoding="utf-8") for file in sorted((root / "include").rglob("*.h")))
    return {name for text in headers for name in type_names(text, "^")}


def check_names(path, text, public):
    """The name of a public type must have no other meaning inside the library."""
    if not path.startswith(("kernels/", "codecs/", "comm/")):
        return
    for name in type_names(text, r"^ *"):
        if name in public:
            yield f"defines {name}: the name of a public type"


def types_by_namespace(text):
    """Full names of the types with linkage defined in a text."""
    around = []
    for line in text.split("\n"):
        if opened := re.match(r"(?:inline )?namespace ?([\w:]*) \{$", line):
            around.append(opened[1])
        elif line.startswith("}  // namespace") and around:
            around.pop()
        elif "" not in around:
            yield from ("::".join([*around, name]) for name in type_names(line, "^"))


# A function at the first column, with its parameters; names with :: are members.
FUNCTION = re.compile(r"^(?=\w)(?!static\b|return\b|else\b)[\w:<>,&*\[\] ]*?[\w>&*\]] (?!alignas\b)(\w+)\(([^(){};]*(?:\([^()]*\)[^(){};]*)*)\)[^;{}()]*\{", re.M)
ANONYMOUS = re.compile(r"^namespace \{$.*?^\}  // namespace$", re.M | re.S)


def functions_by_namespace(text):
    """Full names, with parameter types, of the functions that a text defines with linkage."""
    text = ANONYMOUS.sub("", text)
    opened = re.search(r"^(?:inline )?namespace ([\w:]+) \{$", text, re.M)
    for name, parameters in FUNCTION.findall(text):
        types = (re.sub(r"\s*=.*|\s*\b\w+\s*$", "", one).strip() for one in parameters.split(","))
        yield f"{opened[1] if opened else ''}::{name}({', '.join(' '.join(one.split()) for one in types)})"


def check_twice(root, names_of):
    """The linker merges two types, templates or inline functions of the same name."""
    homes = {}
    for file, path in sources(root):
        if path.startswith("tests/"):
            continue
        for name in names_of(file.read_text(encoding="utf-8")):
            if homes.setdefault(name, path) != path:
                yield f"{path}: defines {name}: so does {homes[name]}"


def violations(root):
    public = public_names(root)
    for file, path in sources(root):
        text = file.read_text(encoding="utf-8")
        found = [*check_text(text), *check_names(path, text, public)]
        for quote, name in includes(text):
            found += check_include(path, quote, name)
        yield from (f"{path}: {sentence}" for sentence in found)
    yield from check_umbrella(root)
    yield from check_twice(root, types_by_namespace)
    yield from check_twice(root, functions_by_namespace)
    yield from check_map(root)
    yield from check_pages(root)
    yield from check_exports(root)


def main():
    found = list(violations(pathlib.Path(sys.argv[1])))
    print("\n".join(found) or "structure: nothing to complain about")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
