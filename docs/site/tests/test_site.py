"""The built site and a report like the demo's, in a browser.

Run scripts/docs before. Without Chromium, these tests are skipped.
"""

import pathlib
import subprocess
import sys
from collections.abc import Iterator

import browser
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
SITE = ROOT / "build" / "docs"
WIDTHS = (400, 1300)
RECORDS = ("train-fashion-mnist-1gbit.json", "allreduce-1gbit.json")

# Describes text outside the window, and text in a box that hides a part. A box may scroll.
CUT = """(() => {
  const width = document.documentElement.clientWidth, found = [];
  const whole = document.scrollingElement.scrollWidth;
  if (whole > width) found.push(`the page is ${whole} pixels wide`);
  const scrolls = (element) => {
    for (let at = element; at; at = at.parentElement)
      if (/auto|scroll/.test(getComputedStyle(at).overflowX) && at !== document.body) return true;
    return false;
  };
  for (const element of document.querySelectorAll('body *')) {
    const style = getComputedStyle(element), box = element.getBoundingClientRect();
    const text = (element.innerText || '').trim().slice(0, 40);
    if (!text || style.visibility === 'hidden' || box.width <= 1 || box.height <= 1) continue;
    if (box.left >= width || box.right <= 0) continue;  // a closed drawer
    const name = `<${element.localName} class="${element.className}">`;
    const hides = /hidden|clip/.test(style.overflowX);
    if (hides && element.scrollWidth > element.clientWidth + 1)
      found.push(`${name} hides a part of: ${text}`);
    const outside = box.right > width + 1 && element.children.length === 0 && !scrolls(element);
    if (outside) found.push(`${name} ends ${box.right - width} pixels outside: ${text}`);
  }
  return found;
})()"""


# The title under the pointer at the middle of each shape with a title, for each picture. A shape
# may cover the middle of another shape.
UNDER_POINTER = """[...document.querySelectorAll('figure svg')].map((picture) => {
  picture.scrollIntoView();
  const titled = [...picture.querySelectorAll('title')];
  return [titled.length, titled.filter((title) => {
    const box = title.parentElement.getBoundingClientRect();
    const x = box.left + box.width / 2, y = box.top + box.height / 2;
    return document.elementFromPoint(x, y)?.closest('g:has(> title)') === title.parentElement;
  }).length];
})"""
COLOURS = """(() => {
  const texts = [...document.querySelectorAll('figure svg text')];
  const paper = document.querySelector('figure svg path');
  return [getComputedStyle(document.body).backgroundColor, getComputedStyle(paper).fill,
          getComputedStyle(texts[0]).fill];
})()"""


@pytest.fixture(scope="module")
def page() -> Iterator[browser.Page]:
    program = browser.find()
    if program is None:
        pytest.skip("no Chromium: scripts/setup --site-tests installs the browser")
    with browser.running(program) as running:
        yield browser.Page(running)


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    assert (SITE / "index.html").exists(), "run scripts/docs first"
    with browser.served(SITE) as address:
        yield address


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("report")
    files = [ROOT / "bench" / "results" / name for name in RECORDS]
    program = ROOT / "bench" / "report" / "tersor_report.py"
    subprocess.run([sys.executable, program, *files, "--output", folder], check=True)
    with browser.served(folder) as address:
        yield address


def faults_of(page: browser.Page, server: str, path: str, width: int) -> list[str]:
    """Returns cut text, errors of the console, and requests to other servers."""
    page.visit(f"{server}/{path}", width)
    outside = [url for url in page.addresses if not url.startswith((server, "data:"))]
    return [*page.evaluate(CUT), *page.errors, *outside]


@pytest.mark.parametrize("width", WIDTHS)
def test_every_page(page: browser.Page, site: str, width: int) -> None:
    paths = sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html"))
    assert "reference/python/tersor.torch.html" in paths
    faults = {path: found for path in paths if (found := faults_of(page, site, path, width))}
    assert faults == {}


@pytest.mark.parametrize("width", WIDTHS)
def test_report(page: browser.Page, report: str, width: int) -> None:
    assert faults_of(page, report, "index.html", width) == []


def test_the_report_shows_values_under_the_pointer(page: browser.Page, report: str) -> None:
    page.visit(f"{report}/index.html", 1300)
    for titles, shown in page.evaluate(UNDER_POINTER):
        assert titles >= 5
        assert shown >= titles / 2, (titles, shown)


def test_the_report_follows_the_theme(page: browser.Page, report: str) -> None:
    white, dark, ink, light = ("rgb(255, 255, 255)", "rgb(13, 17, 23)", "rgb(31, 35, 40)",
                               "rgb(230, 237, 243)")  # fmt: skip
    for theme, colours in (("light", [white, white, ink]), ("dark", [dark, dark, light])):
        page.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": theme}],
        )
        page.visit(f"{report}/index.html", 1300)
        assert page.evaluate(COLOURS) == colours
    page.call("Emulation.setEmulatedMedia", features=[])


def test_search_finds_a_page_of_each_language(page: browser.Page, site: str) -> None:
    for word, path in (("compress", "tersor.torch.html"), ("GradientReducer", "reducer.html")):
        page.visit(f"{site}/search.html?q={word}", 1300)
        page.wait_for(  # results appear one after another
            "[...document.querySelectorAll('#search-results li a')]"
            f".some(a => a.href.includes('{path}'))"
        )
        assert page.errors == []


def test_clipped_text_is_detected(page: browser.Page) -> None:
    page.visit("data:text/html,<div style='width:5px;overflow:hidden'>longlonglong</div>", 400)
    assert "hides a part" in page.evaluate(CUT)[0]
    page.visit("data:text/html,<div style='width:900px'>wide</div>", 400)
    assert "the page is 9" in page.evaluate(CUT)[0]
    page.visit("data:text/html,<div style='width:50px;overflow:auto'>longlonglonglong</div>", 400)
    assert page.evaluate(CUT) == []


def test_console_errors_and_requests_are_recorded(page: browser.Page) -> None:
    page.visit(
        "data:text/html,<img src='http://127.0.0.1:9/x.png'><script>console.error('no')</script>",
        400,
    )
    assert any("no" in error for error in page.errors)
    assert "http://127.0.0.1:9/x.png" in page.addresses
