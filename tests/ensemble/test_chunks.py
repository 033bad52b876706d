import pytest
import torch

from prunewald.ensemble.chunks import in_chunks, memory


def worker(most):
    """Work that has room for `most` replicas, and returns what it was asked for."""

    def work(first, last):
        if last - first > most:
            raise torch.cuda.OutOfMemoryError
        return first, last

    return work


@pytest.mark.parametrize(
    ("most", "chunk", "wanted"),
    [
        (9, 3, [(0, 3), (3, 6), (6, 7)]),
        (9, 9, [(0, 7)]),
        (3, 5, [(0, 3), (3, 6), (6, 7)]),
        (1, 2, [(r, r + 1) for r in range(7)]),
    ],
)
def test_chunks_cover_all_and_shrink_where_memory_is_too_small(most, chunk, wanted):
    assert in_chunks(worker(most), 7, chunk) == wanted


def test_one_replica_that_does_not_fit_is_an_error():
    with pytest.raises(torch.cuda.OutOfMemoryError):
        in_chunks(worker(0), 7, 4)


def test_there_is_memory():
    assert memory(torch.device("cpu")) > 1 << 20
