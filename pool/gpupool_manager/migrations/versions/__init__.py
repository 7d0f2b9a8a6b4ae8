"""One file a step; the newest is the schema that this release needs."""
