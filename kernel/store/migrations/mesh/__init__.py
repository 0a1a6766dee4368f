"""Migrations of the mesh database, in order of their numbers."""
