import torch
from torch import nn

from prunewald.lab.loop import accuracy, steps, train


def test_training_learns_and_repeats() -> None:
    x = torch.randn(300, 5, generator=torch.Generator().manual_seed(0))
    y = (x.sum(1) > 0).long()

    def fitted() -> tuple[nn.Module, list[int]]:
        torch.manual_seed(0)
        model, epochs = nn.Linear(5, 2), []
        optimizer = torch.optim.RMSprop(model.parameters(), lr=0.02)
        generator = torch.Generator().manual_seed(1)
        train(model, optimizer, x, y, 8, 32, generator=generator, progress=lambda: epochs.append(1))
        return model, epochs

    model, epochs = fitted()
    assert epochs == [1] * 8
    assert accuracy(model, x, y) > 0.9
    again = fitted()[0].state_dict()
    assert all(torch.equal(value, again[name]) for name, value in model.state_dict().items())


def test_batches_are_nearly_equal() -> None:
    sizes = []
    model = nn.Linear(2, 2)
    model.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, torch.rand(130, 2), torch.zeros(130, dtype=torch.long), 1, batch_size=64)
    assert sorted(sizes) == [43, 43, 44]


def test_steps_counts_what_train_does() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    count = []
    optimizer.register_step_post_hook(lambda *_: count.append(1))
    train(model, optimizer, torch.rand(10, 2), torch.zeros(10, dtype=torch.long), epochs=2, batch_size=4)
    assert len(count) == steps(10, epochs=2, batch_size=4) == 6


def test_accuracy_counts_over_batches_and_keeps_the_mode() -> None:
    model = nn.Identity()
    x, y = torch.eye(4), torch.tensor([0, 1, 2, 0])
    assert accuracy(model, x, y, batch_size=3) == 0.75
    assert model.training
