"""The criteria that others publish and compare with, each with the running statistic it needs."""

from prunewald.baselines.gradients import Movement, Obd, Platon, Snip, Taylor
from prunewald.baselines.wanda import Wanda

__all__ = ["Movement", "Obd", "Platon", "Snip", "Taylor", "Wanda"]
