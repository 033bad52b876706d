import pytest
from torch import nn

from tests.ensemble.helpers import dropping, same

pytestmark = pytest.mark.usefixtures("one_thread")


def test_dropout_noise_is_the_same_both_ways():
    same(dropping(), dropping(how="loop"))


@pytest.mark.parametrize("how", ["vmap", "loop"])
def test_a_loss_for_each_sample_is_refused(how):
    with pytest.raises(ValueError, match=r"loss gives \(\d+,\): .* mean or its sum"):
        dropping(loss=nn.CrossEntropyLoss(reduction="none"), how=how)
