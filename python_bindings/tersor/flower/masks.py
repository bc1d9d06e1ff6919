"""What secure sums are made of, by libraries that Flower brings: keys that two agree on, masks that
follow from a key, shares of a secret, sealed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tersor.lanes import Lanes, add, subtract

SECRET_BYTES = 32
_HALF = 16  # what Shamir's field holds
_NONCE = 12
_ZEROS = memoryview(bytes(1 << 17))  # as much as stays in a cache


def new_key() -> tuple[bytes, bytes]:
    """A private key and its public one (X25519)."""
    private = X25519PrivateKey.generate()
    return private.private_bytes_raw(), private.public_key().public_bytes_raw()


def is_public(key: object) -> bool:
    """Whether two can agree on a key by this public one."""
    try:
        agreed_key(new_key()[0], key, "trial")  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


def public_of(private: bytes) -> bytes:
    """The public key of a private one."""
    return bytes(X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw())


def agreed_key(private: bytes, public: bytes, purpose: str, *about: int) -> bytes:
    """32 bytes that only the two know, another one for each purpose, round and pair (HKDF)."""
    shared = X25519PrivateKey.from_private_bytes(private).exchange(
        X25519PublicKey.from_public_bytes(public)
    )
    info = " ".join(["tersor", purpose, *map(str, about)]).encode()
    return bytes(HKDF(SHA256(), SECRET_BYTES, None, info).derive(shared))


def pair_key(private: bytes, public: bytes, round_: int, one: int, other: int) -> bytes:
    """Of the mask that one of two adds and the other takes off."""
    return agreed_key(private, public, "mask", round_, min(one, other), max(one, other))


def apply_mask(lanes: Lanes, key: bytes, sign: int) -> None:
    """Adds, or takes off, the stream of a key that is used once (AES in counter mode)."""
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    combine = add if sign > 0 else subtract
    piece = len(_ZEROS) // lanes.itemsize
    stream = np.empty(piece, lanes.dtype)
    for first in range(0, lanes.size, piece):
        part = lanes[first : first + piece]
        own = stream[: part.size]
        out: Any = own.view(np.uint8)
        cipher.update_into(_ZEROS[: own.nbytes], out)
        combine(part, own)


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Shares of 32 bytes, of which any `threshold` have the secret and fewer know nothing."""
    halves = [
        Shamir.split(threshold, count, secret[i : i + _HALF]) for i in range(0, SECRET_BYTES, _HALF)
    ]
    return [low + high for (_, low), (_, high) in zip(*halves, strict=True)]


def combine(shares: Mapping[int, bytes]) -> bytes:
    """The secret, from shares by their place in `split`'s list."""
    halves = (
        Shamir.combine([(place + 1, share[i : i + _HALF]) for place, share in shares.items()])
        for i in range(0, SECRET_BYTES, _HALF)
    )
    return b"".join(halves)


def seal(key: bytes, secret: bytes) -> bytes:
    """Encrypted and authenticated."""
    nonce = os.urandom(_NONCE)
    return nonce + bytes(ChaCha20Poly1305(key).encrypt(nonce, secret, None))


def unseal(key: bytes, sealed: bytes) -> bytes | None:
    """What was sealed; None where it does not authenticate."""
    try:
        return bytes(ChaCha20Poly1305(key).decrypt(sealed[:_NONCE], sealed[_NONCE:], None))
    except (InvalidTag, ValueError):
        return None


def commitment(secret: bytes) -> bytes:
    """By which a secret that was put together is known to be the right one."""
    return hashlib.sha256(b"tersor commitment" + secret).digest()
