"""Receives calls over HTTP as any number of vendors would; hands on answers, receipts and bills.

The scripted vendor stands outside our walls: no service imports it, and it imports none. It
keeps a ledger of its own, which is the judge of what really happened.
"""

from __future__ import annotations

from vendors.simulator.app import RunningSimulator, serve

__all__ = ["RunningSimulator", "serve"]
