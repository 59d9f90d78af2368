"""Tokens of leases: made from the state folder's key, stored nowhere, and known again without any books."""

from __future__ import annotations

import hashlib
import hmac

SALT = 16


class LeaseTokens:
    def __init__(self, state_key: bytes) -> None:
        self._key = hmac.new(state_key, b"relay lease tokens 1", hashlib.sha256).digest()

    def make(self, salt: bytes, run_id: str, epoch: int) -> str:
        """256 bits as hex: the salt, and what only the key can make of it for this run and epoch. The salt and the key
        make it again, so that a retry gets the same one."""
        return (salt + hmac.new(self._key, salt + f"{run_id} {epoch}".encode(), hashlib.sha256).digest()[:16]).hex()

    def salt_of(self, token: str, run_id: str, epoch: int) -> bytes | None:
        """Of a token that a commander of this key granted for just this, whether or not the books know; else None."""
        try:
            salt = bytes.fromhex(token[: 2 * SALT])
        except ValueError:
            return None
        made = self.make(salt, run_id, epoch)
        return salt if hmac.compare_digest(made.encode(), token.encode("utf-8", "surrogateescape")) else None
