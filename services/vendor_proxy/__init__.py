"""[3] The world: sends each call once, by permit and ledger, and takes what vendors tell.

Owns the call ledger, the permits and limits, and the raw receipts, in a database of its own.
Receives Execute, queries, fences and receipts; hands on typed outcomes, and receipts to the
aggregator.
"""
