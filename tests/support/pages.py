"""Pages read over HTTP, as a browser or a probe reads them."""

from __future__ import annotations

from base64 import b64encode
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen


def page(url: str, credentials: str = "", *, token: str = "", data: bytes | None = None) -> tuple[int, str]:
    """Return the status and the text of a page; status 0 where nobody answers.

    Args:
        url: its address.
        credentials: ``user:password``, or an empty text to give none.
        token: a token to give in their place.
        data: what to send by POST.
    """
    headers = {"Authorization": f"Basic {b64encode(credentials.encode()).decode()}"} if credentials else {}
    if token:
        headers = {"Authorization": f"Bearer {token}"}
    try:
        with urlopen(Request(url, data=data, headers=headers), timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except (URLError, ConnectionError):
        return 0, ""
