"""The criteria that others publish and compare with, each with the running statistic it needs."""

from prunewald.baselines.gradients import OBD, PLATON, SNIP, Movement, Taylor
from prunewald.baselines.wanda import Wanda

__all__ = ["OBD", "PLATON", "SNIP", "Movement", "Taylor", "Wanda"]
