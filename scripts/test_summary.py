"""Summarises JUnit files of CTest and pytest: the reason of each failure, the slowest tests, and the line
'N passed, N failed, N skipped', with the number of tests skipped because they need a GPU. Exit status 1 if a
test failed. A CTest test with many GoogleTest cases counts as these cases: the folder FILE next to FILE.xml has
their results.

usage: test_summary.py BROKEN FILES…    BROKEN: number of failures outside of tests
"""
import collections
import pathlib
import re
import sys
import xml.etree.ElementTree as xml

LAST_LINES = 40  # shown lines of a failed test's output
SLOWEST = 10  # named tests


def failure_text(test):
    """Returns the output of a failed test, or None."""
    if test.get("status") == "fail":  # CTest's
        return test.findtext("system-out") or ""
    failures = [*test.findall("failure"), *test.findall("error")]  # pytest has one
    return "\n".join(failure.text or "" for failure in failures) if failures else None


def is_skipped(test):
    return test.find("skipped") is not None or test.get("status") in ("notrun", "disabled")


def lacks_gpu(test):
    """CTest's device tests have a prefix; pytest's reasons name CUDA."""
    skipped = test.find("skipped")
    reason = "" if skipped is None else skipped.get("message", "")
    return test.get("name", "").startswith("gpu.") or "CUDA" in reason


def show_what_it_printed(case, output):
    """Returns the whole output of the program; GoogleTest's file has only the messages of failed cases."""
    name = re.escape(case.get("name"))
    lines = re.search(rf"^\[ RUN      \] {name}\n(.*?)^\[  FAILED  \] {name}\b", output,
                      re.DOTALL | re.MULTILINE)
    if lines:
        case[:] = [xml.Element("failure")]
        case[0].text = lines[1]


def cases_of(test, file):
    """Returns the cases of a CTest test with the name of the test. Returns the test itself if the test wrote
    no file (after a crash, or without cases), or failed without a failed case."""
    if not file.is_file():
        return [test]
    cases = list(xml.parse(file).iter("testcase"))
    for case in cases:
        suite = case.attrib.pop("classname")
        case.set("name", f"{suite}.{case.get('name')}")
        show_what_it_printed(case, test.findtext("system-out") or "")
        numbered = re.search(r"/\d+$", case.get("name")) and case.get("value_param")
        parameter = f" ({case.get('value_param')})" if numbered else ""
        case.set("name", test.get("name").partition(suite)[0] + case.get("name") + parameter)
    explained = any(failure_text(case) is not None for case in cases)
    return cases if explained or failure_text(test) is None else [*cases, test]


def tests_in(path):
    for test in xml.parse(path).iter("testcase"):
        yield from cases_of(test, path.with_suffix("") / f"{test.get('name')}.xml")


def show_failure(test, text):
    """Prints the failures last, at the end of a long log."""
    print(f"failed: {test.get('name')}")
    for line in text.rstrip().splitlines()[-LAST_LINES:]:
        print(f"  {line}")


def count(tests):
    counts = collections.Counter()
    for test in tests:
        text = failure_text(test)
        if text is not None:
            show_failure(test, text)
            counts["failed"] += 1
        elif is_skipped(test):
            counts["skipped"] += 1
            counts["without_gpu"] += lacks_gpu(test)
        else:
            counts["passed"] += 1
    return counts


def full_name(test):
    """Returns CTest's full name, or pytest's module and function."""
    name, place = test.get("name", ""), test.get("classname", "")
    return name if place in ("", name) else f"{place}.{name}"


def show_slowest(tests):
    timed = sorted(((float(test.get("time") or 0), full_name(test)) for test in tests), reverse=True)
    if timed:
        print("slowest tests:")
    for seconds, name in timed[:SLOWEST]:
        print(f"{seconds:8.1f} s  {name}")


def main(broken, paths):
    tests = [test for path in map(pathlib.Path, paths) for test in tests_in(path)]
    counts = count(tests)
    show_slowest(tests)
    failed = counts["failed"] + int(broken)
    without_gpu = counts["without_gpu"]
    note = f" ({without_gpu} for want of a GPU)" if without_gpu else ""
    print(f"{counts['passed']} passed, {failed} failed, {counts['skipped']} skipped{note}")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
