"""What a broker offers: the version that both sides share, and the features that its cluster has finalized."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.client.terms.versions import NO_VERSIONS, TRANSACTION_VERSION, NoCommonVersionError, Versions
from dualwrite.wire.apis import APIS, ApiKey
from dualwrite.wire.codec import read_response, write_response

END_TXN_MAX = 5


def told(ranges: dict[ApiKey, tuple[int, int]], features: dict[str, int] | None = None, epoch: int = 0) -> Versions:
    """What is understood of an ApiVersions response that went over the wire."""
    response = APIS[ApiKey.API_VERSIONS].response
    keys = [
        response.ApiVersion(api_key=int(key), min_version=low, max_version=high) for key, (low, high) in ranges.items()
    ]
    finalized = [
        response.FinalizedFeatureKey(name=name, min_version_level=0, max_version_level=level)
        for name, level in (features or {}).items()
    ]
    message = response(
        error_code=0, api_keys=keys, throttle_time_ms=0, finalized_features_epoch=epoch, finalized_features=finalized
    )
    return Versions.from_response(
        read_response(ApiKey.API_VERSIONS, 4, write_response(ApiKey.API_VERSIONS, 4, 0, message))
    )


def offering(*ranges: tuple[ApiKey, int, int]) -> Versions:
    return told({key: (low, high) for key, low, high in ranges})


def test_the_finalized_level_of_a_feature_is_known_with_its_epoch() -> None:
    versions = told({}, {TRANSACTION_VERSION: 2, "metadata.version": 25}, epoch=7)
    assert (versions.features, versions.features_epoch) == ({TRANSACTION_VERSION: 2, "metadata.version": 25}, 7)


def test_features_without_an_epoch_are_not_believed() -> None:
    assert told({}, {TRANSACTION_VERSION: 2}, epoch=-1) == NO_VERSIONS


def test_an_answer_of_the_oldest_version_has_no_features() -> None:
    response = APIS[ApiKey.API_VERSIONS].response(error_code=0, api_keys=[])
    oldest = read_response(ApiKey.API_VERSIONS, 0, write_response(ApiKey.API_VERSIONS, 0, 0, response))
    assert Versions.from_response(oldest) == NO_VERSIONS


@pytest.mark.parametrize(
    ("theirs", "floor", "cap", "chosen"),
    [
        ((0, 5), 0, None, 5),
        ((0, 9), 0, None, END_TXN_MAX),
        ((0, 3), 0, None, 3),
        ((0, 5), 0, 4, 4),
        ((0, 3), 0, 4, 3),
        ((0, 5), 5, 5, 5),
        ((2, 5), 0, 2, 2),
    ],
)
def test_the_highest_shared_version_is_chosen(theirs: Any, floor: int, cap: int | None, chosen: int) -> None:
    assert offering((ApiKey.END_TXN, *theirs)).of(ApiKey.END_TXN, floor, cap) == chosen


@pytest.mark.parametrize(("theirs", "floor", "cap"), [((0, 3), 4, None), ((3, 5), 0, 2), ((6, 9), 0, None)])
def test_no_shared_version_says_what_each_side_has(theirs: tuple[int, int], floor: int, cap: int | None) -> None:
    with pytest.raises(NoCommonVersionError, match=f"END_TXN: the broker offers versions {theirs[0]} to {theirs[1]}"):
        offering((ApiKey.END_TXN, *theirs)).of(ApiKey.END_TXN, floor, cap)


def test_an_api_that_the_broker_lacks_is_named() -> None:
    with pytest.raises(NoCommonVersionError, match="DESCRIBE_PRODUCERS: not offered"):
        offering((ApiKey.END_TXN, 0, 5)).of(ApiKey.DESCRIBE_PRODUCERS)


@given(
    low=st.integers(0, 8),
    span=st.integers(0, 8),
    floor=st.integers(0, 8),
    cap=st.none() | st.integers(0, 8),
    api_key=st.sampled_from(list(APIS)),
)
def test_a_chosen_version_lies_within_every_bound(
    low: int, span: int, floor: int, cap: int | None, api_key: ApiKey
) -> None:
    ours = APIS[api_key].request
    lowest = max(low, floor, ours.min_version)
    highest = min(low + span, ours.max_version, ours.max_version if cap is None else cap)
    versions = offering((api_key, low, low + span))
    if lowest <= highest:
        assert versions.of(api_key, floor, cap) == highest
    else:
        with pytest.raises(NoCommonVersionError):
            versions.of(api_key, floor, cap)


def test_a_version_is_offered_if_both_sides_know_it() -> None:
    versions = offering((ApiKey.END_TXN, 1, END_TXN_MAX + 1))
    offered = [version for version in range(END_TXN_MAX + 3) if versions.offers(ApiKey.END_TXN, version)]
    assert offered == list(range(1, END_TXN_MAX + 1))
    assert not versions.offers(ApiKey.PRODUCE, 3)
