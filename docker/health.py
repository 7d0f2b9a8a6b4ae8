"""Exit with 0 if the manager in this container is ready: health.py [HOST:PORT].

It speaks http or https, as the manager does. Whom its certificate names does not matter: what
listens at this container's own loopback is the manager, and no secret is sent.
"""

from __future__ import annotations

import http.client
import ssl
import sys
import urllib.error
import urllib.request


def ask(url: str) -> str | None:
    """Why it is not ready."""
    trusting = ssl.create_default_context()
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    direct = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusting)
    )
    try:
        direct.open(f"{url}/v1/ready", timeout=2).close()
    except urllib.error.HTTPError as error:
        return f"{url}: {error.code} {error.read(2000).decode(errors='replace')}"
    except (OSError, http.client.HTTPException) as error:
        return f"{url}: {error}"
    return None


def main() -> None:
    place = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7780"
    found = [ask(f"{scheme}://{place}") for scheme in ("http", "https")]
    if None not in found:
        sys.exit("\n".join(str(reason) for reason in found))


if __name__ == "__main__":
    main()
