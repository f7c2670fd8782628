"""What an object store's refusal means, in one line that holds no secret."""

from __future__ import annotations

import re
from collections.abc import Mapping

from landscape.core.errors import StoreError, shown

_SECRET = re.compile(r"SECRET|KEY|TOKEN|PASSWORD|SIGNATURE|SAS|CREDENTIAL", re.IGNORECASE)
_CREDENTIALS = re.compile(r"KEY|TOKEN|CREDENTIAL|SERVICE_ACCOUNT|CLIENT_ID|SKIP_SIGNATURE")
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist", re.IGNORECASE)
_ASKS_MACHINE = re.compile(r"169\.254\.169\.254|metadata\.google|/metadata/identity|instance.?metadata", re.IGNORECASE)
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (profiles in ~/.aws are not read)",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}


def has_credentials(settings: Mapping[str, str]) -> bool:
    """Whether the environment names any; else the machine itself is asked for its own."""
    return any(value and _CREDENTIALS.search(name) for name, value in settings.items())


def missing_bucket(error: BaseException) -> bool:
    """Whether it is the whole bucket that is not there, and not an object in it: both are answered by 404."""
    return _NO_BUCKET.search(str(error)) is not None


def beyond_end(error: BaseException) -> bool:
    """Whether a range was asked for that begins where the object has ended."""
    return re.search(r"\b416\b|InvalidRange", str(error)) is not None


def store_error(name: str, error: BaseException, settings: Mapping[str, str]) -> StoreError:
    """What obstore raised, with its remedy."""
    text = str(error)
    scheme = name.partition("://")[0]
    variables = CREDENTIALS.get(
        {"s3a": "s3"}.get(scheme, "az" if scheme.startswith("a") else scheme), "the credentials"
    )
    kind = type(error).__name__
    reason = _reason(text, settings)
    if missing_bucket(error):
        reason, remedy = "there is no such bucket", "make it or name another"
    elif _ASKS_MACHINE.search(text):
        reason, remedy = "no credentials were found", f"set {variables}"
    elif kind in ("PermissionDeniedError", "UnauthenticatedError"):
        reason, remedy = f"access is refused ({reason})", f"mend {variables}, or what they are allowed to do"
    else:
        remedy = "see that it answers"
    return StoreError(
        f"store {shown(name)}: {reason}; what was committed is intact: {remedy}, then give the same command again",
        reason=reason,
        passing=kind == "GenericError" and "HTTP error" in text and "builder error" not in text,
    )


def _reason(text: str, settings: Mapping[str, str]) -> str:
    """The cause alone: what was asked and answered, without URLs and the library's own view of it."""
    code = re.search(r"<Code>(\w+)</Code>", text)
    line = text.partition("\n")[0]
    method = re.search(r"Error performing ([A-Z]+) ", line)
    line = re.sub(r"^.*(?:HTTP error|status code): ?|^Generic \w+ error: ?", "", line)
    line = re.sub(r"<.*", "", line)
    line = re.sub(r"\w+://\S+", "(its address)", line).strip(" :.")
    for name, value in settings.items():
        if len(value) > 3 and _SECRET.search(name):
            line = line.replace(value, "…")
    named = f"{line} ({code[1]})" if code else line
    return f"{method[1]}: {named}"[:200] if method else named[:200]
