"""The options of an S3 store: one set for Lance and for us, so that both speak to the same store as the same user.

Both sit on the same `object_store` crate and read the same names: `aws_endpoint`, `aws_access_key_id`, `proxy_url`,
`timeout` and so on, given as `storage_options` or as environment variables. Contradictions are resolved here, before
either sees them.
"""

from __future__ import annotations

from collections.abc import Mapping

from omniray.engine.base.errors import InputError

DEFAULT_REGION = "us-east-1"

# The names under which the options are known in the environment, in order of preference.
_ENVIRONMENT = {
    "aws_endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "aws_access_key_id": ("AWS_ACCESS_KEY_ID",),
    "aws_secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
    "aws_session_token": ("AWS_SESSION_TOKEN", "AWS_TOKEN"),
    "aws_region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
}
_CREDENTIALS = {"aws_access_key_id", "aws_secret_access_key", "aws_session_token"}
_ALIASES = {
    "endpoint": "aws_endpoint",
    "endpoint_url": "aws_endpoint",
    "aws_endpoint_url": "aws_endpoint",
    "aws_endpoint_url_s3": "aws_endpoint",
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
    "token": "aws_session_token",
    "aws_token": "aws_session_token",
    "region": "aws_region",
    "default_region": "aws_region",
    "aws_default_region": "aws_region",
    "skip_signature": "aws_skip_signature",
    "aws_allow_http": "allow_http",
}


def resolve_options(
    given: Mapping[str, str], environment: Mapping[str, str], profile: Mapping[str, str] | None = None
) -> dict[str, str]:
    """One set of options for Lance and for us: those given, else the environment's, else the profile's."""
    # The more specific name of an endpoint comes last, so it wins.
    lowered = ((name.lower(), str(value)) for name, value in given.items())
    ordered = sorted(lowered, key=lambda option: option[0] == "aws_endpoint_url_s3")
    options = {_ALIASES.get(name, name): value for name, value in ordered}
    # A key goes with its own secret and token, never with those of another key.
    own_key = options.get("aws_access_key_id", environment.get("AWS_ACCESS_KEY_ID")) != environment.get(
        "AWS_ACCESS_KEY_ID"
    )
    for name, variables in _ENVIRONMENT.items():
        if own_key and name in _CREDENTIALS:
            continue
        found = next((environment[v] for v in variables if environment.get(v)), None)
        if found is not None:
            options.setdefault(name, found)
    options = {**(profile or {}), **options}
    options.setdefault("aws_region", DEFAULT_REGION)
    if environment.get("AWS_ENDPOINT_URL_S3"):
        # Both libraries read this variable by themselves, and put it above every other way to name an endpoint.
        options["aws_endpoint_url_s3"] = options["aws_endpoint"]
    if options.get("aws_endpoint", "").startswith("http://"):
        options.setdefault("allow_http", "true")
    return options


def shared_options(given: Mapping[str, str], resolved: Mapping[str, str]) -> dict[str, str]:
    """The resolved options for other processes, with the credentials that were given and none from the environment."""
    named = {_ALIASES.get(name.lower(), name.lower()) for name in given}
    return {name: value for name, value in resolved.items() if name in named or name not in _CREDENTIALS}


def check_credentials(options: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """Refuse half a key, or a key beside a foreign token: Lance would complete them with other credentials."""
    has_key, has_secret = ("aws_access_key_id" in options, "aws_secret_access_key" in options)
    if has_key != has_secret:
        missing = "aws_secret_access_key" if has_key else "aws_access_key_id"
        raise InputError(f"half of a key: {missing} is missing; give both in storage_options or in the environment")
    token = next((name for name in _ENVIRONMENT["aws_session_token"] if environment.get(name)), None)
    if has_key and token is not None and "aws_session_token" not in options:
        raise InputError(
            f"the environment has a session token ({token}) of another key than the one in storage_options, and Lance "
            "would send both together: unset the variable, or give aws_session_token"
        )


def needs_chain(options: Mapping[str, str]) -> bool:
    """Whether credentials have to come from a profile, a web identity, a container or the machine."""
    return "aws_access_key_id" not in options and options.get("aws_skip_signature", "").lower() not in ("true", "1")
