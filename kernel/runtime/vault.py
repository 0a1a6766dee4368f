"""The payload store: bytes go in sealed and come out by reference, for the proxy alone.

Receives plain bytes from intake before its transaction. Hands on references; everything
after carries only those. AES-256-GCM with key ids: the first key seals, every key opens, so
a key is rotated by putting a new one in front. Source: DESIGN section 9.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kernel.environment import Environment
from kernel.idempotency import Hasher
from kernel.store import vault_schema
from kernel.store.transaction import Store

_NONCE_BYTES = 12


class PayloadGoneError(Exception):
    """The reference's payload expired, or was never stored."""


class VaultKeyError(ValueError):
    """The configured keys cannot be used; the message says which and why."""


class VaultKeys:
    """AES-256 keys by id; the first one seals."""

    def __init__(self, keys: Sequence[tuple[str, bytes]]) -> None:
        if not keys:
            raise VaultKeyError("SLUICE_VAULT_KEYS holds no key; give id:base64(32 bytes)")
        for at, (key_id, key) in enumerate(keys, start=1):
            if len(key) != 32 or not 0 < len(key_id) <= 32:
                # By its place: where the two are swapped, the id is the key itself.
                raise VaultKeyError(
                    f"SLUICE_VAULT_KEYS: key number {at}: 32 bytes and an id of 1 to 32 letters"
                )
        if len({key_id for key_id, _ in keys}) < len(keys):
            raise VaultKeyError("SLUICE_VAULT_KEYS: two keys have the same id; each needs its own")
        self._ciphers = {key_id: AESGCM(key) for key_id, key in keys}
        self._sealing = keys[0][0]
        self._proofs = {
            f"vault key {key_id}": Hasher(key).digest("key proof", key_id.encode())
            for key_id, key in keys
        }

    @property
    def proofs(self) -> dict[str, str]:
        """By name a digest that only this key makes, and that gives nothing of it away."""
        return dict(self._proofs)

    @classmethod
    def parse(cls, text: str) -> VaultKeys:
        """Keys from "id:base64,id:base64", the sealing one first."""
        keys = []
        items = filter(None, (part.strip() for part in text.split(",")))
        for at, item in enumerate(items, start=1):
            key_id, colon, encoded = item.partition(":")
            try:
                key = base64.b64decode(encoded, validate=True)
            except binascii.Error:
                key = b""
            if not colon or not key:
                # By its place: without a colon, what stands for the id is the key itself.
                raise VaultKeyError(f"SLUICE_VAULT_KEYS: key number {at} is not id:base64")
            keys.append((key_id, key))
        return cls(keys)

    def seal(self, plain: bytes, bound_to: bytes = b"") -> bytes:
        """Encrypt; `bound_to` must be given again to open."""
        # A nonce is no identity and must never repeat, not even in a replayed simulation.
        nonce = os.urandom(_NONCE_BYTES)
        key_id = self._sealing.encode()
        sealed = self._ciphers[self._sealing].encrypt(nonce, plain, key_id + bound_to)
        return bytes([len(key_id)]) + key_id + nonce + sealed

    def open(self, sealed: bytes, bound_to: bytes = b"") -> bytes:
        """Decrypt; raises VaultKeyError when the key is not there or the bytes were changed."""
        size = sealed[0] if sealed else 0
        key_id = sealed[1 : 1 + size].decode(errors="replace")
        rest = sealed[1 + size :]
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise VaultKeyError(f"vault key {key_id!r} is not configured")
        try:
            return cipher.decrypt(
                rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], key_id.encode() + bound_to
            )
        except (InvalidTag, ValueError) as error:
            raise VaultKeyError("a sealed payload does not open with its key") from error


class Vault:
    """Sealed payloads in a table of the vault's own database."""

    def __init__(self, store: Store, keys: VaultKeys, environment: Environment) -> None:
        self._store = store
        self._keys = keys
        self._environment = environment

    async def put(self, plain: Sequence[bytes], expires_at: int) -> list[str]:
        """Store payloads until `expires_at` (microseconds since the epoch); one reference each."""
        rows = []
        for content in plain:
            ref = self._environment.new_id()
            rows.append(
                vault_schema.SealedPayload(ref, self._keys.seal(content, ref.encode()), expires_at)
            )
        await self._store.write(vault_schema.put, rows)
        return [row.ref for row in rows]

    async def prove(self, hasher: Hasher) -> None:
        """Raises VaultKeyError unless the keys are those with which what is stored was made."""
        proofs = self._keys.proofs | {"hash key": hasher.digest("key proof", b"")}
        wrong = await self._store.write(vault_schema.prove, proofs)
        if wrong:
            raise VaultKeyError(
                f"{', '.join(wrong)}: not the key with which what is stored here was made. "
                "Put back the keys.json (or the settings) that belongs to these databases."
            )

    async def open(self, ref: str) -> bytes:
        """The plain bytes; raises PayloadGoneError, or VaultKeyError."""
        sealed = await self._store.read(vault_schema.find, ref)
        if sealed is None:
            raise PayloadGoneError(ref)
        return self._keys.open(sealed, ref.encode())

    def seal(self, plain: bytes) -> bytes:
        """Seal bytes that are stored elsewhere, such as a raw receipt."""
        return self._keys.seal(plain)

    def unseal(self, sealed: bytes) -> bytes:
        """Open what `seal` made."""
        return self._keys.open(sealed)

    async def expire(self) -> int:
        """Delete what is past its time; returns how many."""
        return await self._store.write(vault_schema.expire)
