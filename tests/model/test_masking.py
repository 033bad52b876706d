import pytest
import torch
from torch import nn

from prunewald.model.masking import check_masks, living

PARAMS = dict(nn.Linear(3, 2).named_parameters())
MASK = torch.ones(2, 3, dtype=torch.bool)


@pytest.mark.parametrize("params", [None, PARAMS])
def test_masks_that_fit_pass(params):
    check_masks({"weight": MASK}, params)
    check_masks({"weight": MASK, "bias": MASK[:, 0]}, params, every=True, empty=False)
    check_masks({}, params)


@pytest.mark.parametrize("masks", [None, [MASK], MASK, nn.Linear(3, 2)], ids=lambda masks: type(masks).__name__)
def test_what_is_no_dict_is_named_by_its_type(masks):
    with pytest.raises(TypeError, match=rf"saved: {type(masks).__name__}.*pruner\.masks"):
        check_masks(masks, what="saved")


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ({"weight": MASK.int()}, "'weight' is torch.int32.*bool"),
        ({"weight": [True] * 6}, "'weight' is list.*bool"),
        ({"weight": None}, "'weight' is NoneType.*bool"),
        ({3: MASK}, "key 3 "),
        ({"weight": MASK.to_sparse()}, "'weight' is torch.sparse_coo"),
        ({"weight": MASK.to("meta")}, "'weight' is torch.strided on meta"),
    ],
    ids=["int", "list", "none", "key", "sparse", "meta"],
)
def test_what_is_no_mask_is_named_with_or_without_a_model(masks, message):
    for params in (None, PARAMS):
        with pytest.raises(ValueError, match=message):
            check_masks(masks, params)


def test_what_does_not_fit_the_parameters_is_named():
    with pytest.raises(ValueError, match="'wieght'.*weight, bias"):
        check_masks({"wieght": MASK}, PARAMS)
    with pytest.raises(ValueError, match=r"'weight' has shape \(3, 2\), the parameter \(2, 3\)"):
        check_masks({"weight": MASK.T}, PARAMS)
    with pytest.raises(ValueError, match="'bias' has no mask"):
        check_masks({"weight": MASK}, PARAMS, every=True)
    with pytest.raises(ValueError, match="empty.*by parameter name"):
        check_masks({}, PARAMS, empty=False)
    for model in (nn.LazyLinear(3), nn.Linear(3, 2, device="meta")):
        with pytest.raises(ValueError, match="'weight' has no values"):
            check_masks({"weight": MASK}, dict(model.named_parameters()))


def test_of_many_misfits_the_first_are_named_and_the_others_counted():
    with pytest.raises(ValueError, match="'0' is.*'4' is.*2 more") as caught:
        check_masks({str(at): MASK.float() for at in range(7)})
    assert "'5'" not in str(caught.value)


def test_living_is_true_where_no_mask_speaks():
    model = nn.Linear(3, 2)
    alive = living(model, {"weight": torch.eye(2, 3) > 0})
    assert alive["weight"].tolist() == [[True, False, False], [False, True, False]]
    assert alive["bias"].tolist() == [True, True]
    assert all(mask.all() for mask in living(model, None).values())
    with pytest.raises(ValueError, match="'wieght'"):
        living(model, {"wieght": MASK})
