import pytest
import torch

from prunewald.ensemble import train_many
from tests.ensemble.helpers import dropping_net, sequences

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("how", ["auto", "vmap", "loop"])
def test_more_rows_than_there_are_data(how):
    x, y = sequences()
    rows = torch.randint(0, len(x), (2, len(x) + 40), generator=torch.Generator().manual_seed(0))
    result = train_many(dropping_net, x, y, seeds=[0, 1], epochs=1, resample=rows, how=how, progress=False)
    assert len(result) == 2


@pytest.mark.parametrize("rows", [[[-1, 0]], [[0, 10_000]], [[]], [[0.0, 1.0]]])
def test_rows_that_are_not_there(rows):
    x, y = sequences()
    with pytest.raises(ValueError, match="resample has rows .* from 0 to 49"):
        train_many(dropping_net, x, y, seeds=[0], epochs=1, resample=torch.tensor(rows), progress=False)


def test_inputs_and_targets_have_one_length():
    x, y = sequences()
    with pytest.raises(ValueError, match="x has 50 rows and y has 49"):
        train_many(dropping_net, x, y[1:], epochs=1, progress=False)
