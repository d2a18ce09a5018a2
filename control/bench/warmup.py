"""Requests before a pass: engines compile, page in and reach their speed. Their prompts are nobody else's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import requests
import urllib3

from control.bench import prompts
from control.bench.results import Way
from control.bench.stand import Server, Stand
from control.bench.workload import Workload
from control.errors import BenchRunError

_TIMEOUT = (10.0, 300.0)


def warm_up(serving: Stand, way: Way, workload: Workload, server: Server | None, text: int) -> None:
    """Send every engine some requests of each group's length. Raises BenchRunError when none is answered."""
    ratio = server.tokens_per_word if server else 1.3
    bodies = prompts.warm_up(workload, serving.name(way), text, ratio, 4 * len(serving.backends))
    urls, key, given = serving.urls(way), serving.key(way), serving.verify(way)
    verify = str(given) if isinstance(given, Path) else given
    if given is False:
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)

    def send(number: int, body: dict[str, Any]) -> str:
        with requests.Session() as session:
            session.trust_env = False
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            url = f"{urls[number % len(urls)]}/v1/chat/completions"
            try:
                answer = session.post(url, json=body, headers=headers, timeout=_TIMEOUT, verify=verify)
            except requests.RequestException as error:
                return f"{url}: {error}"[:300]
            return "" if answer.status_code == 200 else f"{url}: {answer.status_code} {answer.text}"[:300]

    pool = ThreadPoolExecutor(4)
    try:
        wrong = list(pool.map(send, range(len(bodies)), bodies))
    finally:  # Ctrl-C does not wait for answers
        pool.shutdown(wait=False, cancel_futures=True)
    if all(wrong):
        raise BenchRunError(
            f"No request of the warm-up was answered: {wrong[0]}", "Send one yourself; is the model ready?"
        )
