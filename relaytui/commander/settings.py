"""What a commander is told at its start: environment, with explicit arguments above it."""

from __future__ import annotations

import ipaddress
import math
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.figures import plain_number, plain_whole
from relaytui.wire.url import holds_more

GB = 10**9
MOST_BYTES = 2**53
_SIZE = re.compile(r"(0|[1-9][0-9]{0,17})(?: ?([kmgt])(i?)b?|b)?\Z", re.IGNORECASE)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SHORT_IPV4 = re.compile(r"(?:0[xX][0-9A-Fa-f]*|[0-9]+)(?:\.(?:0[xX][0-9A-Fa-f]*|[0-9]+))*\Z")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\Z")
_PUBLIC_HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?\Z")


@dataclass(frozen=True, slots=True)
class CommanderSettings:
    """Seconds and bytes. `shared_secret` None: agents present the state folder's own worker token.

    `new_key`: a key that is lost or damaged is replaced at this start. `host_named`: what named the host.
    """

    state: Path
    host: str = "127.0.0.1"
    port: int = 8080
    lease_seconds: float = 300.0
    shared_secret: str | None = field(default=None, repr=False)
    public_hosts: tuple[str, ...] = ()
    tls_proxy: bool = False
    l1_root: str = "/mnt/relay"
    ckpt_interval: int = 600
    ckpt_keep_last_n: int = 3
    hf_sync_interval: int = 14_400
    hf_repo: str = ""
    hf_push_on_improve: bool = False
    max_runs: int = 10_000
    max_no_progress: int = 5
    artifact_quota: int = 100 * GB
    artifact_run_quota: int = 50 * GB
    artifact_keep_last_n: int = 3
    artifact_reserve: int = 2 * GB
    telemetry_days: float = 90.0
    telemetry_run_bytes: int = 1 * GB
    telemetry_bytes: int = 20 * GB
    new_key: bool = False
    allow_network_state: bool = False
    host_named: str = "RELAY_HOST"

    def __post_init__(self) -> None:
        object.__setattr__(self, "host", plain_host(self.host, self.host_named))

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str],
        *,
        state: Path | str | None = None,
        host: str | None = None,
        port: int | None = None,
        lease_seconds: float | None = None,
        new_key: bool = False,
    ) -> CommanderSettings:
        """RelayError (exit USAGE) names the variable that is ill-typed or out of its range."""
        env = _Environment(environ)
        folder = str(state) if state is not None else env.text("RELAY_COMMANDER_STATE", "")
        if lease_seconds is None:
            lease_seconds = env.number("RELAY_LEASE_SECONDS", 300.0, 1.0, 86_400.0)
        elif not math.isfinite(lease_seconds):
            raise RelayError(
                "usage", "the lease cannot be nan or inf seconds long", "--lease-seconds 300", exit_code=Exit.USAGE
            )
        return cls(
            state=Path(folder).expanduser() if folder else _default_state(),
            host=host or env.text("RELAY_HOST", "127.0.0.1"),
            port=env.integer("PORT", 8080, 0, 65_535) if port is None else port,
            lease_seconds=lease_seconds,
            shared_secret=env.secret("RELAY_SHARED_SECRET"),
            public_hosts=env.hosts("RELAY_PUBLIC_HOSTS"),
            tls_proxy=env.flag("RELAY_TLS_PROXY", False),
            l1_root=env.text("RELAY_L1_ROOT", "/mnt/relay"),
            ckpt_interval=env.integer("RELAY_CKPT_INTERVAL", 600, 1, 10**9),
            ckpt_keep_last_n=env.integer("RELAY_CKPT_KEEP_LAST_N", 3, 0, 10**6),
            hf_sync_interval=env.integer("RELAY_HF_SYNC_INTERVAL", 14_400, 0, 10**9),
            hf_repo=env.text("RELAY_HF_REPO", ""),
            hf_push_on_improve=env.flag("RELAY_HF_PUSH_ON_IMPROVE", False),
            max_runs=env.integer("RELAY_MAX_RUNS", 10_000, 1, 10**6),
            max_no_progress=env.integer("RELAY_MAX_NO_PROGRESS", 5, 0, 1000),
            artifact_quota=env.size("RELAY_ARTIFACT_QUOTA", 100 * GB, 0),
            artifact_run_quota=env.size("RELAY_ARTIFACT_RUN_QUOTA", 50 * GB, 0),
            artifact_keep_last_n=env.integer("RELAY_ARTIFACT_KEEP_LAST_N", 3, 0, 10**6),
            artifact_reserve=env.size("RELAY_ARTIFACT_RESERVE", 2 * GB, 0),
            telemetry_days=env.number("RELAY_TELEMETRY_DAYS", 90.0, 0.0, 36_500.0),
            telemetry_run_bytes=env.size("RELAY_TELEMETRY_RUN_BYTES", GB, 1_000_000),
            telemetry_bytes=env.size("RELAY_TELEMETRY_BYTES", 20 * GB, 10_000_000),
            new_key=new_key,
            allow_network_state=env.flag("RELAY_ALLOW_NETWORK_STATE", False),
            host_named="--host" if host else "RELAY_HOST",
        )

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the commander."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False  # a name may mean any machine

    def check_exposure(self) -> None:
        """Another address than loopback needs a secret, and a word on who does TLS."""
        if self.loopback:
            return
        if self.shared_secret is None:
            raise usage(self.host_named, f"{self.host} can be reached from outside", "set RELAY_SHARED_SECRET first")
        if not self.tls_proxy:
            hint = "put a proxy that does TLS in front and say so with RELAY_TLS_PROXY=1, or bind 127.0.0.1"
            raise usage(self.host_named, f"{self.host} would carry tokens in the clear", hint)


def usage(name: str, what: str, hint: str) -> RelayError:
    return RelayError("bad_setting", f"{name}: {what}", hint, exit_code=Exit.USAGE)


def plain_host(given: str, named: str = "RELAY_HOST") -> str:
    """An address or a name to listen on in its one form: `[::1]` as ::1, `127.1` as 127.0.0.1, names in lower case.

    RelayError where it is none.
    """
    text = given.strip()
    bracketed = text.startswith("[") and text.endswith("]")
    inner = text[1:-1] if bracketed else text
    try:
        address = ipaddress.ip_address(inner)
        if isinstance(address, ipaddress.IPv6Address):
            return str(address.ipv4_mapped or address)
        if not bracketed:
            return str(address)
    except ValueError:
        pass
    if not bracketed and _SHORT_IPV4.match(text):
        try:
            return socket.inet_ntoa(socket.inet_aton(text))  # as the system reads it when it binds
        except OSError:
            pass
    name = text.lower().removesuffix(".")
    if (
        bracketed
        or len(name) > 253
        or not all(_LABEL.match(part) for part in name.split("."))
        or _SHORT_IPV4.match(name)
    ):
        port = "PORT" if named == "RELAY_HOST" else "--port"
        hint = f"give an address such as 127.0.0.1 or ::1, or a name; the port goes into {port}"
        said = "what it says" if holds_more(given) else f"{given[:80]!a}"
        raise usage(named, f"{said} is no address to listen on", hint)
    return name


def _default_state() -> Path:
    from platformdirs import user_state_path

    return user_state_path("relay-tui")


@dataclass(frozen=True, slots=True)
class _Environment:
    """Typed reading of variables; an empty one counts as not set."""

    values: Mapping[str, str]

    def text(self, name: str, default: str) -> str:
        return self.values.get(name, "").strip() or default

    def secret(self, name: str) -> str | None:
        # White space around a secret is a slip of copying; inside it, it would not survive a header.
        value = self.values.get(name, "").strip()
        if not value:
            return None
        if not value.isascii() or not value.isprintable() or " " in value:
            raise usage(name, "has characters that a header cannot carry", "use letters, digits and -._~")
        return value

    def number(self, name: str, default: float, low: float, high: float) -> float:
        raw = self.text(name, "")
        if not raw:
            return default
        try:
            value = plain_number(raw)
        except ValueError:
            raise usage(name, f"{raw[:40]!r} is not a plain number", "give plain digits, such as 300") from None
        if not low <= value <= high:
            raise usage(name, f"{raw[:40]} is out of range", f"give {low:g} to {high:g}")
        return value

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        raw = self.text(name, "")
        if not raw:
            return default
        try:
            value = plain_whole(raw)
        except ValueError:
            hint = f"give {low} to {high}, in plain digits"
            raise usage(name, f"{raw[:40]!r} is not a plain whole number", hint) from None
        if not low <= value <= high:
            raise usage(name, f"{raw} is out of range", f"give {low} to {high}")
        return value

    def size(self, name: str, default: int, low: int) -> int:
        """Bytes: a whole number, with k, M, G or T (thousands) or Ki, Mi, Gi, Ti (1,024s) where one likes."""
        raw = self.text(name, "")
        if not raw:
            return default
        found = _SIZE.match(raw)
        if not found:
            raise usage(name, f"{raw[:40]!r} is no size", "give bytes, such as 500M, 20G or 20000000000")
        size = int(found[1]) * int((1024 if found[3] else 1000) ** _POWER[(found[2] or "").lower()])
        if not low <= size <= MOST_BYTES:
            raise usage(name, f"{raw[:40]} is out of range", f"give {low} to {MOST_BYTES} bytes")
        return size

    def flag(self, name: str, default: bool) -> bool:
        raw = self.text(name, "").lower()
        if not raw:
            return default
        if raw in {"1", "true", "yes", "on"}:
            return True
        if raw in {"0", "false", "no", "off"}:
            return False
        raise usage(name, f"{raw[:40]!r} is neither true nor false", "give true or false")

    def hosts(self, name: str) -> tuple[str, ...]:
        names = tuple(part.strip().lower() for part in self.values.get(name, "").split(",") if part.strip())
        for host in names:
            if not _PUBLIC_HOST.match(host):
                said = "what it says" if holds_more(host) else repr(host[:80])
                raise usage(name, f"{said} is not a host or host:port", "give names, separated by commas")
        return names
