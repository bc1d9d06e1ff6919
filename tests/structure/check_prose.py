#!/usr/bin/env python3
"""Measures the English of comments, docstrings and pages, and finds retired words.

usage: check_prose.py REPOSITORY    prints every violation; exit status 1 after a violation

Limits per folder, over sentences of at least four words: 4 % fragments, 4 pronouns per 100 words,
12 % sentences of more than 25 words. The same limits apply to the comments of all CMake files and
of all shell scripts and CI files. Docstrings of a Python folder and each Markdown file keep to the
limit of pronouns. Names of tests open with none of the words that TEST_NAME lists. CONTRIBUTING.md
has the rules and the dictionary.
"""

import ast
import collections
import dataclasses
import pathlib
import re
import sys

FOLDERS = ["include", "kernels", "codecs", "comm", "bench", "tests", "python_bindings/src"]
EXTENSIONS = {".h", ".cc", ".cu", ".cuh"}
PYTHON = ["python_bindings/tersor", "python_bindings/tests", "bench/report", "scripts"]
CMAKE = ["cmake", *FOLDERS, "python_bindings", "examples"]
SHELL = ["scripts/*", "examples/*.sh", ".ci/*", ".github/workflows/*.yml", "pyproject.toml"]
PAGES = ["*.md", "docs/**/*.md", "examples/**/*.md"]
MOST_FRAGMENTS = 4.0  # % of the sentences
MOST_PRONOUNS = 4.0  # per 100 words
MOST_LONG = 12.0  # % of the sentences
LONG_WORDS = 25
LEAST_WORDS = 4
LEAST_SENTENCES = 8  # a folder with fewer sentences counts as a part of its parent folder

FRAGMENT = re.compile(
    r"(Of|Where|Those|Whoever|Whom|As above|That of|The same|So many|By|For|With|From|In|To|Before|Behind)\b"
)
PRONOUN = re.compile(
    r"\b(it|its|they|them|their|that|those|these|who|whom|whose|whoever|one|ones|what|which|such|so)\b",
    re.IGNORECASE,
)
COMMENT = re.compile(r"\s*(?:///?<?|//!)\s?(.*)")
TRAILING = re.compile(r"///?<\s*(.*)")
HASH_COMMENT = re.compile(r"\s*#(?!!) ?(?! |shellcheck)(.*)")  # indented lines are usage tables
HASH_TRAILING = re.compile(r"""(?:[^"'#]|"(?:\\.|[^"\\])*"|'[^']*'|#\S)+\s#\s+(?!shellcheck)(.*)""")
SENTENCE_END = re.compile(r"(?<=[.;:!?])\s+(?=[A-Z])")
WORD = re.compile(r"[A-Za-z']+")

# Retired words as parts of identifiers, and the folders with another meaning of the word.
RETIRED = {
    "bare": (),
    "bell": (),
    "box": (),
    "carried": (),
    "culprit": (),
    "ear": (),
    "family": ("comm/transport/tcp/", "tests/"),  # addresses
    "gate": (),
    "hear": ("include/tersor/reducer.h", "tests/"),
    "inbox": (),
    "kept": ("tests/",),
    "lane": (
        "kernels/",  # of SIMD registers and warps
        "bench/",
        "tests/",
        "python_bindings/src/arrays.cc",  # of DLPack
        "include/tersor/codecs/intsum.h",
        "include/tersor/lanes.h",
    ),
    "letter": ("tests/bench/",),
    "letterbox": (),
    "lifeline": ("include/tersor/transport.h",),
    "outbox": (),
    "parcel": (),
    "party": (),
    "patience": ("tests/",),
    "relay": (),
    "residence": (),
    "room": ("tests/",),
    "slot": ("kernels/topk/", "kernels/blocktopk/", "tests/"),  # of lists
    "switchboard": (),
    "told": ("bench/", "tests/", "python_bindings/"),
}
TEST_NAME = re.compile(
    r"^TEST(?:_F|_P)?\(\w+,\s*((?:What|Who|Whose|Where|Of|Those|That|It|Nobody|Nothing)[A-Z]\w*)"
    r"|^ *def (test_(?:what|who|whose|where|of|those|that|it|nobody|nothing)_\w+)",
    re.MULTILINE,
)
IDENTIFIER = re.compile(r"\b[A-Za-z_]\w*\b")
IDENTIFIER_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
STRING_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*')


@dataclasses.dataclass
class Measure:
    sentences: int = 0
    words: int = 0
    fragments: int = 0
    pronouns: int = 0
    long: int = 0

    def add(self, sentence):
        words = len(WORD.findall(sentence))
        if words < LEAST_WORDS:
            return
        self.sentences += 1
        self.words += words
        self.fragments += FRAGMENT.match(sentence) is not None
        self.pronouns += len(PRONOUN.findall(sentence))
        self.long += words > LONG_WORDS

    def pronoun_violations(self):
        pronouns = 100 * self.pronouns / self.words
        if pronouns > MOST_PRONOUNS:
            yield f"{pronouns:.1f} pronouns per 100 words, more than {MOST_PRONOUNS}"

    def violations(self):
        fragments = 100 * self.fragments / self.sentences
        long = 100 * self.long / self.sentences
        if fragments > MOST_FRAGMENTS:
            yield f"{fragments:.1f} % of the sentences are fragments, more than {MOST_FRAGMENTS} %"
        yield from self.pronoun_violations()
        if long > MOST_LONG:
            yield f"{long:.1f} % of the sentences have over {LONG_WORDS} words: {MOST_LONG} % may"


def comments(text, whole_line=COMMENT, behind_code=TRAILING):
    """Each block of comment lines, and each comment behind code, as one string."""
    block = []
    for line in [*text.split("\n"), ""]:
        if whole := whole_line.match(line):
            block.append(whole.group(1).strip())
            continue
        if block:
            yield " ".join(block)
            block = []
        if trailing := behind_code.search(line):
            yield trailing.group(1)


def docstrings(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from re.split(r"\n\s*\n", ast.get_docstring(node) or "")


def paragraphs(text):
    """The paragraphs and lists of a Markdown file, without code, headings and tables."""
    for part in re.split(r"\n\s*\n", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if part.strip() and not part.lstrip("\n").startswith(("#", "|", "    ", "<", "!")):
            yield re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "code", part))


def measure(texts, into):
    for text in texts:
        for sentence in SENTENCE_END.split(text):
            into.add(sentence)


def retired_words(path, text):
    """The identifiers of the code that contain a retired word."""
    for name in sorted(set(IDENTIFIER.findall(STRING_OR_COMMENT.sub("", text)))):
        for part in IDENTIFIER_PART.findall(name):
            word = part.lower()
            for stem in {word, word.removesuffix("s"), word.removesuffix("es")}:
                if stem in RETIRED and not path.startswith(RETIRED[stem]):
                    yield name, stem


def unclear_test_names(root):
    for folder in ("tests", "python_bindings/tests", "docs/site/tests"):
        paths = (path for path in (root / folder).rglob("*") if path.suffix in {".cc", ".cu", ".py"})
        for path in sorted(paths):
            for found in TEST_NAME.finditer(path.read_text(encoding="utf-8")):
                yield f"{path.relative_to(root)}: name the tested behaviour: {found[1] or found[2]}"


def folder_of(path, counts):
    """The deepest folder of a path that has enough sentences to be measured."""
    folder = path.parent
    while counts[folder] < LEAST_SENTENCES and folder.parent != pathlib.PurePath("."):
        folder = folder.parent
    return folder


def check(root):
    files = {}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in EXTENSIONS:
                files[path.relative_to(root)] = path.read_text(encoding="utf-8")
    own = collections.Counter()
    for path, text in files.items():
        alone = Measure()
        measure(comments(text), alone)
        own[path.parent] += alone.sentences
    measures = collections.defaultdict(Measure)
    for path, text in files.items():
        measure(comments(text), measures[folder_of(path, own)])
        for name, word in retired_words(str(path), text):
            yield f"{path}: {name} contains the retired word '{word}'"
    yield from unclear_test_names(root)
    for folder, found in sorted(measures.items()):
        if found.sentences:
            yield from (f"{folder}: {violation}" for violation in found.violations())
    for group, paths in hash_commented(root).items():
        found = Measure()
        for path in paths:
            measure(comments(path.read_text(encoding="utf-8"), HASH_COMMENT, HASH_TRAILING), found)
        if found.sentences >= LEAST_SENTENCES:
            yield from (f"{group}: {violation}" for violation in found.violations())
    for place, found in sorted(measured_texts(root), key=lambda each: each[0]):
        if found.sentences >= LEAST_SENTENCES:
            yield from (f"{place}: {violation}" for violation in found.pronoun_violations())


def is_python(path):
    with path.open(encoding="utf-8", errors="replace") as file:
        return path.suffix == ".py" or "python3" in file.readline()


def hash_commented(root):
    """The files whose comments begin with '#', except Python files."""
    found = {path for folder in CMAKE for path in (root / folder).rglob("*") if ".cmake" in path.suffixes}
    found |= {path for folder in CMAKE for path in (root / folder).rglob("CMakeLists.txt")}
    found |= set(root.glob("CMakeLists.txt"))
    shell = {path for pattern in SHELL for path in root.glob(pattern) if path.is_file()}
    return {
        "CMake files": sorted(found),
        "shell scripts and CI files": sorted(path for path in shell if not is_python(path)),
    }


def measured_texts(root):
    """A pair (place, Measure) of each folder of Python sources and each page."""
    folders = collections.defaultdict(Measure)
    python = [path for folder in PYTHON for path in (root / folder).rglob("*.py")]
    python += [path for path in root.glob("scripts/*") if not path.suffix and path.is_file() and is_python(path)]
    for path in python:
        measure(docstrings(path.read_text(encoding="utf-8")), folders[str(path.parent.relative_to(root))])
    for path in (path for pattern in PAGES for path in root.glob(pattern)):
        measure(paragraphs(path.read_text(encoding="utf-8")), folders[str(path.relative_to(root))])
    return folders.items()


def main():
    violations = list(check(pathlib.Path(sys.argv[1])))
    print("\n".join(violations) or "the comments keep to the limits")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
