"""Sphinx's settings. scripts/docs calls sphinx-build with -c docs/site."""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import public

project = "Tersor"
author = copyright = "the Tersor authors"
_cmake = (public.ROOT / "CMakeLists.txt").read_text()
version = release = re.search(r"project\(tersor VERSION ([0-9.]+)", _cmake)[1]

extensions = [
    "breathe",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
html_theme = "furo"
html_title = f"Tersor {version}"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["static"]
html_favicon = "static/icon.svg"
html_css_files = ["tersor.css"]
pygments_style = "friendly"
copybutton_exclude = ".linenos, .gp, .go"

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]

autodoc_mock_imports = public.absent()
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
maximum_signature_line_length = 90

breathe_projects = {"tersor": str(public.ROOT / "build" / "docs-xml" / "xml")}
breathe_default_project = "tersor"
breathe_domain_by_extension = {"h": "cpp"}
breathe_show_include = False
breathe_order_parameters_first = True

# Not in the reference: other projects' names, and types that only signatures mention.
nitpicky = True
suppress_warnings = [
    "ref.python",  # a built-in type with the name of a property, such as bytes
    "duplicate_declaration.cpp",  # each header opens the namespace again
]
nitpick_ignore_regex = [
    ("py:class", r".*"),
    ("py:.*", r"(?!tersor\.).*"),
    ("cpp:identifier", r"(?!tersor::).*"),
    ("c:identifier", r".*"),
]


def _escape(
    app: object, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """A bar in a compiled module's text is a magnitude, not a substitution."""
    lines[:] = [line if "``" in line else line.replace("|", r"\|") for line in lines]


def setup(app: object) -> None:
    app.connect("autodoc-process-docstring", _escape)  # type: ignore[attr-defined]
