"""Keys, passwords and signatures in a text, blotted out: whatever repeats a URL or an exception may hold one."""

from __future__ import annotations

import re

_END = r"\s\"'\\<>"  # what ends a URL in a text, also in one of JSON
# name:password@, where the password may hold a slash, as the secret keys of S3 do; host:port/ is no such thing.
_USER = re.compile(rf"(?<=://)(?:[^{_END}/?#]*@|[^{_END}/@?#]+:(?!\d{{1,5}}/)[^{_END}@]*@)")
# All of a query: who signs a URL chooses the names.
_QUERY = re.compile(rf"(://[^{_END}?#]*)(?:\?[^{_END}]+|#[^{_END}]*=[^{_END}]*)")
_SECRET_NAMES = (
    r"sig|[\w.-]*(?:signature|token|secret|passw|credential|api[-_]?key|access[-_]?key|account[-_]?key)[\w.-]*"
)
_PARAMETER = re.compile(rf"(?i)([?&;](?:{_SECRET_NAMES}|key|googleaccessid)=)[^{_END}&;]+")
_VARIABLE = re.compile(
    rf"\b((?:[A-Z0-9_]*(?:SECRET|TOKEN|PASSWORD|ACCESS_KEY|API_KEY)[A-Z0-9_]*|AccountKey|aws_secret_access_key)=)[^{_END};]+"
)
_BEARER = re.compile(rf"(?i)\b(bearer|basic)[ \t]+(?=[^{_END}]*[\d.=/+_-])[^{_END}]{{16,}}")


def masked(text: str) -> str:
    """The text without passwords, keys and queries of URLs, such as a user's own argument that an error repeats."""
    if "://" in text:
        text = _QUERY.sub(r"\1?…", _USER.sub("…@", text))
    text = _VARIABLE.sub(r"\1…", _PARAMETER.sub(r"\1…", text))
    return _BEARER.sub(r"\1 …", text)


def holds_credentials(url: str) -> bool:
    """Whether something in a URL would be masked."""
    return "://" in url and masked(url) != url
