"""The last question to an engine that starts: does it generate a token? Asked without waiting for the answer."""

from __future__ import annotations

import http.client
import json
import select

from control.engines.args import EngineSpec
from control.engines.health import read_key
from control.errors import EngineError

#: Answers that say "there is nothing to generate with here" (an embedding model, another server): no failure.
_NOT_OFFERED = range(400, 500)
#: But these say that it cannot be told yet.
_LATER = (408, 429)
_ANSWER_LIMIT = 1024 * 1024


class FirstToken:
    """One token of the model. ``look`` as often as you like, until it says that nothing is missing; then ``close``."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._connection: http.client.HTTPConnection | None = None
        #: What the last answer was, while the next one is waited for.
        self._refusal = ""

    def look(self, timeout: float = 2.0) -> str:
        """What is missing still; empty once the token is there. Waits for nothing but the network (``timeout``)."""
        try:
            if self._connection is None:
                self._ask(timeout)
            if not self._answers():
                return self._refusal or "no token generated yet"
            self._refusal = self._answer()
            return self._refusal
        except EngineError as error:
            return f"{error.message} {error.hint}"
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return f"asked for a token, it does not answer: {error}"

    def close(self) -> None:
        """Give up a question that is still open: the engine ends that request."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, timeout: float) -> None:
        spec = self._spec
        key = read_key(spec)
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        body = {"model": spec.model, "prompt": "1", "max_tokens": 1, "temperature": 0}
        self._connection = http.client.HTTPConnection(spec.host, spec.port, timeout=timeout)
        self._connection.request("POST", "/v1/completions", json.dumps(body), headers)

    def _answers(self) -> bool:
        assert self._connection is not None
        # vLLM sends headers and body of such an answer at once, when the token is there.
        return bool(select.select([self._connection.sock], [], [], 0)[0])

    def _answer(self) -> str:
        assert self._connection is not None
        answer = self._connection.getresponse()
        text = answer.read(_ANSWER_LIMIT).decode(errors="replace")
        self.close()
        if answer.status == 200 or (answer.status in _NOT_OFFERED and answer.status not in _LATER):
            return ""
        return f"asked for a token, it answers {answer.status}: {text[:200]}"
