"""How an object store is reached: settings of the environment, checked, and the options that obstore gets from them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from obstore.exceptions import BaseError
from obstore.store import from_url

from landscape.core.errors import JobError, shown
from landscape.core.refusals import store_error

REQUEST_SECONDS = 30.0  # without a byte, until a request is given up and tried again
RETRY_SECONDS = 180.0  # until one that fails for ever is an error; credentials may expire after 5 minutes
SLOWEST = 20  # times longer may a request take as a whole: a large chunk on a slow line
FIRST_WAIT = 0.1  # between two tries


def time_limits(settings: Mapping[str, str]) -> tuple[float, float]:
    """Seconds for one request, and for a request with all its repetitions."""
    return (
        _seconds(settings, "LANDSCAPE_STORE_TIMEOUT", REQUEST_SECONDS),
        _seconds(settings, "LANDSCAPE_STORE_RETRY", RETRY_SECONDS),
    )


def _refuse_endpoints(settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        if "ENDPOINT" not in name and "BASE_URL" not in name:
            continue
        parts = urlsplit(value)
        if "@" in parts.netloc:
            raise JobError(f"{name}: must not hold credentials; give them in the variables that are made for them")
        if parts.scheme == "http" and not _allows_http(settings):
            prefix = name.partition("_")[0]
            raise JobError(f"{name}: is plain http, which is refused unless {prefix}_ALLOW_HTTP=true is set as well")


def _allows_http(settings: Mapping[str, str]) -> bool:
    return any(k.endswith("_ALLOW_HTTP") and v.lower() in ("1", "true", "yes", "on") for k, v in settings.items())


def _seconds(settings: Mapping[str, str], name: str, default: float) -> float:
    try:
        value = float(settings.get(name, default))
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise JobError(f"{name}: must be a number of seconds above 0, not {shown(settings[name])}")
    return value


def make_store(url: str, settings: Mapping[str, str], seconds: float, retry: float) -> Any:
    """obstore's own store; credentials, endpoint and region are the environment's, as each cloud names them.

    Raises:
        JobError: the store cannot be set up; says which setting is wrong.
    """
    _refuse_endpoints(settings)
    # Options given here replace those that obstore would read from the environment.
    client = {
        "allow_http": _allows_http(settings), "read_timeout": timedelta(seconds=seconds),
        "connect_timeout": timedelta(seconds=min(seconds, 5.0)), "timeout": timedelta(seconds=SLOWEST * seconds),
    }  # fmt: skip
    first = min(FIRST_WAIT, retry / 8)  # obstore dies where the longest wait is no longer than the first
    backoff = {
        "init_backoff": timedelta(seconds=first),
        "max_backoff": timedelta(seconds=min(15.0, max(0.3, retry / 4))),
    }
    retries: Any = {"max_retries": 1000, "retry_timeout": timedelta(seconds=retry), "backoff": backoff}
    config: Any = {"account_name": settings["AZURE_STORAGE_ACCOUNT"]} if "AZURE_STORAGE_ACCOUNT" in settings else None
    try:
        return from_url(url, config=config, client_options=client, retry_config=retries)  # type: ignore[call-overload]
    except (BaseError, ValueError) as error:
        raise JobError(f"run: {shown(url)} cannot be opened: {store_error(url, error, settings).reason}") from None
