"""Which keys the gateway takes: those that a vendor can tell apart, and no others."""

from __future__ import annotations

import pytest

from kernel.errors import InvalidArgument
from services.vendor_proxy import checks

ACCEPTED = ["k", "order-7", "a:b/c?d=e&f", "~" * 128]
REFUSED = ["", " order-7", "order-7 ", "order-7\t", "a b", "a\0b", "a\r\nb", "clé", "x" * 129]


@pytest.mark.parametrize("key", ACCEPTED)
def test_a_key_of_visible_characters_is_taken(key: str) -> None:
    checks.check_fence(key, 1)


@pytest.mark.parametrize("key", REFUSED)
def test_i3_a_key_that_a_header_would_change_is_refused_with_its_field(key: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        checks.check_fence(key, 1)
    assert [each.field for each in refused.value.violations] == ["idempotency_key"]
