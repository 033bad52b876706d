import pytest
import torch

from prunewald.ensemble import draws

pytestmark = pytest.mark.usefixtures("one_thread")

SEEDS = (5, 0, 2**40 + 5, 7)


def test_draws_belong_to_a_seed():
    orders, rows = draws.order(SEEDS, 30, epoch=4), draws.bootstrap(SEEDS, 30)
    for r, seed in enumerate(SEEDS):
        assert torch.equal(orders[r], draws.order([seed], 30, epoch=4)[0])
        assert torch.equal(rows[r], draws.bootstrap([seed], 30)[0])
        assert sorted(orders[r].tolist()) == list(range(30))
    assert len({tuple(order.tolist()) for order in (*orders, *draws.order(SEEDS, 30, epoch=5))}) == 8


def test_draws_are_uniform_and_unrelated():
    keys = draws.chain(draws.seed_key(range(50), draws.NOISE)[:, None], torch.arange(40, dtype=torch.int32)[:, None])
    words = draws.bits(keys, 500).view(-1, 500)
    unit = (words.double() + 2**31) / 2**32
    n = unit.numel()
    counts = torch.histc(unit.float(), 64, 0, 1).double()
    assert ((counts - n / 64) ** 2 / (n / 64)).sum() < 110  # chi-square, 63 degrees of freedom: p < 2e-4
    centred = (unit - 0.5) * 12**0.5
    for other in (centred.roll(1, 0), centred.roll(40, 0), centred.roll(1, 1)):
        assert (centred * other).mean().abs() < 5 / n**0.5
    for bit in range(32):
        assert abs(((words >> bit) & 1).double().mean() - 0.5) < 2.5 / n**0.5
    rows = draws.bootstrap(range(200), 100)
    assert (rows.min(), rows.max()) == (0, 99)
    assert abs(torch.stack([row.unique().numel() * torch.ones(()) for row in rows]).mean() - 63.4) < 0.8


def test_dropout_keeps_the_right_share():
    kept = draws.keep(draws.seed_key([1], draws.NOISE)[0], torch.Size([100, 1000]), 0.3)
    assert abs(kept.double().mean() - 0.7) < 0.006


def test_repeated_seeds_have_the_same_order():
    orders = draws.order([4, 3, 4], 30, epoch=1)
    assert torch.equal(orders, torch.stack([draws.order([seed], 30, epoch=1)[0] for seed in (4, 3, 4)]))


@pytest.mark.parametrize("seed", [-1, 2**63, 0.5])
def test_a_seed_that_is_none_is_named(seed):
    with pytest.raises(ValueError, match=f"seed={seed}.*from 0 to"):
        draws.seed_key([3, seed], draws.ORDER)


def test_arrays_and_tensors_draw_the_same_bits():
    key, shape = draws.seed_key([2**40 + 5], draws.NOISE)[0], torch.Size([7, 100])
    step = torch.tensor(2**31 - 1, dtype=torch.int32)
    one, other = draws.chain(key, step, 3), draws.chain(key.numpy(), step.numpy(), 3)
    assert one.tolist() == other.tolist()
    assert draws.bits(one, 1000).tolist() == draws.bits(other, 1000).tolist()
    for p in (0.0, 0.3, 0.99):
        assert torch.equal(draws.keep(one, shape, p), draws.keep(other, shape, p))


def test_draws_stay_as_they_were():
    key = draws.chain(draws.seed_key([3], draws.NOISE)[0], 5)
    assert key.tolist() == [-1890948007, 965671985]
    assert draws.bits(key, 4).tolist() == [1188620967, 1772084172, -1232169384, -1148451209]
