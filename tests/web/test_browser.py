"""The page in a real browser, in front of a real edge with scripted engines."""

from __future__ import annotations

import contextlib
import re
import time

import pytest
import requests
from axe_playwright_python.sync_playwright import Axe
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
    page = tabs.open(stack.url + "/backends")
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


def test_requests_are_counted_and_shown_with_where_their_time_went(stack: Stack, tabs: Tabs) -> None:
    page = tabs.open(stack.url + "/backends")
    cells = page.locator("tr[data-backend] td:nth-child(4) .under")

    def done() -> int:
        return sum(int(text.split()[0]) for text in cells.all_inner_texts())

    before = done()
    for _ in range(4):
        assert stack.edge.chat({"model": "chat", "messages": [{"role": "user", "content": "never on a page"}]}).ok
    wait_until("four more requests on the page", lambda: done() == before + 4, SOON / 1000, every=0.1)
    page.get_by_role("link", name="Requests").click()
    first = page.locator("#finished tbody tr").first
    expect(first).to_contain_text("complete", timeout=SOON)
    expect(first.locator("svg.waterfall")).to_have_count(1)
    assert "never on a page" not in page.content()
    traffic = requests.get(stack.url + "/api/overview", timeout=5).json()["traffic"]
    wait_until(
        "rates of the model",
        lambda: "m" in (traffic or requests.get(stack.url + "/api/overview", timeout=5).json()["traffic"]),
        15,
    )


def test_a_running_request_is_seen_and_cancelled(stack: Stack, tabs: Tabs) -> None:
    page = tabs.open(stack.url + "/requests")
    slow = {"delay_ms": 200, "tokens": 500}
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "long"}], "scripted": slow}
    with requests.post(
        f"http://127.0.0.1:{stack.edge.port}/v1/chat/completions",
        json=body, headers={"X-Request-Id": "from-the-test"}, stream=True, timeout=20,
    ) as answer:  # fmt: skip
        row = page.locator('tr[data-request="from-the-test"]')
        expect(row).to_contain_text("decode", timeout=SOON)
        expect(row).to_contain_text(re.compile("m-[12]"))
        row.get_by_role("button", name="Cancel").click()
        expect(page.locator(".notice.done")).to_contain_text("It ends at its next byte.")
        with contextlib.suppress(requests.RequestException):
            for _ in answer.iter_lines():
                pass
    expect(page.locator("#finished tbody tr").first).to_contain_text("cancelled", timeout=2 * SOON)


def test_a_backend_is_drained_and_resumed_by_keyboard(stack: Stack, tabs: Tabs) -> None:
    page = tabs.open(stack.url + "/backends")
    drain = page.locator("#drain-m-1")
    drain.focus()
    for _ in range(4):  # the row is renewed every second while it is young, and the focus stays
        stack.edge.chat({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
        page.wait_for_timeout(400)
    expect(drain).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".notice.done")).to_contain_text("m-1 gets no new requests")
    expect_state(page, "m-1", "draining")
    expect(page.locator('tr[data-backend="m-1"]')).to_contain_text("kept from new requests by an operator")
    page.goto(stack.url + "/backends/m-1")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#part-head")).to_have_attribute("data-state", "ready", timeout=SOON)
    assert page.url == stack.url + "/backends/m-1", "an action comes back to where it was"


def test_the_page_tells_when_the_edge_stops_and_starts(stack: Stack, tabs: Tabs) -> None:
    page = tabs.open(stack.url)
    expect(page.locator("#part-edge .badge")).to_have_text("runs")
    stack.edge.process.stop(quit=False)
    expect(page.locator("#part-edge")).to_contain_text("The edge does not run. Start it with: make run", timeout=SOON)
    expect(page.locator("#part-troubles li.error").first).to_contain_text("The edge does not run")
    stack.edge.process.start()
    expect(page.locator("#part-edge .badge")).to_have_text("runs", timeout=SOON)
    expect(page.locator("#part-summary")).to_have_text("2 of 2 backends ready", timeout=2 * SOON)
    expect(page.locator("#part-troubles")).to_contain_text("everything runs as it should", timeout=SOON)


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
    page = tabs.open(stack.url + "/backends", locale=locale)
    assert state(page, "m-1") == word
    page.get_by_text(other, exact=True).click()
    expect_state(page, "m-1", {"ready": "就绪", "就绪": "ready"}[word])
    expect(page.locator("#live")).to_have_text(re.compile("Live|实时"))
    expect_state(page, "m-1", {"ready": "就绪", "就绪": "ready"}[word])


PATHS = ("", "backends", f"backends/{'a' * 64}", "requests", "keys", "login")


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_nothing_scrolls_sideways(ugly_page: str, tabs: Tabs, locale: str) -> None:
    inside = """[...document.querySelectorAll('main *')]
        .filter(e => e.getBoundingClientRect().right > innerWidth + 0.5 && !e.closest('pre, .plot, .hidden'))
        .map(e => e.outerHTML.slice(0, 80))"""
    page = tabs.open(ugly_page, locale=locale)
    for path in PATHS:
        page.goto(ugly_page + path)
        for width in (360, 800, 1100):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
            assert page.evaluate(inside) == [], f"nothing may stick out of {path} at {width}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_that_stands_in_somebodys_way(ugly_page: str, tabs: Tabs, scheme: str) -> None:
    page = tabs.open(ugly_page, color_scheme=scheme)
    for path in PATHS:
        page.goto(ugly_page + path)
        everything = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
        contrast = {"type": "rule", "values": ["color-contrast"]}  # all that the theme changes
        found = Axe().run(page, options={"runOnly": everything if scheme == "light" else contrast})
        assert found.violations_count == 0, f"{path}: {found.generate_report()}"


def test_the_first_page_is_small_and_quick(stack: Stack, tabs: Tabs) -> None:
    page = tabs.open(stack.url)
    sizes = page.evaluate(
        "performance.getEntries().filter(e => !e.name.includes('/api/')).map(e => e.encodedBodySize || 0)"
    )
    assert sum(sizes) < 100_000, sizes
    began = time.monotonic()
    assert requests.get(stack.url, timeout=5).ok
    assert time.monotonic() - began < 1.0, "0.2 s on a machine that does nothing else"


def test_times_are_the_viewers(stack: Stack, tabs: Tabs) -> None:
    stack.edge.chat({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
    wait_until("a finished request", lambda: requests.get(stack.url + "/api/requests", timeout=5).json()["finished"], 5)
    shown = []
    for zone in ("Asia/Shanghai", "America/Lima"):
        page = tabs.open(stack.url + "/requests", timezone_id=zone)
        clock = page.locator("#finished time[data-clock]").last
        shown.append((clock.get_attribute("datetime"), clock.inner_text()))
    assert shown[0][0] == shown[1][0] and shown[0][1][3:] == shown[1][1][3:]
    assert (int(shown[0][1][:2]) - int(shown[1][1][:2])) % 24 == 13


def test_without_javascript_the_page_still_lists_the_backends(stack: Stack, tabs: Tabs) -> None:
    page = tabs.open(stack.url + "/backends", java_script_enabled=False)
    assert page.locator("tr[data-backend] .badge").all_inner_texts() == ["ready", "ready"]
    assert "reload it for newer facts" in page.locator(".notice").inner_text()
    assert not page.locator("#live").is_visible()
    page.get_by_label("Search").fill("m-2")
    page.get_by_role("button", name="Show").click()
    assert page.locator("tr[data-backend] .badge").count() == 1
    page.locator("#drain-m-2").click()
    assert "m-2 gets no new requests" in page.locator(".notice.done").inner_text()
    page.goto(stack.url + "/backends/m-2")
    page.get_by_role("button", name="Resume").click()
    assert "m-2 gets requests again" in page.locator(".notice.done").inner_text()


def test_by_keyboard_the_first_stop_skips_to_the_content(stack: Stack, tabs: Tabs) -> None:
    page = tabs.open(stack.url)
    page.keyboard.press("Tab")
    skip = page.locator(".skip")
    expect(skip).to_be_focused()
    assert skip.bounding_box()["x"] >= 0, "visible once focused"  # type: ignore[index]
    assert page.evaluate("getComputedStyle(document.activeElement).outlineWidth") == "3px"


def test_screen_readers_meet_tables_at_every_width(stack: Stack, tabs: Tabs) -> None:
    for width in (360, 1280):
        page = tabs.open(stack.url + "/backends", width)
        table = page.get_by_role("table", name="Every engine of the fleet")
        assert table.get_by_role("row").count() == 3
        assert table.get_by_role("columnheader").count() == 9
        assert table.get_by_role("rowheader").all_inner_texts()[0].startswith("m-1")


def test_what_an_engine_reports_is_shown_as_text(tabs: Tabs, evil_page: str) -> None:
    page = tabs.open(evil_page)
    for path, where in (("backends", 'tr[data-backend="m-1"]'), ("backends/m-1", "#part-head"), ("", "#part-troubles")):
        page.goto(evil_page + path)
        expect(page.locator("#live")).to_have_text("Live")  # by now the stream has replaced the page
        expect(page.locator(where)).to_contain_text("<img src=x onerror=alert(1)>")
        assert page.locator("main img, main script").count() == 0


def test_logging_in_and_out(tabs: Tabs, asking_page: str) -> None:
    page = tabs.open(asking_page + "backends?state=ready")
    page.get_by_label("Name").fill("alice")
    page.get_by_label("Password").fill("wrong horse")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("This name and password do not match.")
    page.get_by_label("Name").fill("alice")
    page.get_by_label("Password").fill("correct horse")
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("#live")).to_have_text("Live")
    assert page.url == asking_page + "backends?state=ready", "to where the reader wanted to go"
    assert page.evaluate("document.cookie") == "", "no script sees the session"
    page.get_by_role("button", name="Log out alice").click()
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    page.goto(asking_page)
    assert "/login?" in page.url
    tabs.complaints[:] = [c for c in tabs.complaints if "401" not in c]  # the browser reports the wrong password
