import torch

from prunewald.lab.data import Images, embedded
from prunewald.lab.data.images import counted, described
from prunewald.lab.heading import heading, note
from prunewald.lab.networks import Networks
from prunewald.lab.settings import PAPER, settings
from tests.lab.helpers import raw

DATA = "MNIST (60,000 + 10,000 images)"


def test_it_says_network_data_training_and_pruning() -> None:
    given = settings("mnist", "paper", epochs=40, retrain_epochs=10, dropout=0.2, lr=0.01, batch_size=100)
    network, data, training, pruning = heading(given, DATA, ["abs", "pseudo:1", "bootstrap:1"])
    assert network == "network: MLP, 1,457,162 parameters, of which 1,455,104 are weights of dense layers"
    assert f"{DATA}; used: 55,000 to train, 5,000 to validate, drawn by seed, 10,000 to test" in data
    for part in ("40 epochs", "10 after each pruning", "RMSprop", "lr 0.01", "at most 100", "dropout 0.2"):
        assert part in training
    assert "in rounds" in pruning
    assert "sigma of 200 steps; 100 bootstrap replicas" in pruning
    assert "sigma" not in heading(given, DATA, ["abs", "moment:1"])[-1]
    assert all(line in note(given, DATA, ["abs"]) for line in heading(given, DATA, ["abs"]))
    assert "95 % t intervals" in note(given, DATA, ["abs"])


def test_the_images_are_those_that_a_network_is_trained_on() -> None:
    data = embedded()
    for images in (0, 1000):
        given = settings("fashion-mnist", images=images)
        networks = Networks.of(given, data, torch.device("cpu"))
        count = networks.train_rows([0]).shape[1]
        assert f"used: {count:,} to train, 600 to validate" in heading(given, data.source, [])[1]
    assert "used" not in heading(settings("fashion-mnist"), raw().source, [])[1]  # which does not say how many


def test_every_experiment_has_a_heading() -> None:
    networks = {heading(one, DATA, one.rows)[0].split(",")[0] for one in PAPER.values()}
    assert networks == {f"network: {name}" for name in ("PaperCNN", "SmallAlexNet", "MLP", "VGG11")}


def test_images_are_counted_where_a_source_names_them() -> None:
    x = torch.zeros(1234, 1)
    assert counted(described("Some", Images(x, x), Images(x[:77], x[:77]), " of 32x32")) == (1234, 77)
    for source in ("ten patterns", "(, + ,, images)", "(0 + 0 images)", "(1 + 2)"):
        assert counted(source) is None
