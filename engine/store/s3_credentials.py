"""Credentials that neither options nor environment hold: found by the AWS credential chain, and renewed.

A profile (with its keys, single sign-on, a role or a `credential_process`), a web identity, a container, the machine.
Lance asks the AWS SDK, whose chain is the same; `object_store` itself knows neither profiles nor the switch that turns
the machine's metadata service off.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from botocore.configprovider import ConfiguredEndpointProvider
from botocore.exceptions import BotoCoreError
from botocore.session import Session

from omniray.engine.base.errors import StorageError

if TYPE_CHECKING:
    from obstore.store import S3Credential

# The client asks again this long before credentials expire (its own constant).
_RENEWED_BEFORE_S = 300
# botocore answers from memory and renews early by itself, so asking often costs nothing.
ASKED_EVERY_S = 60


class CredentialChain:
    """The credentials of this process as obstore asks for them; raises `StorageError` if there are none."""

    def __init__(self) -> None:
        try:
            session = Session()
            self._credentials = session.get_credentials()
            self.options = _options_of(session)
        except BotoCoreError as error:
            raise StorageError(f"no credentials: {error}") from error
        if self._credentials is None:
            raise StorageError(
                "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, "
                "or pass storage_options"
            )

    def __call__(self) -> S3Credential:
        now = datetime.datetime.now(datetime.UTC)
        current = self._credentials.get_frozen_credentials()
        return {
            "access_key_id": current.access_key,
            "secret_access_key": current.secret_key,
            "token": current.token,
            "expires_at": now + datetime.timedelta(seconds=_RENEWED_BEFORE_S + ASKED_EVERY_S),
        }


def _options_of(session: Session) -> dict[str, str]:
    """The profile's region and endpoint; Lance does not read that endpoint itself."""
    endpoint = ConfiguredEndpointProvider(
        full_config=session.full_config, scoped_config=session.get_scoped_config(), client_name="s3"
    ).provide()
    found = {"aws_region": session.get_config_variable("region"), "aws_endpoint": endpoint}
    return {name: value for name, value in found.items() if value}
