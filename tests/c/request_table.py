"""Write the vectors of tests/python/request_vectors.toml as a table for test_request.c."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def literal(text: str) -> str:
    """``text`` as a C string, in octal where a character has no plain form."""
    plain = "".join(map(chr, range(0x20, 0x7F))).translate({ord('"'): None, ord("\\"): None})
    return '"' + "".join(c if c in plain else _octal(c) for c in text) + '"'


def _octal(char: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in char.encode())


def row(vector: dict[str, object]) -> str:
    env, fields = vector["env"], vector.get("fields", {})
    assert isinstance(env, dict) and isinstance(fields, dict)
    variables = "".join(f"{literal(f'{key}={value}')}, " for key, value in env.items())
    lines = "".join(f"{key}: {value}\n" for key, value in fields.items())
    error = literal(str(vector["error"])) if "error" in vector else "NULL"
    name = literal(str(vector["name"]))
    return f"    {{{name}, {{{variables}NULL}}, {literal(lines)}, {error}}},\n"


def main(source: Path, target: Path) -> None:
    vectors = tomllib.loads(source.read_text(encoding="utf-8"))["vector"]
    head = f"/* Made from {source.name} by {Path(__file__).name}. */\n"
    target.write_text(
        head + "static const struct vector vectors[] = {\n" + "".join(map(row, vectors)) + "};\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
