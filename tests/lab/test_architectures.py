import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

from prunewald.lab.architectures import MLP, VGG11, PaperCNN, SmallAlexNet

SMALL = [(PaperCNN, (1, 28, 28)), (SmallAlexNet, (3, 32, 32)), (MLP, (1, 28, 28))]
ALL = [*SMALL, (lambda dropout=0.5: VGG11(7, side=32, dropout=dropout), (3, 32, 32))]


def dense_weights(model: nn.Module) -> int:
    return sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear))


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_counts_are_the_papers() -> None:
    assert (parameters(PaperCNN()), dense_weights(PaperCNN())) == (9660, 8928)
    assert dense_weights(SmallAlexNet()) == 1_706_496
    assert dense_weights(MLP()) == 1_455_104


def test_vgg_follows_the_size_of_the_images() -> None:
    with torch.device("meta"):
        assert dense_weights(VGG11()) == 25_575_424
        assert dense_weights(VGG11(side=224)) == 119_947_264
        assert parameters(VGG11(1000, side=224)) == 132_863_336  # torchvision's
        assert VGG11(side=96)(torch.zeros(2, 3, 96, 96)).shape == (2, 100)


def test_vgg_has_torchvisions_names() -> None:
    with torch.device("meta"):
        names = VGG11().state_dict()
    layers = [f"features.{i}" for i in (0, 3, 6, 8, 11, 13, 16, 18)] + [f"classifier.{i}" for i in (0, 3, 6)]
    assert list(names) == [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]


@pytest.mark.parametrize("side", [0, 28, 50, -32])
def test_vgg_refuses_other_sizes(side: int) -> None:
    with pytest.raises(ValueError, match=f"side {side}: give a multiple of 32"):
        VGG11(side=side)


@pytest.mark.parametrize(("make", "shape"), ALL)
def test_shapes(make, shape) -> None:
    model = make().eval()
    logits = model(torch.zeros(3, *shape))
    assert logits.shape == (3, 7 if isinstance(model, VGG11) else 10)
    assert not isinstance(list(model.modules())[-1], nn.ReLU | nn.MaxPool2d)


@pytest.mark.parametrize(("make", "shape"), ALL)
def test_dropout_is_an_argument_and_stands_between_dense_layers(make, shape) -> None:
    x = torch.rand(4, *shape)
    plain = make(dropout=0.0)
    assert torch.equal(plain(x), plain(x))
    noisy = make(dropout=0.5)
    assert {module.p for module in noisy.modules() if isinstance(module, nn.Dropout)} == {0.5}
    assert not torch.equal(noisy(x), noisy(x))
    noisy.eval()
    assert torch.equal(noisy(x), noisy(x))


def test_pooling_before_relu_is_the_same_function() -> None:
    model, x = SmallAlexNet().eval(), torch.rand(4, 3, 32, 32)
    expected = x
    for layer in model.features:
        if isinstance(layer, nn.Conv2d):
            expected = F.max_pool2d(F.relu(layer(expected)), 2)
    torch.testing.assert_close(model.features(x), expected)
    assert expected.shape == (4, 128, 4, 4)


@pytest.mark.parametrize(("make", "shape"), [*SMALL, pytest.param(*ALL[-1], marks=pytest.mark.slow)])
def test_many_at_once(make, shape) -> None:
    """vmap over the weights of two networks gives each one's own gradients."""
    models = [make(dropout=0.0) for _ in range(2)]
    x, y = torch.rand(2, 3, *shape), torch.tensor([0, 3, 6])
    weights, _ = stack_module_state(models)

    def loss(parameters, images):
        return F.cross_entropy(functional_call(models[0], parameters, images), y)

    found = vmap(grad(loss), randomness="different")(weights, x)
    for i, model in enumerate(models):
        F.cross_entropy(model(x[i]), y).backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(found[name][i], parameter.grad, rtol=1e-3, atol=1e-5)
