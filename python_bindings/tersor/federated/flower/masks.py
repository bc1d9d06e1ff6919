"""The cryptography of secure sums, by libraries that Flower installs: agreed keys, masks from a
key, and sealed shares of a secret."""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tersor.federated.sums import Accumulators

SECRET_BYTES = 32
TAG_BYTES = 16
_HALF = 16  # bytes of Shamir's field
_NONCE = 12
SEALED_BYTES = _NONCE + SECRET_BYTES + 16  #: of a sealed share
_ZEROS = memoryview(bytes(1 << 17))  # fits in a cache


def new_key() -> tuple[bytes, bytes]:
    """A private key and its public key (X25519)."""
    private = X25519PrivateKey.generate().private_bytes_raw()
    return private, public_of(private)


def public_of(private: bytes) -> bytes:
    """The public key of a private one."""
    return bytes(X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw())


def agreed_key(private: bytes, public: bytes, purpose: str, *about: object) -> bytes:
    """32 bytes that only the two nodes know, different for each purpose, round and pair (HKDF).
    Raises TypeError or ValueError for an unusable public key."""
    shared = X25519PrivateKey.from_private_bytes(private).exchange(
        X25519PublicKey.from_public_bytes(public)
    )
    return bytes(HKDF(SHA256(), SECRET_BYTES, None, _info(purpose, *about)).derive(shared))


def pair_key(private: bytes, public: bytes, digest: bytes, one: int, other: int) -> bytes:
    """The key of the mask that one node of a pair adds and the other node subtracts. Nodes with
    different round digests derive different keys, so their masks do not cancel."""
    return agreed_key(private, public, "mask", digest.hex(), min(one, other), max(one, other))


def share_key(channel: bytes, secret: str, owner: int, holder: int) -> bytes:
    """The key that seals the share of one of the owner's two secrets for the holder."""
    return hmac.digest(channel, _info("share", secret, owner, holder), "sha256")


def tag(channel: bytes, stage: str, digest: bytes, sender: int, receiver: int) -> bytes:
    """Proves to the receiver that the sender passed this stage with the same round digest."""
    info = _info(stage, digest.hex(), sender, receiver)
    return hmac.digest(channel, info, "sha256")[:TAG_BYTES]


def is_tag(found: object, expected: bytes) -> bool:
    """Compares in constant time."""
    return isinstance(found, bytes) and hmac.compare_digest(found, expected)


def _info(*words: object) -> bytes:
    return " ".join(["tersor", *map(str, words)]).encode()


def apply_mask(parts: Sequence[Accumulators], key: bytes, sign: int) -> None:
    """Adds or subtracts the stream of a key that is used once: AES in counter mode, with one range
    of the counter for each part."""
    combine = np.add if sign > 0 else np.subtract
    for place, part in enumerate(parts):
        counter = bytes([place]) + bytes(15)
        cipher = Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor()
        stream = np.empty(min(len(_ZEROS) // part.itemsize, part.size), part.dtype)
        for first in range(0, part.size, max(1, stream.size)):
            piece = part[first : first + stream.size]
            own = stream[: piece.size]
            out: Any = own.view(np.uint8)
            cipher.update_into(_ZEROS[: own.nbytes], out)
            combine(piece, own, out=piece)


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Shares of 32 bytes (Shamir 1979). `threshold` shares give the secret, fewer nothing."""
    halves = [
        Shamir.split(threshold, count, secret[i : i + _HALF]) for i in range(0, SECRET_BYTES, _HALF)
    ]
    return [low + high for (_, low), (_, high) in zip(*halves, strict=True)]


def combine(shares: Mapping[int, bytes]) -> bytes:
    """The secret, from shares by their index in `split`'s list."""
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
    """The sealed secret; None if authentication fails."""
    try:
        return bytes(ChaCha20Poly1305(key).decrypt(sealed[:_NONCE], sealed[_NONCE:], None))
    except (InvalidTag, ValueError):
        return None
