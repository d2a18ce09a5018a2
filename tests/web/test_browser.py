"""The page in a real browser, in front of a real edge with scripted engines."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.support.net import wait_until
from tests.web.conftest import Stack, Tabs

#: Milliseconds within which a change in the fleet must be on the page.
SOON = 3000


def state(page: Page, id_: str) -> str:
    return page.locator(f'tr[data-backend="{id_}"] .badge').inner_text()


def expect_state(page: Page, id_: str, word: str, timeout: float = SOON) -> None:
    expect(page.locator(f'tr[data-backend="{id_}"] .badge')).to_have_text(word, timeout=timeout)


def test_the_page_follows_an_engine_that_dies_and_returns(stack: Stack, tabs: Tabs) -> None:
    page = tabs.open(stack.url)
    expect(page.locator("#live")).to_have_text("Live")
    expect(page.locator("#part-summary")).to_have_text("2 of 2 backends ready")
    page.evaluate("window.notReloaded = true")

    stack.engines[1].kill()
    expect_state(page, "m-2", "down")
    expect(page.locator("#part-summary")).to_have_text("1 of 2 backends ready")
    expect(page.locator('tr[data-backend="m-2"]')).to_contain_text(re.compile("refused|failed|connect", re.I))
    assert state(page, "m-1") == "ready"

    stack.engines[1].start()
    expect_state(page, "m-2", "ready", 2 * SOON)
    assert page.evaluate("window.notReloaded"), "the page must not have been reloaded"


def test_requests_are_counted_live(stack: Stack, tabs: Tabs) -> None:
    page = tabs.open(stack.url)
    cells = page.locator("tr[data-backend] td:nth-child(6)")
    before = sum(map(int, cells.all_inner_texts()))
    for _ in range(4):
        assert stack.edge.chat({"model": "chat", "messages": [{"role": "user", "content": "hi"}]}).ok
    wait_until(
        "four more requests on the page",
        lambda: sum(map(int, cells.all_inner_texts())) == before + 4,
        SOON / 1000,
        every=0.1,
    )


def test_the_page_tells_when_the_edge_stops_and_starts(stack: Stack, tabs: Tabs) -> None:
    page = tabs.open(stack.url)
    expect(page.locator("#part-edge .badge")).to_have_text("runs")
    stack.edge.process.stop(quit=False)
    expect(page.locator("#part-edge")).to_contain_text("The edge does not run. Start it with: make run", timeout=SOON)
    expect_state(page, "m-1", "unknown")
    stack.edge.process.start()
    expect(page.locator("#part-edge .badge")).to_have_text("runs", timeout=SOON)
    expect_state(page, "m-1", "ready", 2 * SOON)


def test_a_page_whose_daemon_is_gone_says_so_and_recovers(stack: Stack, tabs: Tabs) -> None:
    page = tabs.open(stack.url)
    expect(page.locator("#live")).to_have_text("Live")
    assert stack.daemon.stop() == 0
    expect(page.locator("#live")).to_contain_text("No connection to the control plane", timeout=SOON)
    stack.daemon.start()
    expect(page.locator("#live")).to_have_text("Live", timeout=3 * SOON)
    # While the daemon is away, the browser itself reports each refused connection on the console.
    tabs.complaints[:] = [c for c in tabs.complaints if "ERR_CONNECTION_REFUSED" not in c and "ERR_INCOMPLETE" not in c]


@pytest.mark.parametrize(("locale", "word", "other"), [("en-GB", "ready", "中文"), ("zh-CN", "就绪", "English")])
def test_both_languages_and_the_switch(stack: Stack, tabs: Tabs, locale: str, word: str, other: str) -> None:
    page = tabs.open(stack.url, locale=locale)
    assert state(page, "m-1") == word
    page.get_by_text(other, exact=True).click()
    expect_state(page, "m-1", {"ready": "就绪", "就绪": "ready"}[word])
    expect(page.locator("#live")).to_have_text(re.compile("Live|实时"))
    expect_state(page, "m-1", {"ready": "就绪", "就绪": "ready"}[word])


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
@pytest.mark.parametrize("width", [360, 800, 1100])
def test_nothing_scrolls_sideways(ugly_page: str, tabs: Tabs, width: int, locale: str) -> None:
    page = tabs.open(ugly_page, width, locale=locale)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    inside = "[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth).length"
    assert page.evaluate(inside) == 0, "nothing may stick out"


def test_without_javascript_the_page_still_lists_the_backends(stack: Stack, tabs: Tabs) -> None:
    page = tabs.open(stack.url, java_script_enabled=False)
    assert page.locator("tr[data-backend] .badge").all_inner_texts() == ["ready", "ready"]
    assert "reload it for newer facts" in page.locator(".notice").inner_text()
    assert not page.locator("#live").is_visible()


def test_by_keyboard_the_first_stop_skips_to_the_backends(stack: Stack, tabs: Tabs) -> None:
    page = tabs.open(stack.url)
    page.keyboard.press("Tab")
    skip = page.locator(".skip")
    expect(skip).to_be_focused()
    assert skip.bounding_box()["x"] >= 0, "visible once focused"  # type: ignore[index]
    assert page.evaluate("getComputedStyle(document.activeElement).outlineWidth") == "3px"


def test_screen_readers_meet_tables_at_every_width(stack: Stack, tabs: Tabs) -> None:
    for width in (360, 1280):
        page = tabs.open(stack.url, width)
        table = page.get_by_role("table", name="Every engine of the fleet")
        assert table.get_by_role("row").count() == 3
        assert table.get_by_role("columnheader").count() == 8
        assert table.get_by_role("rowheader").all_inner_texts()[0].startswith("m-1")


def test_what_an_engine_reports_is_shown_as_text(tabs: Tabs, evil_page: str) -> None:
    page = tabs.open(evil_page)
    expect(page.locator("#live")).to_have_text("Live")  # by now the stream has replaced the tables
    expect(page.locator('tr[data-backend="m-1"]')).to_contain_text("<img src=x onerror=alert(1)>")
    assert page.locator("main img, main script").count() == 0
