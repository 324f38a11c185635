"""The upstream and the client of the end-to-end tests."""

from tests.e2e.conftest import api, client, up

__all__ = ["api", "client", "up"]
