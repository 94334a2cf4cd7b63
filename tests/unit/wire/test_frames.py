"""Frames: size prefixes and their bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.wire.frames import SIZE_PREFIX, FrameTooLargeError, frame_size, with_size


@given(st.binary(max_size=300))
def test_a_frame_announces_its_payload(payload: bytes) -> None:
    frame = with_size(payload)
    assert frame_size(frame[:SIZE_PREFIX], limit=300) == len(payload)
    assert frame[SIZE_PREFIX:] == payload


@pytest.mark.parametrize("prefix", ["00000065", "7fffffff", "ffffffff", "80000000"])
def test_a_frame_beyond_the_limit_is_refused(prefix: str) -> None:
    with pytest.raises(FrameTooLargeError, match="the limit is 100"):
        frame_size(bytes.fromhex(prefix), limit=100)


def test_a_frame_at_the_limit_is_taken() -> None:
    assert frame_size(bytes.fromhex("00000064"), limit=100) == 100
