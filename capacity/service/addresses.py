"""Addresses that a server listens on: whether they belong to this machine, and which need a password or token."""

import ipaddress
import socket
from contextlib import suppress
from typing import Any

from capacity.base.errors import InvalidInput

SHORTEST_SECRET = 8


def check_secret(host: str, secret: str | None, *, flag: str, variable: str, port: int) -> None:
    """Raise InvalidInput if the address is public and no password or token is set, or if `secret` is too short.

    `flag` and `variable`: the command-line flag and the environment variable that set the secret.
    """
    if secret is not None and len(secret) < SHORTEST_SECRET:
        raise InvalidInput(
            f"{flag} has {len(secret)} characters, must have at least {SHORTEST_SECRET}, "
            "because others who can reach the address could guess it"
        )
    addresses = () if secret is not None else resolve_host(host)
    if not all(ipaddress.ip_address(each.partition("%")[0]).is_loopback for each in addresses):
        raise InvalidInput(
            f"--host {host} accepts connections from other machines, but no {flag.strip('-')} is set; set "
            f"{variable} or {flag}, or use 127.0.0.1 and forward the port "
            f"(ssh -L {port}:127.0.0.1:{port} THIS_MACHINE)"
        )


def resolve_host(host: str) -> list[str]:
    """Return the addresses of `host`. Raises InvalidInput if none belongs to this machine."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM) if host else []
    except (OSError, ValueError):  # Python raises UnicodeError for names with too long labels
        found = []
    if not any(_can_listen(family, address) for family, *_, address in found):
        raise InvalidInput(
            f"--host is {host!r}, which is not an address of this machine; use 127.0.0.1 for local access only, or "
            "0.0.0.0 for access from other machines"
        )
    return [str(address[0]) for *_, address in found]


def _can_listen(family: int, address: Any) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def display_name(host: str) -> str:
    """Return the host name for a URL that is opened on this machine."""
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_unspecified:
            return "localhost"
    return f"[{host}]" if ":" in host else host
