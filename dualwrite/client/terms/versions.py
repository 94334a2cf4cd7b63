"""A broker's answer to ApiVersions: its versions of each API, and the cluster's finalized features."""

from collections.abc import Mapping
from typing import NamedTuple

from dualwrite.wire.apis import APIS, ApiKey, Message

TRANSACTION_VERSION = "transaction.version"
"""The feature whose level tells which transaction protocol the cluster speaks."""
TV2 = 2
"""The first level with KIP-890 part 2."""


class VersionRange(NamedTuple):
    """Versions of one API, both ends included."""

    lowest: int
    highest: int


class NoCommonVersionError(Exception):
    """The broker and this client share no version of an API in the range that the caller allows."""


class Versions(NamedTuple):
    """One broker's answer to ApiVersions.

    :param ranges: the versions that the broker offers, by API key.
    :param features: the level at which each feature is finalized in the cluster; empty if the broker does not know it.
    :param features_epoch: orders two answers: the higher has the newer features; -1 if the broker does not know them.
    """

    ranges: Mapping[int, VersionRange]
    features: Mapping[str, int]
    features_epoch: int = -1

    @classmethod
    def from_response(cls, response: Message) -> "Versions":
        """The versions in an ApiVersions response (KIP-584: features are valid only with an epoch of 0 or more)."""
        ranges = {entry.api_key: VersionRange(entry.min_version, entry.max_version) for entry in response.api_keys}
        epoch = response.finalized_features_epoch
        if epoch < 0:
            return cls(ranges, {})
        return cls(ranges, {feature.name: feature.max_version_level for feature in response.finalized_features}, epoch)

    def of(self, api_key: ApiKey, floor: int = 0, cap: int | None = None) -> int:
        """The highest version of ``api_key`` that the broker offers, this client knows and the bounds allow.

        :raises NoCommonVersionError: if there is none.
        """
        ours = APIS[api_key].request
        theirs = self.ranges.get(api_key)
        if theirs is None:
            raise NoCommonVersionError(f"{api_key.name}: not offered by the broker")
        lowest = max(floor, ours.min_version, theirs.lowest)
        highest = min(ours.max_version if cap is None else cap, ours.max_version, theirs.highest)
        if lowest > highest:
            raise NoCommonVersionError(
                f"{api_key.name}: the broker offers versions {theirs.lowest} to {theirs.highest},"
                f" needed is {max(floor, ours.min_version)}"
                f" to {ours.max_version if cap is None else min(cap, ours.max_version)}"
            )
        return int(highest)

    def offers(self, api_key: ApiKey, version: int) -> bool:
        """True if the broker offers ``version`` of ``api_key``, and this client knows it."""
        try:
            return self.of(api_key, floor=version, cap=version) == version
        except NoCommonVersionError:
            return False


NO_VERSIONS = Versions({}, {})
"""The value before the broker has answered."""
