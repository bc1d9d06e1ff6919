"""Doxygen's XML of the public headers, changed for Breathe.

Breathe would print private members, and pass on two kinds of default values that Sphinx cannot
parse.
"""

from __future__ import annotations

import pathlib
import re
import xml.etree.ElementTree as ElementTree


def adapt(folder: pathlib.Path) -> None:
    """Changes all files of the folder."""
    for path in folder.glob("*.xml"):
        tree = ElementTree.parse(path)
        root = tree.getroot()
        _hide_members(root)
        for arguments in root.iter("argsstring"):
            arguments.text = _simple(arguments.text or "")
        tree.write(path, encoding="utf-8", xml_declaration=True)


def _hide_members(root: ElementTree.Element) -> None:
    """Removes private members and friends, and a section that then is empty."""
    for compound in root.iter("compounddef"):
        for section in compound.findall("sectiondef"):
            for member in section.findall("memberdef"):
                if member.get("prot") == "private" or member.get("kind") == "friend":
                    section.remove(member)
            if section.find("memberdef") is None and section.find("member") is None:
                compound.remove(section)


def _simple(arguments: str) -> str:
    """`{.codec = "none"}` becomes `{"none"}`, which means the same; a lambda becomes a name."""
    arguments = re.sub(r"\{\s*\.codec\s*=\s*", "{", arguments)
    return re.sub(r"=\s*\[\].*\}", "=default_function", arguments)
