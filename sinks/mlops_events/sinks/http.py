"""A request to a destination that speaks HTTP: the answer, or the words for why there is none."""

from collections.abc import Mapping

import requests

from mlops_events.sinks.base import SinkUnavailable

__all__ = ["ask", "retry_after", "said"]

_SAID = 300
"""Characters of an answer that are told on."""
_CONNECT_S = 5.0


def ask(
    session: requests.Session,
    method: str,
    url: str,
    *,
    timeout_s: float,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> requests.Response:
    """Send a request and return the answer, whatever it is; redirects are not followed.

    Raises:
        SinkUnavailable: there is none.
    """
    try:
        return session.request(
            method,
            url,
            data=body,
            headers=headers,
            timeout=(min(_CONNECT_S, timeout_s), timeout_s),
            allow_redirects=False,
        )
    except (requests.RequestException, OSError) as error:
        session.close()  # what is left of the connections is of no use
        raise SinkUnavailable(f"no answer from {url}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Return what went wrong below the layers that wrap it."""
    inner = getattr(error.args[0], "reason", None) if error.args else None
    text = str(error if inner is None else inner)
    return text.rpartition("new connection: ")[2] or text


def said(response: requests.Response) -> str:
    """Return what a server answered, in words."""
    text = " ".join(response.text[: 10 * _SAID].split())[:_SAID]
    return f"answered {response.status_code}{f' ({text})' if text else ''}"


def retry_after(response: requests.Response) -> float | None:
    """Return the seconds that a server asks to be left alone, if it does."""
    try:
        return float(response.headers.get("Retry-After", ""))
    except ValueError:
        return None
