"""[2] Lease and run: claims tasks in order, has them executed, settles them under a fence.

Owns the moves of tasks from READY to their end: claimer, timer, takeover and resolver.
"""
