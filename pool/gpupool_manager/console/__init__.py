"""The operator's console: pages that show what the REST API says, and ask it for changes."""
