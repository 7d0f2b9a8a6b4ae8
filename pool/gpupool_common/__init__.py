"""What the command, the server and the manager share; it imports none of them."""

from __future__ import annotations

__version__ = "0.1.0"
