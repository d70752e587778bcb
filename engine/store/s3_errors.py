"""Errors of S3: the error code behind an exception of the client, and what the user should do.

The client has a type for a missing object and for an object that is there, and text for everything else. The text is
parsed here alone, and tested in `tests/s3/test_s3_surface.py`; where it says nothing, an answer counts as unclear.
"""

from __future__ import annotations

import re

HINTS = {
    "NoSuchBucket": "the bucket does not exist: create it first, or check its name and the endpoint",
    "AccessDenied": "access denied: check that the credentials may read and write this prefix",
    "Forbidden": "access denied: check that the credentials may read and write this prefix",
    "403": "access denied: check that the credentials may read and write this prefix",
    "InvalidAccessKeyId": "the access key is not known: check AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "the secret key is wrong: check AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "the session token has expired: get new credentials",
    "PermanentRedirect": "the bucket is in another region: set AWS_REGION",
    "SlowDown": "the store is throttling: try again later",
}
PRECONDITION_FAILED = "412"
NO_CREDENTIALS = "NoCredentials"

_ANSWER = re.compile(r"Server returned non-2xx status code: (?P<status>\d{3})(?P<body>.*)", re.DOTALL)
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE = re.compile(r"<Message>(.*?)</Message>", re.DOTALL)
_REFUSED_DELETE = re.compile(r"DeleteObjects request failed for key .*\(code: (\w+)\)", re.DOTALL)
_NO_PROVIDER = re.compile(r"External AWS credential provider: (?:\w+: )?(.*)", re.DOTALL)


def status_of(error: BaseException) -> str:
    """The HTTP status of a refusal; empty if there was no answer."""
    found = _ANSWER.search(_said(error))
    return found["status"] if found else ""


def code_of(error: BaseException) -> str:
    """The S3 error code of a refusal, else its HTTP status; empty if there was no answer."""
    text = _said(error)
    if "Received redirect without LOCATION" in text:
        return "PermanentRedirect"
    if _NO_PROVIDER.search(text):
        return NO_CREDENTIALS
    if refused := _REFUSED_DELETE.search(text):
        return refused[1]
    answer = _ANSWER.search(text)
    if answer is None:
        return ""
    code = _CODE.search(answer["body"])
    return code[1] if code else answer["status"]


def is_clear_refusal(code: str) -> bool:
    """Whether a request that was answered with this code can't have written anything."""
    return code == NO_CREDENTIALS or (code in HINTS and code != "SlowDown")


def advice(error: BaseException) -> str:
    """What to do about an error, else what the store said. Bodies are left out: they may show what was signed."""
    text, code = _said(error), code_of(error)
    if code in HINTS:
        return HINTS[code]
    if failed := _NO_PROVIDER.search(text):
        return f"no credentials: {failed[1]}"
    if code:
        message = _MESSAGE.search(text)
        return f"{code}: {message[1]}" if message else code
    return text or type(error).__name__


def _said(error: BaseException) -> str:
    return str(error).partition("\n\nDebug source:")[0].strip()
