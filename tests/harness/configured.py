"""Servers whose configuration file a test writes itself."""

from __future__ import annotations

from harness.server import Server


def configured(server: Server, text: str) -> Server:
    """From its next start on, the server has this configuration file and no other setting."""
    server._config_text = lambda: text
    return server
