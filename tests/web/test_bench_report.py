"""The report of a bench run in a real browser: everything is there to see, and nothing is asked of anybody."""

from __future__ import annotations

import json
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from control.bench.records import Request
from control.bench.report import page as report
from control.bench.results import Run
from tests.support.net import REPOSITORY
from tests.web.conftest import Tabs

EXAMPLE = REPOSITORY / "tests" / "bench" / "data" / "run.json"
EVIL = "<img src=x onerror=alert(1)>"


def write(folder: Path) -> str:
    """A report of the example with requests for one pass and names that are markup; its address."""
    content = json.loads(EXAMPLE.read_text())
    content["warnings"].append(EVIL + "x" * 300)
    content["variants"][2]["arguments"] = ["--served-model-name", EVIL, "y" * 200]
    run = Run.model_validate_json(json.dumps(content))
    began = run.passes[0].started
    gaps = [0.02] * 10 + [0.9] + [0.02] * 10
    requests = [Request(id=str(at), group="short", conversation="short:1", turn=0, due=began + at, started=began + at,
                        e2e=2.0, ttft=0.1, itl=gaps) for at in range(30)]  # fmt: skip
    file = folder / "report.html"
    file.write_text(report.report(run, {0: requests}))
    return file.as_uri()


def check_plots(page: Page) -> None:
    """Every plot that is not folded away, and every line in it, takes room inside its figure and the window."""
    plots = page.locator("details[open] svg.plot, .plots:not(details *) svg.plot").all()
    assert len(plots) == 8 + 3, "four metrics, TTFT and ITL of two groups, one timeline for each variant"
    for plot in plots:
        box = plot.bounding_box()
        assert box is not None and box["width"] > 200 and box["height"] > 120, box
        lines = plot.locator("path.series").all()
        assert len(lines) >= 3
        for line in lines:
            drawn = line.bounding_box()
            assert drawn is not None and drawn["width"] > 1
            assert box["x"] <= drawn["x"] and drawn["x"] + drawn["width"] <= box["x"] + box["width"] + 1
            assert box["y"] <= drawn["y"] + 1 and drawn["y"] + drawn["height"] <= box["y"] + box["height"] + 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "no scrolling sideways"


def check_reading(page: Page) -> None:
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_a_report_can_be_read_everywhere_and_asks_nobody(tabs: Tabs, tmp_path: Path) -> None:
    url = write(tmp_path)
    asked: list[str] = []
    light = tabs.open("about:blank")
    light.on("request", lambda request: asked.append(request.url))
    light.goto(url)
    check_plots(light)
    check_reading(light)
    assert light.locator("img").count() == 0 and light.get_by_text(EVIL).count() >= 1
    assert light.locator(".troubles").bounding_box()["y"] < light.locator(".cards").bounding_box()["y"]  # type: ignore[index]
    bands = light.locator("svg.plot .mark").first
    assert "2,100 tokens: first token after 1.41 s" in (bands.locator("title").text_content() or "")
    assert asked == [url], "nothing but the page itself"

    dark = tabs.open(url, color_scheme="dark", java_script_enabled=True)
    check_reading(dark)
    narrow = tabs.open(url, width=360)
    check_plots(narrow)
    table = narrow.locator(".wide").first
    assert table.evaluate("one => one.scrollWidth > one.clientWidth"), "a wide table scrolls by itself"

    light.emulate_media(media="print")
    folded = light.locator("details:not([open]) svg.plot").first.bounding_box()
    assert folded is not None and folded["height"] > 120, "what is folded away is printed all the same"
    assert not light.locator("details.long table").first.is_visible(), "but for tables that would take pages"
