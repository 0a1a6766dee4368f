"""[4] Decide: applies receipts, reads the whole set, decides purely, writes once.

Owns the moves of parents, their decisions and late results, policies, and what reviewers do.
"""
