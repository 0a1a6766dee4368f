"""[1] Accept: validates a content, plans its tasks, and stores both once, before it says so.

Owns the insert of parents, tasks and their outbox rows, and the cancellation of both. Hands
on wake-ups through the relay; the database is the fact, a wake-up only a hint.
"""
