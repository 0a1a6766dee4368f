"""Migrations of the proxy database, in order of their numbers."""
