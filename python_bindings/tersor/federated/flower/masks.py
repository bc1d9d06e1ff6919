"""The cryptography of secure sums: agreed keys, masks from a key, and sealed shares of a secret.

Flower installs the required libraries.
"""

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
_HALF = 16  # bytes per element of Shamir's field
_NONCE = 12
SEALED_BYTES = _NONCE + SECRET_BYTES + 16  #: length of a sealed share
_ZEROS = memoryview(bytes(1 << 17))  # fits in a cache


def new_key() -> tuple[bytes, bytes]:
    """A private key and its public key (X25519)."""
    private = X25519PrivateKey.generate().private_bytes_raw()
    return private, public_of(private)


def public_of(private: bytes) -> bytes:
    """The public key of a private key."""
    return bytes(X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw())


def agreed_key(private: bytes, public: bytes, purpose: str, *context: object) -> bytes:
    """32 bytes known to only the two nodes, different for each purpose, round and pair (HKDF).
    Raises TypeError or ValueError for an unusable public key."""
    peer = X25519PublicKey.from_public_bytes(public)
    shared = X25519PrivateKey.from_private_bytes(private).exchange(peer)
    return bytes(HKDF(SHA256(), SECRET_BYTES, None, _info(purpose, *context)).derive(shared))


def pair_key(private: bytes, public: bytes, digest: bytes, one: int, other: int) -> bytes:
    """The key of a pair's mask. The node with the lower number adds the mask, and the other node
    subtracts the mask. If the round digests differ, the two nodes derive different keys, and the
    masks do not cancel."""
    return agreed_key(private, public, "mask", digest.hex(), min(one, other), max(one, other))


def share_key(channel: bytes, secret: str, owner: int, holder: int) -> bytes:
    """The key for sealing the holder's share of the owner's secret (``own`` or ``mask``)."""
    return hmac.digest(channel, _info("share", secret, owner, holder), "sha256")


def tag(channel: bytes, stage: str, digest: bytes, sender: int, receiver: int) -> bytes:
    """A proof for the receiver: the sender passed this stage with the same round digest."""
    info = _info(stage, digest.hex(), sender, receiver)
    return hmac.digest(channel, info, "sha256")[:TAG_BYTES]


def is_tag(found: object, expected: bytes) -> bool:
    """True if ``found`` is the expected tag. Compares in constant time."""
    return isinstance(found, bytes) and hmac.compare_digest(found, expected)


def _info(*words: object) -> bytes:
    return " ".join(["tersor", *map(str, words)]).encode()


def apply_mask(parts: Sequence[Accumulators], key: bytes, sign: int) -> None:
    """Adds (``sign`` is 1) or subtracts (``sign`` is -1) the stream of a key: AES in counter mode,
    with a separate counter range for each part. Use each key only once."""
    combine = np.add if sign > 0 else np.subtract
    for index, part in enumerate(parts):
        counter = bytes([index]) + bytes(15)
        cipher = Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor()
        stream = np.empty(min(len(_ZEROS) // part.itemsize, part.size), part.dtype)
        for first in range(0, part.size, max(1, stream.size)):
            piece = part[first : first + stream.size]
            own = stream[: piece.size]
            out: Any = own.view(np.uint8)
            cipher.update_into(_ZEROS[: own.nbytes], out)
            combine(piece, own, out=piece)


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Shares of 32 bytes (Shamir 1979). `threshold` shares give the secret, fewer give nothing."""
    parts = [secret[i : i + _HALF] for i in range(0, SECRET_BYTES, _HALF)]
    halves = [Shamir.split(threshold, count, one) for one in parts]
    return [low + high for (_, low), (_, high) in zip(*halves, strict=True)]


def combine(shares: Mapping[int, bytes]) -> bytes:
    """The secret of shares. A key of ``shares`` is the share's index in the result of `split`."""
    halves = (
        Shamir.combine([(index + 1, share[i : i + _HALF]) for index, share in shares.items()])
        for i in range(0, SECRET_BYTES, _HALF)
    )
    return b"".join(halves)


def seal(key: bytes, secret: bytes) -> bytes:
    """The encrypted and authenticated secret."""
    nonce = os.urandom(_NONCE)
    return nonce + bytes(ChaCha20Poly1305(key).encrypt(nonce, secret, None))


def unseal(key: bytes, sealed: bytes) -> bytes | None:
    """The sealed secret; None if authentication fails."""
    try:
        return bytes(ChaCha20Poly1305(key).decrypt(sealed[:_NONCE], sealed[_NONCE:], None))
    except (InvalidTag, ValueError):
        return None
