"""The generated parts of the site: links, tables, help texts, and the check of public names."""

import xml.etree.ElementTree as ElementTree

import command_line
import coverage
import headers
import pages
import public
import pytest

from tersor import codecs

# The number of names without documentation. Only ever make these numbers smaller.
MOST_UNDOCUMENTED = {"cpp": 0, "python": 3}
CLASS = """<compounddef kind="class" prot="public"><compoundname>tersor::Box</compoundname>
<briefdescription><para>A box.</para></briefdescription><sectiondef>
<memberdef kind="function" prot="public"><name>size</name><argsstring>() const</argsstring>
<briefdescription/><detaileddescription/></memberdef>
<memberdef kind="function" prot="private"><name>hidden</name><argsstring>()</argsstring></memberdef>
<memberdef kind="function" prot="public"><name>Box</name>
<argsstring>(Box &amp;&amp;) noexcept</argsstring>
</memberdef>
<memberdef kind="function" prot="public"><name>~Box</name><argsstring>()</argsstring></memberdef>
</sectiondef></compounddef>"""


@pytest.mark.parametrize("kind", MOST_UNDOCUMENTED)
def test_undocumented_name_lists_do_not_grow(kind: str) -> None:
    assert len(coverage._listed(kind)) <= MOST_UNDOCUMENTED[kind]


def test_undocumented_cpp_name_is_detected() -> None:
    found = coverage._compound_names(ElementTree.fromstring(CLASS))
    assert found == {"tersor::Box": True, "tersor::Box::size": False}


def test_undocumented_python_name_is_detected() -> None:
    class Box:
        """A box."""

        def size(self) -> None: ...

    Box.text = property(lambda self: 1, doc="text(self) -> int")  # as a compiled module has
    Box.__module__ = "tersor"
    names = coverage._object_names("tersor.Box", Box)
    assert names == {"tersor.Box": True, "tersor.Box.size": False, "tersor.Box.text": False}


def test_python_function_must_document_its_arguments() -> None:
    def half(value: float) -> float:
        """Halves a value."""
        return value / 2

    assert coverage._object_names("half", half) == {"half": True, "half(…)": False}
    half.__doc__ = "Halves a value.\n\nArgs:\n    value: A number."
    assert coverage._object_names("half", half) == {"half": True}
    half.__doc__ = "Deprecated: halves a value."
    assert coverage._object_names("half", half) == {"half": True}


def test_an_undocumented_name_fails_unless_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "_listed", lambda kind: ["a", "b"])
    assert coverage.check("cpp", {"a": False, "b": True, "c": False, "d": True}) == [
        "c has no documentation",
        "b is documented or gone: remove it from docs/site/undocumented-cpp.txt",
    ]


@pytest.mark.parametrize(
    ("arguments", "simple"),
    [
        (
            '(int root=0, Options &o={.codec="none"}, S s={})',
            '(int root=0, Options &o={"none"}, S s={})',
        ),
        ('(F &f=[](int r) { return "rank "+text(r);})', "(F &f=default_function)"),
        ("(int a=1) const", "(int a=1) const"),
    ],
)
def test_unparsable_default_values_are_simplified(arguments: str, simple: str) -> None:
    assert headers._simple(arguments) == simple


def test_each_header_is_on_one_page() -> None:
    assert public.missing_headers() == []


def test_links_outside_the_pages_are_rewritten() -> None:
    old, new = public.ROOT / "docs" / "how-to", public.ROOT / "build" / "pages" / "how-to"
    text = "[a](ddp.md) [b](../../CONTRIBUTING.md) [c](../../bench/results) "
    text += "[d](../../none.md) [e](../index.md)\n"
    code = "```\n[b](../../CONTRIBUTING.md)\n```\n"
    made = pages._with_links(text + code, old, new)
    first = "[a](ddp.md) [b](path:../../../CONTRIBUTING.md) c [d](../../none.md) [e](../index.md)\n"
    assert made == first + code


def test_codec_table_lists_each_codec() -> None:
    table = pages.codec_table()
    for codec in codecs():
        assert f"| `{codec.name}` |" in table
    assert " 32.00 | yes |" in table


def test_recorded_help_texts_match_the_program() -> None:
    built = command_line.program()
    if built is None:
        pytest.skip("no tersor-bench: scripts/test --part docs builds the program")
    assert command_line.difference() is None, "run scripts/docs --record"


def test_recorded_help_texts_cover_each_command() -> None:
    texts = command_line.recorded()
    assert set(texts) >= {"", "codecs", "allreduce", "predict", "train", "report"}
    assert all("Usage: tersor-bench" in text for text in texts.values())
