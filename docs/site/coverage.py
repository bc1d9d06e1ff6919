"""Fails if a public name has no documentation, unless an allow-list names it.

A Python function with parameters needs Args: NAME(…) is the documentation of the arguments.

The allow-lists are docs/site/undocumented-cpp.txt and undocumented-python.txt. Lists may only get
shorter: a documented name must be removed.

scripts/docs --record removes the documented names.
"""

from __future__ import annotations

import inspect
import re
import types
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator

import public

XML = public.ROOT / "build" / "docs-xml" / "xml"
LISTS = {
    name: public.ROOT / "docs" / "site" / f"undocumented-{name}.txt" for name in ("cpp", "python")
}
PUBLIC = ("public", "protected")
# What pybind11 and nanobind write by themselves: a signature.
SIGNATURE = re.compile(r"^\w*\(.*\)( -> .*)?$")


def cpp_names() -> dict[str, bool]:
    """The public C++ names; True if documented."""
    names: dict[str, bool] = {}
    for path in sorted(XML.glob("*.xml")):
        for compound in ElementTree.parse(path).getroot().iter("compounddef"):
            if compound.get("kind") in ("class", "struct", "namespace", "union"):
                names |= _compound_names(compound)
    return names


def _compound_names(compound: ElementTree.Element) -> dict[str, bool]:
    name = compound.findtext("compoundname", "")
    if "<" in name or compound.get("prot", "public") not in PUBLIC:
        return {}  # a specialization of a template
    names = {} if compound.get("kind") == "namespace" else {name: _has_text(compound)}
    for member in compound.iter("memberdef"):
        if member.get("prot") in PUBLIC and not _is_special(member, name):
            key = f"{name}::{member.findtext('name')}"
            names[key] = names.get(key, False) or _has_text(member)  # overloads may share a text
    return names


def _has_text(element: ElementTree.Element) -> bool:
    parts = (element.find("briefdescription"), element.find("detaileddescription"))
    return any("".join(part.itertext()).strip() for part in parts if part is not None)


def _is_special(member: ElementTree.Element, owner: str) -> bool:
    """Constructors and destructors that copy, move or end; comparisons; overriders; friends."""
    name, arguments = member.findtext("name", ""), member.findtext("argsstring", "")
    if member.get("kind") == "friend" or name.startswith(("~", "operator==")):
        return True
    if member.find("reimplements") is not None or arguments.endswith(("=default", "=delete")):
        return True
    own = owner.rpartition("::")[2]
    takes_itself = re.match(rf"\((const )?{own} ?&", arguments) or arguments.startswith(
        f"({own} other"
    )
    return name in (own, "operator=") and bool(takes_itself)


def python_names() -> dict[str, bool]:
    """The public Python names; True if documented."""
    names: dict[str, bool] = {}
    for module_name in public.modules():
        module = public.imported(module_name)
        names[module_name] = bool(module.__doc__)
        for name, value in public.members(module):
            names |= _object_names(f"{module_name}.{name}", value)
    return names


def _object_names(path: str, value: object) -> dict[str, bool]:
    if (
        isinstance(value, (types.ModuleType, types.GenericAlias))
        or (type(value).__module__ == "typing" and not isinstance(value, type))
    ):
        return {}  # an alias of a type has no text
    if not callable(value):
        return {}
    names = {path: _has_doc(value, inspect.isclass(value))}
    if _lacks_arguments(value, value.__doc__):
        names[f"{path}(…)"] = False
    if inspect.isclass(value):
        names |= {f"{path}.{name}": done for name, done in _attributes(value)}
    return names


def _attributes(owner: type) -> Iterator[tuple[str, bool]]:
    own = [base for base in reversed(owner.__mro__) if base.__module__.startswith("tersor")]
    foreign = any(base.__module__.partition(".")[0] in public.FOREIGN for base in owner.__mro__)
    for name, value in {name: value for base in own for name, value in vars(base).items()}.items():
        if name.startswith("_") or not (callable(value) or inspect.isdatadescriptor(value)):
            continue
        if inspect.ismemberdescriptor(value) or inspect.isclass(value):
            continue  # slots, which a class's text describes
        found = [vars(base)[name] for base in owner.__mro__ if name in vars(base)]
        yield name, any(map(_has_doc, found))
        # A framework's class describes the arguments of its methods.
        if not foreign and all(_lacks_arguments(one, one.__doc__) for one in found):
            yield f"{name}(…)", False


def _has_doc(value: object, is_class: bool = False) -> bool:
    text = value.__dict__.get("__doc__") if is_class else getattr(value, "__doc__", None)
    lines = [
        line for line in (text or "").strip().splitlines() if not SIGNATURE.match(line.strip())
    ]
    return bool("".join(lines).strip())


def _lacks_arguments(value: object, text: str | None) -> bool:
    """True if a function of Python has parameters, and the text has no Args."""
    if not inspect.isfunction(value) or not text or text.startswith("Deprecated") or "Args:" in text:
        return False
    return bool(inspect.signature(value).parameters.keys() - {"self", "cls"})


def _listed(kind: str) -> list[str]:
    return LISTS[kind].read_text().split() if LISTS[kind].exists() else []


def check(kind: str, names: dict[str, bool]) -> list[str]:
    """The reasons for a failure."""
    missing = {name for name, done in names.items() if not done}
    listed = set(_listed(kind))
    file = LISTS[kind].relative_to(public.ROOT)
    print(f"docs: {kind}: {len(names)} public names, {len(missing)} without documentation")
    return [f"{name} has no documentation" for name in sorted(missing - listed)] + [
        f"{name} is documented or gone: remove it from {file}" for name in sorted(listed - missing)
    ]


def shrink(kind: str, names: dict[str, bool]) -> None:
    kept = [name for name in _listed(kind) if names.get(name) is False]
    LISTS[kind].write_text("".join(f"{name}\n" for name in sorted(kept)))


def failures(shorten: bool = False) -> list[str]:
    """The reasons for a failure of both languages."""
    found = {"cpp": cpp_names(), "python": python_names()}
    if shorten:
        for kind, names in found.items():
            shrink(kind, names)
    reasons = [reason for kind, names in found.items() for reason in check(kind, names)]
    return reasons + [f"include/tersor/{name}.h: docs/site/public.py must list the header once"
                      for name in public.missing_headers()]  # fmt: skip
