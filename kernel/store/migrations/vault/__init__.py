"""Migrations of the vault database, in order of their numbers."""
