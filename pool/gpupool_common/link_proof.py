"""How the manager proves to one node that it has a key which the link is not encrypted with.

While the manager's key rolls, the link still has the old one, and whoever stole that could take
the manager's place before a node that knows better. So such a node sends a challenge with its
join, and takes nothing until the answer has an HMAC of it. Its key is the secret that the next
key of the manager and the node's own have in common (X25519), so a proof for another node, or one
passed on from another connection, is of no use.
"""

from __future__ import annotations

import hmac
import secrets

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

#: Keeps these proofs apart from whatever else the keys may be used for.
_LABEL = b"gpupool: the manager's next key: "


def new_challenge() -> str:
    """One that was never sent before, in hexadecimal."""
    return secrets.token_hex(32)


def prove(secret: str, peer: str, challenge: str) -> str:
    """What only the two ends of a pair of keys can say of a challenge; all in hexadecimal.

    ValueError if the peer's key is none, so that the secret would be anybody's.
    """
    ours = X25519PrivateKey.from_private_bytes(bytes.fromhex(secret))
    common = ours.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(peer)))
    return hmac.digest(common, _LABEL + bytes.fromhex(challenge), "sha256").hex()


def is_proof(proof: str, secret: str, peer: str, challenge: str) -> bool:
    """Whether ``peer`` has said this of our challenge."""
    try:
        return hmac.compare_digest(proof, prove(secret, peer, challenge))
    except ValueError:
        return False
