"""The page's words in English and Chinese. A small dictionary, no framework; texts_en.py and texts_zh.py have them."""

from __future__ import annotations

from collections.abc import Mapping

from flask import has_request_context, request

from control.web.formats import NONE
from control.web.texts_en import EN
from control.web.texts_zh import PROCESS_ZH, ZH

LANGUAGES = ("en", "zh")
TEXTS: Mapping[str, Mapping[str, str]] = {"en": EN, "zh": ZH}
#: Remembers the reader's choice.
LANGUAGE_COOKIE = "signalbox-language"


class Words:
    """The texts of one language. ``words("key", n=3)`` fills the gaps; an unknown key is a KeyError."""

    def __init__(self, language: str) -> None:
        self.language = language if language in TEXTS else "en"
        self._texts = TEXTS[self.language]

    def __call__(self, key: str, **values: object) -> str:
        return self._texts[key].format(**values) if values else self._texts[key]

    def known(self, prefix: str, word: str) -> str:
        """The text ``prefix_word``; a word that we have no text for stays as it is."""
        return self._texts.get(f"{prefix}_{word}", word)

    def process(self, text: str) -> str:
        """A word of the supervisor (state or phase of a process) in this language."""
        return PROCESS_ZH.get(text, text) if self.language == "zh" else text

    def ago(self, since: float | None, now: float) -> str:
        """How long ago, in the largest unit that fits; both in Unix seconds."""
        if since is None:
            return NONE
        seconds = max(0, int(now - since))
        for limit, unit, key in ((2, 1, "ago_now"), (60, 1, "ago_s"), (3600, 60, "ago_min"), (86400, 3600, "ago_h")):
            if seconds < limit:
                return self(key, n=seconds // unit)
        return self("ago_d", n=seconds // 86400)


def language() -> str:
    """``?lang=`` when it is one of ours, else what was chosen before, else the browser's preference, else English."""
    if not has_request_context():
        return "en"
    for wanted in (request.args.get("lang"), request.cookies.get(LANGUAGE_COOKIE)):
        if wanted in LANGUAGES:
            return wanted
    return request.accept_languages.best_match(LANGUAGES, "en") or "en"
