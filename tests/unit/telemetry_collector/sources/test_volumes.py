"""Which log dirs share a volume, by what a broker says about them."""

from __future__ import annotations

from evenload.telemetry_collector.sources.volumes import SeenVolumes, Volume, VolumeOfDir

GIB = 1 << 30
MIB = 1 << 20


def _told(path: str, usable_bytes: int, total_bytes: int = 100 * GIB) -> VolumeOfDir:
    return VolumeOfDir(path, total_bytes, usable_bytes)


def test_dirs_on_one_volume_count_it_once_although_something_is_written_while_the_broker_looks() -> None:
    seen = SeenVolumes()
    for written in (0, 5 * MIB, 60 * MIB):
        assert seen.volumes([_told("/b", 50 * GIB - written), _told("/a", 50 * GIB)]) == [
            Volume(("/a", "/b"), 100 * GIB, 50 * GIB - written)
        ]


def test_dirs_on_volumes_of_different_size_or_use_count_each() -> None:
    told = [_told("/a", 50 * GIB), _told("/b", 40 * GIB), _told("/c", 50 * GIB, 200 * GIB)]
    volumes = SeenVolumes().volumes(told)
    assert [volume.paths for volume in volumes] == [("/a",), ("/b",), ("/c",)]
    assert [volume.used_bytes for volume in volumes] == [50 * GIB, 60 * GIB, 150 * GIB]


def test_a_shared_volume_and_one_of_its_own_are_two() -> None:
    told = [_told("/a", 50 * GIB), _told("/b", 40 * GIB), _told("/c", 50 * GIB)]
    assert [volume.paths for volume in SeenVolumes().volumes(told)] == [("/a", "/c"), ("/b",)]


def test_equal_disks_that_were_once_seen_apart_stay_two_when_they_are_filled_alike() -> None:
    seen = SeenVolumes()
    assert len(seen.volumes([_told("/a", 100 * GIB), _told("/b", 100 * GIB)])) == 1  # new ones: can't be told
    assert len(seen.volumes([_told("/a", 90 * GIB), _told("/b", 100 * GIB)])) == 2
    assert len(seen.volumes([_told("/a", 90 * GIB), _told("/b", 90 * GIB)])) == 2


def test_the_order_in_which_a_broker_names_its_dirs_does_not_matter() -> None:
    told = [_told("/a", 50 * GIB), _told("/b", 50 * GIB + 50 * MIB), _told("/c", 50 * GIB + 100 * MIB)]
    assert SeenVolumes().volumes(told) == SeenVolumes().volumes(reversed(told))
