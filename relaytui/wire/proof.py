"""How a commander proves who it is before any token is sent to it, and how tokens are made and kept.

A client asks `GET /api/health` with a fresh nonce in `X-Relay-Challenge`. The answer's `proof` holds an HMAC of that
nonce and of the `Host` that was asked for, under each key the commander shares with clients. A stranger on its port
cannot make one, and what a stranger relays from another address does not match the Host.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from functools import lru_cache
from typing import Literal

CHALLENGE_HEADER = "X-Relay-Challenge"
NONCE_PATTERN = re.compile(r"^[0-9a-f]{32,64}\Z")
STRETCH_ROUNDS = 100_000
"""A shared secret may be weak and anyone may ask for a proof, so guessing from proofs is made slow."""
SHORT_SECRET = 16
"""One with fewer characters may be guessed all the same."""

Role = Literal["operator", "worker"]


def derived_token(state_key: bytes, role: Role) -> str:
    """The token of that role which holders of the state folder's key may make for themselves, hex."""
    return hmac.new(state_key, f"relay {role} token 1".encode(), hashlib.sha256).hexdigest()


def token_hash(token: str) -> bytes:
    """What is stored and compared instead of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def same_token(presented: str, stored_hash: bytes) -> bool:
    return hmac.compare_digest(token_hash(presented), stored_hash)


@lru_cache(maxsize=8)
def proof_key(secret: str) -> bytes:
    """The key that a secret (a token, the shared secret) proves with."""
    return hashlib.pbkdf2_hmac("sha256", secret.encode("utf-8", "surrogateescape"), b"relay proof 1", STRETCH_ROUNDS)


def prove(key: bytes, nonce: str, host: str) -> str:
    """Hex HMAC-SHA256 over nonce and host; `host` is the Host header, host:port in lower case."""
    return hmac.new(key, f"{nonce} {host.lower()}".encode(), hashlib.sha256).hexdigest()


def proven(key: bytes, nonce: str, host: str, answer: str) -> bool:
    return hmac.compare_digest(prove(key, nonce, host).encode(), answer.encode("utf-8", "replace"))
