"""The version and beta headers of the Anthropic API.

platform.claude.com/docs/en/api/versioning and .../beta-headers.
"""

import re
from collections.abc import Mapping

from multidict import CIMultiDictProxy

from gateway.errors import InvalidRequest
from gateway.server.error_responses import VERSION_HEADER

BETA_HEADER = "anthropic-beta"
_VERSION_PATTERN = re.compile(r"\d{4}-\d{2}-\d{2}\Z", re.ASCII)
_FEATURES_PATTERN = re.compile(r"[A-Za-z0-9._, -]{1,1024}\Z", re.ASCII)


def parse_anthropic_headers(headers: CIMultiDictProxy[str]) -> Mapping[str, str]:
    """Return the version and beta headers that the request has. Raises ``InvalidRequest``."""
    allowed_headers = {}
    features = ",".join(headers.getall(BETA_HEADER, ()))
    if features:
        if not _FEATURES_PATTERN.match(features):
            raise InvalidRequest(f"The header '{BETA_HEADER}' is not a list of features", param=BETA_HEADER)
        allowed_headers[BETA_HEADER] = features
    version = headers.get(VERSION_HEADER)
    if version is not None:
        if not _VERSION_PATTERN.match(version):
            message = f"The header '{VERSION_HEADER}' is not a date such as 2023-06-01"
            raise InvalidRequest(message, param=VERSION_HEADER)
        allowed_headers[VERSION_HEADER] = version
    return allowed_headers
