"""The OpenAPI document of the whole HTTP API, ``/openapi.json``, and the page to read it, ``/docs``."""
