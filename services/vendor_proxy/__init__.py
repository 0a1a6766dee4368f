"""Step 3 of 4, the world: the shared gateway to vendors.

Owns the call ledger, the permits and limits, and the raw receipts, in a database of its own.
Receives Execute, queries, fences and receipts; hands on typed outcomes, and receipts to the
aggregator.
"""
