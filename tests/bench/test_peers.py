import numpy as np
import pytest

from tests.bench.peers import DENSE, SPARSE, Dense, Sparse

PLACES = {
    "near": [0, 1, 5],
    "one": [7],
    "far": [3, 3 + (1 << 16), 200_000],
    "u16 just enough": [(1 << 16) - 1, (1 << 17) - 1],
}


@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("peer", SPARSE, ids=lambda peer: peer.name)
def test_a_sparse_peer_gives_back_what_it_was_given(peer: Sparse, places: list[int]) -> None:
    indices, new = np.array(places), np.arange(-1, len(places) - 1, dtype=np.int16)
    found, values = peer.decode(peer.encode(indices, new), len(places))
    assert found.tolist() == places
    assert values.tolist() == new.tolist()


@pytest.mark.parametrize("peer", DENSE, ids=lambda peer: peer.name)
def test_a_dense_peer_gives_back_what_it_was_given(peer: Dense) -> None:
    old = np.arange(-500, 500, dtype=np.int16)
    new = old.copy()
    new[[0, 7, 999]] ^= np.array([1, -1, 1 << 14], np.int16)
    assert peer.decode(peer.encode(old, new), old).tolist() == new.tolist()


@pytest.mark.parametrize(("peer", "each"), [(SPARSE[0], 6), (SPARSE[1], 4)], ids=["int32 + bf16", "u16 gaps + bf16"])
def test_peers_take_the_bytes_that_they_are_known_for(peer: Sparse, each: int) -> None:
    indices = np.arange(0, 100_000, 100)
    assert len(peer.encode(indices, indices.astype(np.int16))) == each * indices.size
