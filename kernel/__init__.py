"""The rules, the facts and the edges that all four services stand on.

`kernel/*.py` are rules: pure, no SQL, no grpc, no clock of their own. `kernel/store`
holds all SQL. `kernel/runtime` holds what touches the outside of a process.
"""
