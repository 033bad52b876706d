import pytest
import torch

from prunewald.lab.machine import Machine, MachineError, environment


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"piece": -1}, "--piece=-1: .*at least 0"),
        ({"workers": -1}, "--workers=-1: .*at least 0"),
        ({"minutes": -1.0}, "--minutes=-1.0: .*at least 0"),
        ({"minutes": float("nan")}, "--minutes=nan: .*at least 0"),
    ],
)
def test_bad_machines_are_named(given: dict[str, object], message: str) -> None:
    with pytest.raises(MachineError, match=message):
        Machine(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["tpu", "cuda:x"])
def test_a_device_of_another_kind(device: str) -> None:
    with pytest.raises(MachineError, match=f"--device {device}: give cpu or cuda"):
        Machine(device=device).torch_device()


def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(MachineError, match="--device cuda:99: there is no such GPU.*give cpu"):
        Machine(device="cuda:99").torch_device()
    if not torch.cuda.is_available():
        with pytest.raises(MachineError, match="--device cuda: there is no such GPU.*give cpu"):
            Machine(device="cuda").torch_device()
        assert Machine().torch_device().type == "cpu"


def test_environment_names_what_a_result_was_made_with() -> None:
    assert environment(torch.device("cpu"))["torch"] == torch.__version__
