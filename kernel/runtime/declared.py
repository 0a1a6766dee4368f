"""Declared policies into the store, at the start of every service that needs them there.

Receives the policies of the settings. Hands on nothing: they are stored as declared, or the
start stops with the version that contradicts.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.exc import IntegrityError

from kernel.decision import Policy
from kernel.runtime.settings import SettingsError
from kernel.store import policies
from kernel.store.transaction import CommitInDoubtError, Store

AUTHOR = "settings"


async def store_policies(store: Store, declared: Sequence[Policy]) -> None:
    """Store the declared policy versions that are not there yet.

    Raises SettingsError when a version is stored with another body, and StoreAway.
    """
    try:
        contradicting = await store.write(policies.put_missing, declared, AUTHOR)
    except (IntegrityError, CommitInDoubtError):
        # Another process of the same settings was faster, or it is in already.
        contradicting = await store.write(policies.put_missing, declared, AUTHOR)
    if contradicting is not None:
        raise SettingsError(
            f"policies.{contradicting.policy_id}: version {contradicting.version} is stored with "
            "another body, and versions are never edited; raise its version"
        )
